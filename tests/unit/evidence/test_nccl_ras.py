"""An answer of another shape than NCCL's source has is passed over, and never an error."""

import json
from pathlib import Path

import pytest

from vdbg_env.evidence.nccl import RasAnswer, read_ras


@pytest.mark.parametrize(
    "document",
    [
        None, [], "x", {"communicators": {}}, {"communicators": [1, {"ranks": [None, {}], "missing_ranks": 3}]},
        {"communicators": [{"ranks": [{"pid": True, "collective_counts": {"AllReduce": "many"}}]}]},
        {"nccl_version": 3},
    ],
)  # fmt: skip
def test_another_shape_says_nothing(document: object) -> None:
    assert read_ras(document) == RasAnswer()


def test_the_answer_of_a_running_nccl_is_read() -> None:
    """NCCL 2.28.9 on an H100; all counts are 0, as one rank makes no collective."""
    said = (Path(__file__).parents[2] / "data" / "nccl_ras_2_28_9.txt").read_text()
    head, brace, rest = said.partition("{")
    assert head == "SERVER PROTOCOL 2\nOK\nOK\n"
    answer = read_ras(json.loads(brace + rest))
    assert (answer.nccl, answer.pids, answer.missing, answer.behind) == ("2.28.9", frozenset({712}), (), ())
