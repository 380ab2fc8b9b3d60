"""Cores of several ranks by their cause."""

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.run.core_code import core_groups


def fault(kernel: str, line: int | None = 6) -> tuple[Finding, ...]:
    chain = (SourceFrame(function=kernel, file="/src/x.cu", line=line),) if line else ()
    return (
        Finding(
            rule="gpu-core-warp-illegal-address", level=Level.ERROR, message="m", how_known=HowKnown.GPU_CORE,
            confidence=0.9, kernel=kernel, chain=chain,
        ),
    )  # fmt: skip


def path(rank: int, host: str = "n0") -> str:
    return f"steps/coredump/1/{host}-{rank}/core.cuda.{rank}"


def test_cores_of_one_cause_are_one_line_with_their_ranks() -> None:
    found = list(
        core_groups(
            {path(0): fault("gather"), path(1): (), path(2): fault("gather"), path(11, "a-b"): fault("gather", None)}
        )
    )
    assert len(found) == 2
    assert found[0].startswith("3 of 4 cores have one cause, ")
    assert "warp-illegal-address in gather at x.cu:6 gather" in found[0]
    assert found[0].endswith(": ranks 0, 2, 11")
    assert found[1] == "1 of 4 cores have no fault: rank 1"


def test_unlike_causes_are_apart_the_most_frequent_first() -> None:
    found = list(core_groups({path(0): fault("a"), path(1): fault("b"), path(2): fault("b")}))
    assert [line.split(" cores")[0] for line in found] == ["2 of 3", "1 of 3"]


def test_a_single_core_is_no_group() -> None:
    assert list(core_groups({path(0): fault("gather")})) == []
