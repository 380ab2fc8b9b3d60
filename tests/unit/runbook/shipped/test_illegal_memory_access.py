"""The ladder of illegal-memory-access: one layer at a time, each against the command as given."""

from pathlib import Path

from tests.support.shipped import shipped
from tests.support.walk_files import scenarios
from tests.support.walks import walk_scenario
from vdbg_env.runbook.state import RunStep

RUNBOOK = "illegal-memory-access"


def test_steps_never_stack(tmp_path: Path) -> None:
    """What one step changed is gone in the next."""
    whole_ladder = scenarios(RUNBOOK)[0]
    told = walk_scenario(whole_ladder, shipped(RUNBOOK), tmp_path)
    changed = {}
    for visit in told.walk.visits:
        if isinstance(visit.decision, RunStep):
            argv = visit.decision.invocation.argv
            assert argv[: len(whole_ladder.argv)] == whole_ladder.argv
            changed[visit.step.id] = argv[len(whole_ladder.argv) :]
    assert changed == {
        "baseline": (), "blocking": (), "coredump": (),
        "graphs_piecewise": ("-cc.cudagraph_mode=PIECEWISE",), "graphs_off": ("-cc.cudagraph_mode=NONE",),
        "inductor_off": ("-cc.backend=eager",), "compile_off": ("-cc.mode=0",), "eager": ("--enforce-eager",),
        "all_reduce": ("--disable-custom-all-reduce",), "attention": ("-ac.backend=TRITON_ATTN",),
    }  # fmt: skip
