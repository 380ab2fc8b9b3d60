"""Why an address was bad: the formula of an access from its code, and its numbers from a core.

`Program` is the code, `explain_place` answers for an instruction and `explain_fault` for a fault of a core. `why_text`
and `why_json` show the answer. `explain_wait` says what a loop waits for, `explain_hang` with the numbers of a core.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpucore.explain.address import unexplained as unexplained
    from gpucore.explain.fault import Programs as Programs
    from gpucore.explain.fault import explain_fault as explain_fault
    from gpucore.explain.fault import explain_hang as explain_hang
    from gpucore.explain.program import Argument as Argument
    from gpucore.explain.program import Program as Program
    from gpucore.explain.program import SourceText as SourceText
    from gpucore.explain.wait import Wait as Wait
    from gpucore.explain.wait import explain_wait as explain_wait
    from gpucore.explain.wait import wait_json as wait_json
    from gpucore.explain.wait import wait_text as wait_text
    from gpucore.explain.why import Why as Why
    from gpucore.explain.why import explain_place as explain_place
    from gpucore.explain.why import why_json as why_json
    from gpucore.explain.why import why_text as why_text

# An answer for a place needs no reader of cores, so each name is loaded when it is asked for.
_HOME: Final = {
    "unexplained": "address",
    "Programs": "fault", "explain_fault": "fault", "explain_hang": "fault",
    "Argument": "program", "Program": "program", "SourceText": "program",
    "Wait": "wait", "explain_wait": "wait", "wait_json": "wait", "wait_text": "wait",
    "Why": "why", "explain_place": "why", "why_json": "why", "why_text": "why",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
