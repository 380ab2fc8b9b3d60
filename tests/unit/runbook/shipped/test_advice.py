"""What shipped steps say to try next fits where they ran: the machine's GPUs, and the files of the attempt."""

import pytest

from tests.support.shipped import shipped
from vdbg_env.evidence.finding import Ended, EndedBy, Match, Observation
from vdbg_env.runbook import machine
from vdbg_env.runbook.judge import record
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import Run, Runbook
from vdbg_env.runbook.state import Facts, StepResult

IMA = "RuntimeError: CUDA error: an illegal memory access was encountered"
FOLDER = "steps/x/1/node7-3"


def advice(runbook: Runbook, step: str, facts: Facts, **matched: tuple[Match, ...]) -> str:
    """Return what a step says to try next after its command failed with status 1."""
    wanted = runbook.step(step)
    assert isinstance(wanted, Run)
    seen = Observation(
        step=step, attempt=1, rank=3, ended=Ended(by=EndedBy.EXIT, code=1), duration_s=1, directory=FOLDER,
        matched=matched,
    )  # fmt: skip
    state = machine.start(runbook, final_inputs(runbook, {}, ["./prog"], {}), facts)[0]
    found = record(state, wanted, StepResult(step=step, observations=(seen,))).findings
    return str(found[-1].next_step or "")


@pytest.mark.parametrize(
    ("facts", "needs_a_gpu"),
    [
        (Facts(gpus=0), True),
        (Facts(gpus=0, on="docker"), True),
        (Facts(gpus=8), False),
        (Facts(gpus=None), False),
        (Facts(gpus=0, on="replay"), False),
    ],
    ids=["none", "none in the image", "eight", "not known", "replayed"],
)
def test_a_core_that_is_missing_for_want_of_a_gpu_is_not_looked_for(facts: Facts, needs_a_gpu: bool) -> None:
    failure = Match(matcher="failure", text=IMA, stream="stderr", line=1, offset=0)
    said = advice(shipped("illegal-memory-access"), "coredump", facts, failure=(failure,))
    assert said.startswith("only the driver of a GPU writes a core, and no GPU is visible here") == needs_a_gpu
    assert said.endswith("vdbg-env core FILE" if needs_a_gpu else "vdbg-env runbook no-core-dump -- COMMAND")


@pytest.mark.parametrize("name", ["illegal-memory-access", "out-of-memory", "nccl-failure", "host-crash"])
def test_output_to_be_read_is_named_with_its_folder(name: str) -> None:
    assert advice(shipped(name), "baseline", Facts()).endswith(f": tail -n 50 {FOLDER}/std*")
