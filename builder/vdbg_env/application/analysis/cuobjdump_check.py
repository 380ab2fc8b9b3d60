"""Ask cuobjdump about single cubins when its list of a file broke off: its section tables against ours, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from gpucore.elf import Elf
from gpucore.fatbin import Entry, EntryKind, find_device_code
from gpucore.lineinfo import Witness
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.crash.files import Buffer, ScratchFiles
from vdbg_env.evidence import tools

_ASKED: Final = 8
_LARGEST: Final = 4 << 20  # bytes: `cuobjdump -elf` prints each cubin as text of several times its size
_TIMEOUT_S: Final = 60.0


class _Answer(Enum):
    SAME = auto()
    OTHER = auto()
    UNREADABLE = auto()


def cross_examine(
    witness: Witness, data: Buffer, tool: str, *, programs: ProgramRunner, scratch: ScratchFiles
) -> Witness:
    """Return the witness with its answers for single cubins; only that can explain why its list broke off.

    The cubin that it stopped at is asked about first, then others spread over the file. The disagreement is explained
    when it cannot read that one by itself either, and shows the same section table as ours wherever it shows one.
    Raises HostNotAble when cuobjdump cannot be run.
    """
    cubins = [c.entry for c in find_device_code(data) if c.entry.kind == EntryKind.ELF and not c.section]
    stopped_at = witness.listed or 0
    asked = _sample(cubins, stopped_at)
    answers = [_ask(entry, tool, programs, scratch) for entry in asked]
    explained = bool(answers) and answers[0] is _Answer.UNREADABLE and _Answer.OTHER not in answers
    return replace(witness, explained=explained, reason=f"{witness.reason}; {_told(asked, answers)}")


def _sample(cubins: Sequence[Entry], first: int) -> list[Entry]:
    step = len(cubins) // _ASKED | 1  # odd: the architectures of a translation unit follow each other
    chosen = dict.fromkeys([first, *range(0, len(cubins), step)])
    return [cubins[i] for i in chosen if i < len(cubins) and cubins[i].size <= _LARGEST][:_ASKED]


def _ask(entry: Entry, tool: str, programs: ProgramRunner, scratch: ScratchFiles) -> _Answer:
    payload = entry.payload()
    elf = Elf(payload)
    with scratch.lend(memoryview(payload), f".{entry.target}.cubin") as path:
        ran = programs.run([tool, "-elf", str(path)], timeout_s=_TIMEOUT_S)
    theirs = tools.parse_section_names(ran.stdout)
    if not theirs:
        return _Answer.UNREADABLE
    return _Answer.SAME if list(theirs) == [elf.name(s) for s in elf.sections[1:]] else _Answer.OTHER


def _told(asked: Sequence[Entry], answers: Sequence[_Answer]) -> str:
    unreadable = sorted({e.target for e, a in zip(asked, answers, strict=True) if a is _Answer.UNREADABLE})
    parts = [f"the same section table for {answers.count(_Answer.SAME)}"]
    if unreadable:
        parts.append(f"none for {answers.count(_Answer.UNREADABLE)} ({', '.join(unreadable)})")
    if _Answer.OTHER in answers:
        parts.append(f"another for {answers.count(_Answer.OTHER)}")
    return f"asked about {len(answers)} cubins one by one, it shows {', '.join(parts)}"
