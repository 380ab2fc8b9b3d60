"""Writes an inline chain: for people with the source text where it was found, for programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.cuda.lines.code_map import Function
from vdbg_env.cuda.lines.source_frame import Chain, SourceFrame
from vdbg_env.cuda.symbols.demangling import demangle, short_name
from vdbg_env.report.plain_text import printable

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def chain_lines(chain: Chain, sources: SourceLines, *, indent: str = "    ") -> Iterator[str]:
    """Yield a numbered line for each frame, leaf first, each followed by its source text where that was found."""
    names = [short_name(frame.function) if frame.function else "?" for frame in chain]
    width = min(max((len(name) for name in names), default=0), 48)
    for number, (frame, name) in enumerate(zip(chain, names, strict=True)):
        yield f"{indent}#{number:<2} {printable(name):{width}}  {printable(frame.file)}:{frame.line}"
        text = sources.get((frame.file, frame.line))
        if text and text.strip():
            yield f"{indent}      {printable(text.strip())}"


def place_text(chain: Chain) -> str | None:
    """Return the leaf of a chain as `file:line`; None without one."""
    return f"{chain[0].file}:{chain[0].line}" if chain else None


def chain_json(chain: Chain, sources: SourceLines) -> list[Json]:
    """Return a chain as the JSON reports give it: leaf first, `text` only where the source was found."""
    return [_frame_json(frame, sources) for frame in chain]


def kernel_json(name: str | None) -> dict[str, Json] | None:
    """Return a kernel by its mangled and its demangled name; None when it is not known."""
    return None if name is None else {"name": name, "demangled": demangle(name)}


def function_json(function: Function | None) -> Json:
    """Return the demangled name of a function; None when no symbol covers the place."""
    return function.demangled if function else None


def _frame_json(frame: SourceFrame, sources: SourceLines) -> dict[str, Json]:
    plain: dict[str, Json] = {"function": frame.function, "file": frame.file, "line": frame.line}
    text = sources.get((frame.file, frame.line))
    return plain if text is None else {**plain, "text": text}
