"""An agent: the official client of the Model Context Protocol with our server, and what it makes of an answer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent

from vdbg_env.agents.server import build_server
from vdbg_env.agents.tools import Tools
from vdbg_env.crash.line_packs import PackedLines

_LONGEST_S = 120  # a call that takes longer hangs
_FENCE = re.compile(r"<data ([0-9a-f]{12})>\n(.*?)\n</data \1>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """An answer: its document, what stands outside of the fence, and its bytes."""

    text: str
    failed: bool

    @property
    def bytes(self) -> int:
        return len(self.text.encode())

    @property
    def fences(self) -> list[str]:
        return [found[2] for found in _FENCE.finditer(self.text)]

    @property
    def document(self) -> dict[str, Any]:
        (body,) = self.fences
        document: dict[str, Any] = json.loads(body)
        return document

    @property
    def ours(self) -> str:
        return _FENCE.sub("", self.text)


@dataclass(kw_only=True)
class Agent:
    """Calls tools and keeps count of calls and bytes."""

    portal: BlockingPortal
    client: Client
    calls: int = 0
    bytes: int = 0
    asked: list[str] = field(default_factory=list)

    def __call__(self, tool: str, **arguments: Any) -> Answer:
        result = self.portal.call(self._called, tool, arguments)
        assert isinstance(result, CallToolResult)
        (content,) = result.content
        assert isinstance(content, TextContent)
        answer = Answer(content.text, bool(result.is_error))
        self.calls += 1
        self.bytes += answer.bytes
        self.asked.append(tool)
        return answer

    async def _called(self, tool: str, arguments: dict[str, Any]) -> object:
        with anyio.fail_after(_LONGEST_S):
            return await self.client.call_tool(tool, arguments)


@contextmanager
def agent(*folders: Path | str, mode: str = "auto") -> Iterator[Agent]:
    """Yield an agent whose server is in this process."""
    tools = Tools(list(folders), lambda: PackedLines(()))
    with start_blocking_portal() as portal:
        client = Client(build_server(tools), mode=mode)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal=portal, client=client)


def served(*folders: Path | str, options: Sequence[str] = ()) -> StdioServerParameters:
    """Return how a client starts the program as its users do."""
    argv = ["-m", "vdbg_env", "mcp", *map(str, folders), *options]
    return StdioServerParameters(command=sys.executable, args=argv)


@contextmanager
def started_agent(*folders: Path | str, mode: str = "auto") -> Iterator[Agent]:
    """Yield an agent with a server of its own process, over its standard streams."""
    with started(served(*folders), mode) as ask:
        yield ask


@contextmanager
def started(parameters: StdioServerParameters, mode: str = "auto") -> Iterator[Agent]:
    """Yield an agent with the server that a configuration starts."""
    with start_blocking_portal() as portal:
        client = Client(parameters, mode=mode)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal=portal, client=client)
