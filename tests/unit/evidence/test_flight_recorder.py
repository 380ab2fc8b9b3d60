"""Dumps of PyTorch's flight recorder; their shape is that of PyTorch 2.13 with Gloo, two ranks on one machine."""

import contextlib
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.evidence.nccl import (
    NotPlainData,
    flight_findings,
    plain_data,
    read_flight_record,
    unfinished_collective,
)

FRAMES = [
    {
        "name": "all_reduce",
        "filename": "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
        "line": 9,
    },
    {"name": "forward", "filename": "/src/model.py", "line": 41},
]


def entry(number: int, name: str, sizes: list[list[int]], **more: Any) -> dict[str, Any]:
    return {
        "frames": FRAMES,
        "record_id": number - 1,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "input_sizes": sizes,
        "state": "scheduled",
        "is_p2p": False,
        **more,
    }


def dump(*entries: dict[str, Any], ranks: str = "[0, 1]") -> bytes:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}, protocol=2)


BOTH = (entry(1, "all_reduce", [[4, 3]]), entry(2, "barrier", []))


def messages(*dumps: bytes) -> list[str]:
    return [f.message for f in flight_findings([read_flight_record(data, rank) for rank, data in enumerate(dumps)])]


def test_the_rank_that_never_entered_a_collective_is_missing() -> None:
    records = [read_flight_record(dump(*BOTH, entry(3, "all_reduce", [[8]])), 0), read_flight_record(dump(*BOTH), 1)]
    (found,) = flight_findings(records)
    assert found.message == (
        "process group 0: 1 of 2 ranks entered collective 3 (all_reduce of 8); missing: rank 1 (its last is 2, barrier)"
    )
    assert str(found.location).startswith("/src/model.py:41"), "PyTorch's own frames are no place to look"


def test_ranks_that_agree_give_nothing() -> None:
    assert messages(dump(*BOTH), dump(*BOTH)) == []
    assert messages(dump(*BOTH)) == []
    assert messages(dump(), dump()) == []


def test_ranks_that_entered_different_collectives_are_named() -> None:
    (found,) = messages(dump(*BOTH, entry(3, "all_reduce", [[8]])), dump(*BOTH, entry(3, "all_gather", [[8]])))
    assert found == (
        "process group 0: the ranks do not agree about collective 3: rank 0: all_reduce of 8; rank 1: all_gather of 8"
    )
    (found,) = messages(dump(entry(1, "all_reduce", [[8]])), dump(entry(1, "all_reduce", [[9]])))
    assert "rank 1: all_reduce of 9" in found
    assert messages(dump(entry(1, "all_gather", [[8]])), dump(entry(1, "all_gather", [[9]]))) == []


def test_a_rank_that_left_no_dump_is_named() -> None:
    front, behind = dump(*BOTH, ranks="[0, 1, 2]"), dump(BOTH[0], ranks="[0, 1, 2]")
    (found,) = messages(front, behind)
    assert found.endswith("missing: rank 1 (its last is 1, all_reduce); no dump of rank 2")


def test_the_collective_that_no_rank_finished_is_named_with_its_line() -> None:
    done = tuple({**one, "state": "completed"} for one in BOTH)
    waits = entry(3, "all_reduce", [[8]], state="started")
    alone = [read_flight_record(dump(*done, waits, entry(4, "barrier", []), ranks="[0, 1, 2]"), 0)]
    said = "process group 0: rank 0 entered collective 3 (all_reduce of 8), which did not end; no dump of rank 1, 2"
    found = unfinished_collective(alone)
    assert found and found[0] == said
    assert str(found[1]).startswith("/src/model.py:41")
    both = [read_flight_record(dump(*done, waits), rank) for rank in range(2)]
    found = unfinished_collective(both)
    assert found and "ranks 0, 1 entered collective 3 (all_reduce of 8), which did not end" in found[0]
    assert unfinished_collective([read_flight_record(dump(*done), 0)]) is None


def test_messages_between_two_ranks_are_no_collective() -> None:
    assert messages(dump(*BOTH, entry(3, "send", [[8]], is_p2p=True)), dump(*BOTH)) == []


def test_a_pickle_that_would_run_something_is_refused() -> None:
    for bad in (pickle.dumps(print), pickle.dumps({"entries": {1, 2}}), b"cos\nsystem\n(S'true'\ntR."):
        with pytest.raises(NotPlainData, match=r"would make an object or call a function|not a whole pickle"):
            read_flight_record(bad, 0)
    for bad in (b"", b"\x00\x01", dump(*BOTH)[:-5], pickle.dumps([1]), pickle.dumps({"entries": 3})):
        with pytest.raises(NotPlainData):
            read_flight_record(bad, 0)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_data_is_what_python_reads(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    if any(opcode.name == "REDUCE" for opcode, _, _ in pickletools.genops(data)):
        return  # bytes before protocol 3 are made by a call
    assert plain_data(data) == pickle.loads(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(NotPlainData):
        plain_data(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_dump_is_read_or_refused(place: int, value: int) -> None:
    data = bytearray(dump(*BOTH))
    data[place % len(data)] = value
    with contextlib.suppress(NotPlainData):
        flight_findings([read_flight_record(bytes(data), 0), read_flight_record(dump(*BOTH), 1)])


HUGE = b"\x80\x02}X\x07\0\0\0entries]}X\x11\0\0\0collective_seq_id\x8b\xd0\x07\0\0" + b"\x7f" * 2000 + b"sas."
TUPLES = b"}" + b")" + b"\x85" * 300_000 + b"Ns."


@pytest.mark.parametrize("data", [HUGE, TUPLES], ids=["a number of 4,800 digits", "a tuple in tuples as a key"])
def test_what_python_itself_cannot_take_is_refused(data: bytes) -> None:
    """The number cannot be printed, and to hash the tuple would end the interpreter."""
    with pytest.raises(NotPlainData):
        read_flight_record(data, 0)


def test_the_dump_of_a_watchdog_over_nccl_has_the_collective_that_did_not_end() -> None:
    """PyTorch 2.11 on an H100: the watchdog met its time limit while the fifth collective waited for a kernel."""
    dump = (Path(__file__).parents[2] / "data" / "flight_recorder_h100_torch_2_11.pickle").read_bytes()
    record = read_flight_record(dump, 0)
    *ended, last = record.collectives["0"]
    assert [(one.name, one.state) for one in ended] == [("all_reduce", "completed")] * 3 + [
        ("_all_gather_base", "completed")
    ]
    assert (last.number, last.name, last.state, last.frame and last.frame.line) == (5, "all_reduce", "scheduled", 90)
    assert record.members == {"0": (0,)}
