"""The matchers that a run adds to a runbook's own are as legal as those."""

from vdbg_env.common import patterns
from vdbg_env.runbook import machine, workload
from vdbg_env.runbook.model import Data

ARGUMENTS: dict[str, Data] = {
    "enforce_eager": True,
    "attention_config": {"backend": "FLASH_ATTN"},
    "compilation_config": {"mode": 0},
}


def test_each_compiles_with_both_engines() -> None:
    ours = [*machine.MATCHERS, *workload.matchers(ARGUMENTS), workload.WITNESS, workload.STARTED, workload.TRACEBACK]
    assert len(ours) == 9
    for matcher in (*ours, workload.MATCHER):
        patterns.check(matcher.pattern)
