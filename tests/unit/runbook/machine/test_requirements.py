"""What a runbook requires is asked for before anything starts."""

import pytest

from vdbg_env.runbook.machine import unmet
from vdbg_env.runbook.model import Requires
from vdbg_env.runbook.state import Facts

ALL = Requires(tools=("cuda-gdb", "nvdisasm"), gpu=True, lineinfo=True, free_disk=2 << 30)


def test_everything_missing_is_told_at_once() -> None:
    facts = Facts(tools=frozenset({"nvdisasm"}), gpus=0, lineinfo=False)
    assert unmet(ALL, facts, free_disk=1 << 30) == (
        "cuda-gdb was not found",
        "no GPU is visible",
        "the libraries carry no line info",
        "1GiB are free for the record, 2GiB are needed",
    )


@pytest.mark.parametrize(
    "facts",
    [Facts(), Facts(tools=frozenset({"cuda-gdb", "nvdisasm"}), gpus=1, lineinfo=True)],
    ids=["unknown", "there"],
)
def test_what_is_there_or_was_not_looked_up_is_no_reason_to_refuse(facts: Facts) -> None:
    assert unmet(ALL, facts, free_disk=None if facts.tools is None else 4 << 30) == ()
