"""A supervisor that is killed: what carries no mark is ended all the same, by each means that a place may allow."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.steps import place, runner
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import process_tree
from vdbg_env.supervisor.launch import launch
from vdbg_env.supervisor.proc import process

DETACHED = Path(__file__).parents[2] / "workloads" / "detached.py"
MEANS = [*((kind,) for kind in process_tree.KINDS), ()]


def allowed(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return `kinds`; skips where this machine lets no cgroup of them be made."""
    if kinds:
        made = process_tree.make_cgroup(f"{process_tree.PREFIX}test-{os.getpid()}", kinds)
        if made is None:
            pytest.skip(f"no {kinds[0]} can be made here")
        assert made.remove()
    return kinds


def until(path: Path, text: str = "") -> str:
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        if path.exists() and text in path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path.name} never held {text!r}")


@pytest.mark.parametrize("kinds", MEANS, ids=lambda kinds: kinds[0] if kinds else process_tree.LIST)
@pytest.mark.parametrize("mode", ["title", "bare", "double"])
def test_nothing_survives_a_killed_supervisor(tmp_path: Path, mode: str, kinds: tuple[str, ...]) -> None:
    directory = place(tmp_path)
    invocation = Invocation(step="step", attempt=1, argv=(sys.executable, str(DETACHED), mode, str(tmp_path)))
    made = runner(tmp_path, cgroups=allowed(kinds))
    lost = made.start(invocation, directory)
    child = int(until(tmp_path / "pid"))
    until(directory / process_tree.LISTED, f"\n{child} ")
    start = process(child)
    said = [json.loads(line) for line in (directory / "supervisor.json").read_text().splitlines()]
    assert said[1]["held_by"] == (kinds[0] if kinds else process_tree.LIST)
    assert said[1]["pid_namespace"] == Path("/proc/self/ns/pid").stat().st_ino
    os.kill(said[0]["pid"], signal.SIGKILL)

    resumed = runner(tmp_path, cgroups=kinds).adopt(invocation, directory)
    assert resumed is not None
    found = resumed.wait(30)
    assert found is not None and found.ended.by is EndedBy.ENGINE_LOST
    assert lost.wait(30) == found
    left = process(child)
    assert left is None or start is None or left.start != start.start or left.state in "ZX"
    assert not said[1]["cgroup"] or not Path(said[1]["cgroup"]).exists()
    assert not [note for note in found.notes if "could not be killed" in note]


@pytest.mark.parametrize("kinds", MEANS, ids=lambda kinds: kinds[0] if kinds else process_tree.LIST)
def test_a_step_that_ends_leaves_no_cgroup_and_says_what_held_it(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    directory = place(tmp_path)
    invocation = Invocation(step="step", attempt=1, argv=(sys.executable, "-c", "print('out')"))
    found = runner(tmp_path, cgroups=allowed(kinds)).start(invocation, directory).wait(30)
    assert found is not None and found.ended.clean
    assert found.held_by == (kinds[0] if kinds else process_tree.LIST)
    said = [json.loads(line) for line in (directory / "supervisor.json").read_text().splitlines()]
    assert not said[1]["cgroup"] or not Path(said[1]["cgroup"]).exists()


def started(cgroup: process_tree.Cgroup) -> tuple[bytes, bool]:
    """Return the cgroups of a program that was started in one, by its own account, and whether it got in."""
    child = launch(("/bin/cat", "/proc/self/cgroup"), {}, "/", cgroup=cgroup)
    os.waitpid(child.pid, 0)
    said = os.read(child.stdout, 1 << 16)
    os.close(child.stdout)
    os.close(child.stderr)
    return said, child.in_cgroup


@pytest.mark.parametrize("kind", process_tree.KINDS)
def test_a_program_starts_in_its_cgroup(kind: str) -> None:
    name = f"{process_tree.PREFIX}test-{os.getpid()}"
    group = process_tree.make_cgroup(name, allowed((kind,)))
    assert group
    group.kill()  # what was killed there before changes nothing
    said, in_cgroup = started(group)
    assert f"/{name}\n".encode() in said and in_cgroup
    assert group.remove()


@pytest.mark.parametrize("kind", process_tree.KINDS)
def test_what_killed_supervisors_left_is_removed_and_what_is_new_or_used_is_not(kind: str) -> None:
    name = f"{process_tree.PREFIX}test-{os.getpid()}"
    allowed((kind,))
    left, new, used = (process_tree.make_cgroup(f"{name}-{word}", (kind,)) for word in ("left", "new", "used"))
    assert left and new and used
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as member:
        Path(used.path, "cgroup.procs").write_text(str(member.pid))
        for old in (left, used):
            os.utime(old.path, (0, 0))
        group = process_tree.make_cgroup(name, (kind,))
        assert [Path(one.path).is_dir() for one in (left, new, used)] == [False, True, True]
        member.kill()
    assert group and all(one.remove() for one in (group, new, used))


def test_a_cgroup_that_cannot_be_entered_is_done_without(tmp_path: Path) -> None:
    tree = process_tree.AttemptTree("mark", str(tmp_path), ())
    tree.cgroup = process_tree.Cgroup(process_tree.V2, str(tmp_path / "gone"))
    said, in_cgroup = started(tree.cgroup)
    assert said and not in_cgroup
    tree.not_entered()
    assert tree.held_by == process_tree.LIST
    tree.close()


def test_a_list_of_an_earlier_boot_or_another_process_s_start_names_nothing(tmp_path: Path) -> None:
    me = process(os.getppid())
    assert me is not None
    listing = tmp_path / process_tree.LISTED
    listing.write_text(f"another-boot\n{me.pid} {me.start}\n")
    assert process_tree.end(str(tmp_path), "NO_SUCH_MARK", "x") == []
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    listing.write_text(f"{boot}{me.pid} {me.start + 1}\nnonsense\n-5 0\n")
    assert process_tree.end(str(tmp_path), "NO_SUCH_MARK", "x") == []
    after = process(me.pid)
    assert after is not None and after.start == me.start  # its state (running, asleep) is another each time


def test_only_a_cgroup_of_the_attempt_s_own_name_is_believed(tmp_path: Path) -> None:
    name = process_tree.cgroup_name("mark")
    mounts = [str(Path(one.path).parent) for one in process_tree.cgroup_places(name)]
    foreign = [*mounts, f"{tmp_path}/{name}", *(f"{mount}/../{name}" for mount in mounts)]
    (tmp_path / name).mkdir()
    assert process_tree.existing_cgroups(name, foreign) == []


def test_the_list_stays_short_while_a_workload_starts_many_processes(tmp_path: Path) -> None:
    tree = process_tree.AttemptTree("mark", str(tmp_path), ())
    me = process(os.getpid())
    assert me is not None
    tree.note([me])
    for pid in range(10_000):
        tree.note([me._replace(pid=pid + 5_000_000)])
    lines = (tmp_path / process_tree.LISTED).read_text().splitlines()
    assert len(lines) < 5_000
    assert f"{me.pid} {me.start}" in lines
    assert f"5009999 {me.start}" in lines
    tree.close()
