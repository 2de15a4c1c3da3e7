"""``iop-node``: the node and the commands to talk to one."""

from __future__ import annotations

import os
import sys

# Before the first import of grpc: its fork handlers kill forked children of a busy process. Nothing here forks, and this
# makes it so for libraries too.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def main() -> int:
    """Run one command; ``serve`` stays apart, so that a node does not carry the commands' libraries."""
    if sys.argv[1:2] == ["serve"]:
        from node.serve import main as serve

        return serve(sys.argv[2:])
    if sys.argv[1:2] == ["supervise"]:
        from node.supervise import main as supervise

        return supervise(sys.argv[2:])
    if sys.argv[1:2] == ["login"]:
        from node.login import main as login

        return login(sys.argv[2:])
    from node.commands.app import main as command

    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
