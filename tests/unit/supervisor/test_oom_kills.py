"""The kernel's counters of processes it ended for lack of memory, in the forms its versions give them, and its log."""

from pathlib import Path

import pytest

from vdbg_env.supervisor.watch import MemoryKills

V1_HOST = ("4:memory:/jobs/7\n0::/\n", "sys/fs/cgroup/memory/jobs/7/memory.oom_control")
V1_CONTAINER = ("4:cpu,memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.oom_control")
V2_HOST = ("0::/system.slice/x.service\n", "sys/fs/cgroup/system.slice/x.service/memory.events")
V2_CONTAINER = ("0::/\n", "sys/fs/cgroup/memory.events")


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("cgroup", "counter"), [V1_HOST, V1_CONTAINER, V2_HOST, V2_CONTAINER])
def test_what_is_ended_meanwhile_is_counted_and_what_was_before_is_not(
    tmp_path: Path, cgroup: str, counter: str
) -> None:
    put(tmp_path, "proc/self/cgroup", cgroup)
    put(tmp_path, counter, "low 0\nunder_oom 0\noom 9\noom_kill 3\n")
    put(tmp_path, "proc/vmstat", "nr_free_pages 1\noom_kill 7\n")
    kills = MemoryKills(str(tmp_path))
    assert kills.since(()) == {}
    put(tmp_path, counter, "oom_kill 5\n")
    put(tmp_path, "proc/vmstat", "oom_kill 9\n")
    assert kills.since(()) == {"cgroup": 2, "machine": 2}


def test_a_kernel_that_does_not_count_is_no_error(tmp_path: Path) -> None:
    put(tmp_path, "proc/vmstat", "nr_free_pages 1\n")
    assert MemoryKills(str(tmp_path)).since(()) == {}


def test_a_cgroup_that_goes_meanwhile_is_no_error(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", V2_CONTAINER[0])
    put(tmp_path, V2_CONTAINER[1], "oom_kill 3\n")
    kills = MemoryKills(str(tmp_path))
    (tmp_path / V2_CONTAINER[1]).unlink()
    assert kills.since(()) == {}


KILL = "4,{n},{n},-;Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:9kB, anon-rss:8kB, UID:0\n"


def machine(root: Path, pids: str) -> Path:
    """Put counters, this process's namespace of process numbers, and a kernel log with an old line."""
    put(root, "proc/self/cgroup", V2_CONTAINER[0])
    put(root, V2_CONTAINER[1], "oom_kill 3\n")
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/pid").symlink_to(pids)
    put(root, "dev/kmsg", KILL.format(n=1, pid=5, name="earlier"))
    return root / "dev/kmsg"


def kill(root: Path, log: Path) -> None:
    put(root, V2_CONTAINER[1], "oom_kill 5\n")
    with log.open("a") as file:
        file.write("6,2,2,-;usb 1-1: new device\n")
        file.write(KILL.format(n=3, pid=5, name="VLLM::Worker") + " SUBSYSTEM=memory\n")
        file.write(KILL.format(n=4, pid=6, name="another's"))


@pytest.mark.parametrize(
    ("namespace", "ours", "found"),
    [
        ("pid:[4026531836]", {5, 7}, {"cgroup": 2, "processes": ["VLLM::Worker (5)"]}),
        ("pid:[4026531836]", {7}, {"cgroup": 2, "processes": []}),
        ("pid:[4026532209]", {5}, {"cgroup": 2}),
    ],
    ids=["the workload's", "another's", "numbers of another namespace"],
)
def test_the_workload_s_processes_are_picked_out_of_the_kernel_s_log(
    tmp_path: Path, namespace: str, ours: set[int], found: dict[str, object]
) -> None:
    log = machine(tmp_path, namespace)
    kills = MemoryKills(str(tmp_path))
    assert kills.since(ours) == {}
    kill(tmp_path, log)
    assert kills.since(ours) == found
