"""The project's own source, read and never imported: for tests of its shape."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "node" / "pb"


def modules(folder: str) -> list[Path]:
    """Every module below *folder* (relative to the root), sorted, generated code left out."""
    found = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in found if GENERATED not in path.parents]


def shown(path: Path) -> str:
    """The path as messages show it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of every import anywhere in *tree*, also inside functions and under ``TYPE_CHECKING``.

    ``import a.b`` gives ``("a.b", "")``.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name, ""
            case ast.ImportFrom(module=str() as module, names=names):
                for alias in names:
                    yield module, alias.name
            case _:
                pass


def roots(tree: ast.AST) -> set[str]:
    """The top-level packages that *tree* imports."""
    return {module.partition(".")[0] for module, _ in imports(tree)}


def definitions(tree: ast.Module) -> dict[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public classes and functions of a module, by name."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}


def pyproject() -> dict[str, Any]:
    """The parsed ``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
