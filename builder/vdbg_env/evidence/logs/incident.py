"""What a log says around the line that decided: its process and time, what was served and scheduled, the stacks.

vLLM writes what its scheduler had planned when the engine dies; the sizes of that are read, prompts are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from vdbg_env.evidence.logs.log_line import LogLine, unwrap
from vdbg_env.evidence.logs.python_traceback import Traceback

_SERVED = re.compile(rb'"POST /\S{1,200} HTTP/[\d.]{1,3}" (\d{3})\b')
_VLLM = re.compile(rb"LLM engine \(v([^)\s]{1,60})\)")
_NEW, _PROMPT = re.compile(rb"NewRequestData\("), re.compile(rb"prompt_token_ids_len=(\d+)")
_CACHED = re.compile(rb"CachedRequestData\(req_ids=\[([^\]]*)\]")
_TOTAL = re.compile(rb"total_num_scheduled_tokens=(\d+)")
_STATS = re.compile(rb"num_running_reqs=(\d+), num_waiting_reqs=(\d+)")
_CACHE = re.compile(rb"kv_cache_usage=([\d.]+)")
_NATIVE = re.compile(r"!{3,} ?Segfault encountered|\*{3} .{0,40}SIG[A-Z]+ .{0,200}\*{3}")
_NATIVE_FRAME = re.compile(r'\s*(?:File "|frame #\d+: |#\d+ |@ +0x|\d+: )')
_MOST_FRAMES = 40
NEEDLES = (b"POST /", b"LLM engine (v", b"Dumping scheduler")
STACKS = (b"Segfault encountered", b"*** ")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was served until the end, and what the engine had planned for its last step."""

    answered: int = 0
    failed: int = 0
    vllm: str | None = None
    scheduled: str | None = None


def read_load(lines: Iterable[bytes]) -> Load:
    """Read the lines that hold one of NEEDLES."""
    answered = failed = 0
    vllm = step = stats = None
    for line in lines:
        if served := _SERVED.search(line):
            answered += served[1] < b"400"
            failed += served[1] >= b"400"
        elif b"Dumping scheduler output" in line:
            step = _step(line)
        elif b"Dumping scheduler stats" in line:
            stats = _stats(line)
        if found := _VLLM.search(line):
            vllm = found[1].decode("ascii", "replace")
    return Load(
        answered=answered, failed=failed, vllm=vllm, scheduled=", ".join(filter(None, (step, stats))) or None
    )  # fmt: skip


def _step(line: bytes) -> str:
    prompts = [int(size) for size in _PROMPT.findall(line)]
    going = _CACHED.search(line)
    count = len([one for one in going[1].split(b",") if one.strip()]) if going else 0
    said = [_counted(len(_NEW.findall(line)), "new request")]
    said += [f"prompts of {', '.join(map(str, prompts[:8]))}{' ...' * (len(prompts) > 8)} tokens"] if prompts else []
    said += [_counted(count, "request") + " under way"]
    total = _TOTAL.search(line)
    return ", ".join([*said, *([f"{int(total[1])} tokens in this step"] if total else [])])


def _stats(line: bytes) -> str:
    said = []
    if found := _STATS.search(line):
        said.append(f"{int(found[1])} running and {int(found[2])} waiting")
    if (used := _CACHE.search(line)) and used[1].count(b".") < 2:
        said.append(f"KV cache {100 * float(used[1]):.1f} % full")
    return ", ".join(said)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def native_stack(lines: Iterable[str]) -> list[str]:
    """Return the first stack of native frames in lines, its head first; empty where none was printed."""
    found: list[str] = []
    for line in lines:
        text = unwrap(line).text
        if not found:
            found = [text.strip()] if _NATIVE.search(text) else []
        elif _NATIVE_FRAME.match(text) and len(found) <= _MOST_FRAMES:
            found.append(text.strip())
        elif len(found) > 1:
            return found
        else:
            found = []
    return found if len(found) > 1 else []


def traceback_of(decided: LogLine, found: Iterable[Traceback]) -> Traceback | None:
    """Return the traceback that ends with a line; None for a line that ends none."""
    for one in found:
        said = f"{one.error}: {one.message}" if one.message else one.error
        if said in decided.text or decided.text in said:
            return one
    return None


def seconds_between(first: LogLine, last: LogLine) -> float | None:
    """Return the seconds between two lines by their stamps, which have no year; None where one has none."""
    began, ended = (_time(line) for line in (first, last))
    if began is None or ended is None or not timedelta() <= ended - began:
        return None
    return (ended - began).total_seconds()


def _time(line: LogLine) -> datetime | None:
    try:
        return datetime.strptime(f"2000-{(line.stamp or '')[:14]}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
