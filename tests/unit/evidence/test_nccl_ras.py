"""An answer of another shape than NCCL's source has is passed over, and never an error."""

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
