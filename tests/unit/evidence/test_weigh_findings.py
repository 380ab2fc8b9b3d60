"""What one source says about another: agreement makes surer, broken hardware and late stacks make less sure."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.sanitizer import parse_sanitizer, sanitizer_findings
from vdbg_env.runbook.judge import MOST_SURE, judge

LINE = SourceFrame(function="store<float>", file="/src/rope.cu", line=5)
CORE = Finding(
    rule="gpu-core-warp-illegal-address",
    level=Level.ERROR,
    message="Warp Illegal Address",
    how_known=HowKnown.GPU_CORE,
    confidence=0.9,
    location=LINE,
    chain=(LINE, LINE),
    kernel="void rope<float, 4>(float*, int, long)",
)
MEMCHECK = replace(
    CORE,
    rule="sanitizer-memcheck",
    message="Invalid __global__ write",
    how_known=HowKnown.SANITIZER,
    location=replace(LINE, file="rope.cu"),
    chain=(LINE,),
)
DRIVER = replace(
    CORE,
    rule="driver",
    message="seen",
    how_known=HowKnown.DRIVER,
    location=None,
    chain=(),
    kernel="_Z4ropeIfLi4EEvPT_il",
)
STACK = Finding(
    rule="python",
    level=Level.ERROR,
    message="raised here",
    how_known=HowKnown.LOG,
    confidence=0.8,
    location=SourceFrame(function="forward", file="model.py", line=3),
)
XID = Finding(rule="xid-79", level=Level.ERROR, message="off the bus", how_known=HowKnown.KERNEL_LOG, confidence=0.9)


def test_two_witnesses_of_one_line_make_it_surer_and_are_named() -> None:
    alone, both = judge([CORE])[0], judge([MEMCHECK, CORE, DRIVER])[0]
    assert both.how_known is HowKnown.GPU_CORE
    assert alone.confidence < both.confidence <= MOST_SURE
    assert both.message == "Warp Illegal Address (compute-sanitizer, the driver names the same place)"


def test_another_line_is_no_agreement() -> None:
    elsewhere = replace(MEMCHECK, location=replace(LINE, line=6))
    assert judge([CORE, elsewhere])[0].message == "Warp Illegal Address"


def test_a_hardware_fault_explains_a_software_one_away() -> None:
    first, second = judge([CORE, XID])
    assert first is XID
    assert second.confidence < CORE.confidence


def test_a_note_in_the_kernel_log_is_no_hardware_fault() -> None:
    assert judge([CORE, replace(XID, level=Level.NOTE, confidence=0.1)])[0].confidence == CORE.confidence


@pytest.mark.parametrize("rule", ["xid-31", "xid-13", "kernel-log-oom-kill"])
def test_what_software_did_is_no_hardware_fault(rule: str) -> None:
    assert max(f.confidence for f in judge([CORE, replace(XID, rule=rule)])) >= CORE.confidence


def test_once_the_instruction_is_known_the_python_stack_is_a_hint() -> None:
    assert judge([STACK])[0].confidence == 0.8
    assert next(f for f in judge([STACK, CORE]) if f.rule == "python").confidence == 0.4


def test_the_runbooks_own_words_about_a_core_do_not_hide_the_chain() -> None:
    told = replace(CORE, rule="VDBG050", message="Warp Illegal Address in rope", chain=(), confidence=0.95)
    (finding,) = judge([told, CORE])
    assert finding.chain == CORE.chain and finding.confidence == 0.95


def test_ranks_that_say_the_same_are_heard_once() -> None:
    assert len(judge([XID, replace(XID, confidence=0.3), XID])) == 1


@given(st.lists(st.sampled_from([CORE, MEMCHECK, DRIVER, STACK, XID])))
def test_judging_makes_nothing_up_and_keeps_its_bounds(findings: list[Finding]) -> None:
    judged = judge(findings)
    assert {f.rule for f in judged} <= {f.rule for f in findings}
    assert all(0 <= f.confidence <= MOST_SURE for f in judged)
    assert [f.confidence for f in judged] == sorted((f.confidence for f in judged), reverse=True)
    assert bool(judged) == bool(findings)
    assert {f.rule: f.confidence for f in judged} == {f.rule: f.confidence for f in judge(reversed(findings))}


def test_a_sanitizer_that_failed_is_not_the_failure_that_was_looked_for() -> None:
    seen = replace(STACK, rule="VDBG030", level=Level.WARNING, confidence=0.5)
    (tool,) = sanitizer_findings(parse_sanitizer("========= Error: Target application terminated before first call"))
    assert tool.confidence > seen.confidence
    assert [finding.rule for finding in judge((tool, seen))] == ["VDBG030", "sanitizer-failed"]


def test_a_warning_of_the_machine_comes_after_what_was_seen_of_the_failure() -> None:
    no_gpu = replace(STACK, level=Level.WARNING, how_known=HowKnown.HOST_CHECK, confidence=1.0, message="no GPU")
    assert [f.message for f in judge([no_gpu, replace(STACK, confidence=0.2)])] == [STACK.message, "no GPU"]
