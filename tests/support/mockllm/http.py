"""As much HTTP/1.1 as the CLIs' clients need: bodies of every encoding they send, JSON and event streams back."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from dataclasses import dataclass

Headers = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


async def read_request(reader: StreamReader, writer: StreamWriter) -> HttpRequest | None:
    """The next request of a connection; None at its end."""
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers = await _headers(reader)
    if "expect" in headers:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = _decompressed(await _body(reader, headers), headers.get("content-encoding", ""))
    return HttpRequest(method=method, target=target, headers=headers, body=body)


async def _headers(reader: StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        key, _, value = line.partition(":")
        headers[key.lower()] = value.strip()
    return headers


async def _body(reader: StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    chunks = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(chunks)


def _decompressed(data: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(data)
    return zlib.decompress(data) if encoding == "deflate" else data


class Response:
    """Writes one response and counts the bytes of its body."""

    def __init__(self, writer: StreamWriter, *, splits_utf8: bool = False) -> None:
        self._writer = writer
        self._splits_utf8 = splits_utf8
        self.sent = 0

    async def head(self, status: int, headers: Headers) -> None:
        lines = [f"HTTP/1.1 {status} Mock", *(f"{key}: {value}" for key, value in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self._writer.drain()

    async def whole(self, status: int, data: bytes, content_type: str, headers: Headers | None = None) -> None:
        await self.head(status, {"content-type": content_type, "content-length": len(data), **(headers or {})})
        self._writer.write(data)
        self.sent += len(data)
        await self._writer.drain()

    async def json(self, status: int, body: object, headers: Headers | None = None) -> None:
        await self.whole(status, json.dumps(body, ensure_ascii=False).encode(), "application/json", headers)

    async def start_stream(self, headers: Headers | None = None) -> None:
        fixed = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
        await self.head(200, fixed | dict(headers or {}))

    async def event(self, data: object, name: str | None = None) -> None:
        """One server-sent event; *data* is JSON, or text as it is."""
        head = f"event: {name}\n" if name else ""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        await self._chunks(f"{head}data: {text}\n\n".encode())

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _chunks(self, data: bytes) -> None:
        """One chunk, or two with a pause between them that no character border falls on."""
        cut = next((i + 1 for i, byte in enumerate(data) if byte >= 0xC0), len(data) // 2) if self._splits_utf8 else 0
        for part in filter(None, (data[:cut], data[cut:])):
            self._writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await self._writer.drain()
            self.sent += len(part)
            if cut:
                await asyncio.sleep(0.002)
