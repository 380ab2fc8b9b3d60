"""A workload that serves requests: where it listens by its own command line, and how far its start went."""

from __future__ import annotations

from collections.abc import Sequence

from vdbg_env.runbook.model import Matcher
from vdbg_env.runbook.workload.recognise import recognise

_DEFAULT_PORTS = {"vllm": 8000, "sglang": 30000}
_ANY_ADDRESS = {"", "0.0.0.0", "::", "[::]"}

# Written by uvicorn, once the server listens. A log level may hide it, so its absence alone proves nothing.
STARTED = Matcher(name="server_started", pattern=r"Application startup complete")
TRACEBACK = Matcher(name="python_traceback", pattern=r"Traceback \(most recent call last\):")
MARKS = {STARTED.name, TRACEBACK.name}  # they say how far a server came, not what decided


def url(argv: Sequence[str]) -> str:
    """Return where a server of this command line listens, as a client on the same machine reaches it.

    VLLM_PORT is not asked: it is the first port of vLLM's own processes (vllm/envs.py, 0.32.0).
    """
    host = _value(argv, "--host") or ""
    port = _value(argv, "--port") or str(_default_port(argv))
    secure = _value(argv, "--ssl-certfile") is not None
    name = "127.0.0.1" if host in _ANY_ADDRESS else host
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"{'https' if secure else 'http'}://{name}:{port}"


def with_port(argv: Sequence[str], port: int) -> tuple[str, ...] | None:
    """Return the command line with `--port PORT`; None where it has no such flag and is no known server's."""
    words, found, value_due = [], False, False
    end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[:end]:
        name, equals, _ = word.partition("=")
        if value_due:
            word, value_due = str(port), False
        elif name == "--port":
            found, value_due = True, not equals
            word = f"{name}={port}" if equals else word
        words.append(word)
    if not found and not recognise(tuple(argv)).serves:
        return None
    return (*words, *(() if found else ("--port", str(port))), *argv[end:])


def _default_port(argv: Sequence[str]) -> int:
    return next((port for engine, port in _DEFAULT_PORTS.items() if any(engine in word for word in argv)), 8000)


def _value(argv: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag, the last one where it is repeated; `_` is a spelling of `-`, as in vLLM's parser."""
    found = None
    for index, word in enumerate(argv):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else next(iter(argv[index + 1 : index + 2]), None)
    return found
