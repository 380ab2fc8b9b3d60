"""Crashes of one cause are one group, whichever run or host they are of."""

from dataclasses import replace

from vdbg_env.run.crash_groups import RecordedCrash, grouped, of_same_cause

FIRST = RecordedCrash(
    run="a", condition="finished", host="n1", started="2026-11-22T01:00:00+00:00", cause="c1", base="b",
    exception="warp-illegal-address", place="topk.cu:41 load", ranks=(3,),
)  # fmt: skip
OTHER_HOST = replace(FIRST, run="b", host="n2", started="2026-11-22T02:00:00+00:00", ranks=(0, 5))
OTHER_PLACE = replace(FIRST, run="c", cause="c2", place="topk.cu:99 store", started="2026-11-22T03:00:00+00:00")
WITHOUT_LINES = replace(FIRST, run="d", cause="b", place=None, started="2026-11-22T00:00:00+00:00")


def test_a_group_spans_hosts_and_ranks_and_takes_in_what_has_no_lines() -> None:
    groups = grouped([OTHER_PLACE, WITHOUT_LINES, OTHER_HOST, FIRST])
    assert [[crash.run for crash in group.crashes] for group in groups] == [["d", "a", "b"], ["c"]]
    assert (groups[0].hosts, groups[0].ranks) == (("n1", "n2"), (0, 3, 5))
    assert groups[0].telling.run == "b"


def test_without_a_place_the_kernel_alone_decides() -> None:
    every = [FIRST, OTHER_HOST, OTHER_PLACE, WITHOUT_LINES]
    assert [c.run for c in of_same_cause(every, cause="c1", base="b")] == ["a", "b", "d"]
    assert [c.run for c in of_same_cause(every, cause="b", base="b")] == ["a", "b", "c", "d"]
    assert of_same_cause(every, cause="c1", base="another") == (FIRST, OTHER_HOST)


def test_crashes_whose_bad_value_came_from_one_tensor_are_one_group_whatever_kernel_failed() -> None:
    slots = "the buffer input_batch.block_table.slot_mapping"
    victim = replace(FIRST, run="v1", culprit=slots)
    another = replace(FIRST, run="v2", cause="c9", base="b9", kernel="flash::fwd", culprit=slots)
    without_map = replace(FIRST, run="v3")
    unrelated = replace(OTHER_PLACE, run="v4", culprit="argument 2 of gather")
    groups = grouped([unrelated, without_map, victim, another])
    assert [{crash.run for crash in group.crashes} for group in groups] == [{"v1", "v2", "v3"}, {"v4"}]
    assert groups[0].telling.culprit == slots
