"""The matchers that a run adds to a runbook's own are as legal as those."""

from vdbg_env.common import patterns
from vdbg_env.runbook.machine import ranks
from vdbg_env.runbook.model import Data
from vdbg_env.runbook.workload import effective, engine_args, server, witness

ARGUMENTS: dict[str, Data] = {
    "enforce_eager": True,
    "attention_config": {"backend": "FLASH_ATTN"},
    "compilation_config": {"mode": 0},
}


def test_each_compiles_with_both_engines() -> None:
    ours = [*ranks.MATCHERS, *effective.matchers(ARGUMENTS), engine_args.WITNESS, server.STARTED, server.TRACEBACK]
    assert len(ours) == 9
    for matcher in (*ours, witness.MATCHER):
        patterns.check(matcher.pattern)
