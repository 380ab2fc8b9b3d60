"""Ranks outlive the engine, srun and the controller, and end as they were asked to."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import Allocated, Cluster, ends, ranked, until
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.model import KillPolicy, Placement

PATIENT = Placement()
# Each rank writes that it runs, and goes on until a file says that it may end.
WAITS = "open('runs', 'w').close()\nwhile not os.path.exists('{go}'): time.sleep(0.05)\nraise SystemExit(rank)"


def waiting(folder: Path) -> str:
    return "os.chdir('${{ rank.dir }}')\n" + WAITS.format(go=folder / "go")


def running(attempt: Path, ranks: int = 3) -> None:
    until(lambda: len(list(attempt.glob("*/runs"))) == ranks)


def sruns(attempt: Path) -> list[int]:
    """Return both processes of the attempt's srun."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"srun" and any(os.fsencode(attempt) in word for word in words):
            found.append(int(folder.name))
    return sorted(found)


@pytest.mark.parametrize("lost", ["engine", "engine and srun"])
def test_the_next_engine_finds_every_end(allocation: Allocated, attempt: Path, lost: str) -> None:
    invocation = ranked(waiting(attempt), placement=PATIENT)
    first = allocation.ranks(attempt).start(invocation, attempt)
    running(attempt)
    assert first.wait(0.1) is None
    if lost == "engine and srun":  # as when the power of the batch node is cut: one alone would have the step killed
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none of the two sees the other go
            for pid in sruns(attempt):
                os.kill(pid, number)
    adopted = allocation.ranks(attempt).adopt(invocation, attempt)
    assert adopted is not None
    (attempt / "go").touch()
    assert [one.ended.code for one in ends(adopted).values()] == [0, 1, 2]
    ends(first)


def test_the_srun_of_an_engine_that_died_at_once_is_waited_for_and_no_second_one_is_started(
    allocation: Allocated, attempt: Path, tmp_path: Path
) -> None:
    """Slurm knows no step yet: a second srun in the same folder started every rank twice."""
    shim = tmp_path / "bin" / "srun"
    shim.parent.mkdir()
    shim.write_text('#!/bin/bash\nsleep 3\nPATH=${PATH#*:}\nexec srun "$@"\n')
    shim.chmod(0o755)
    invocation = ranked(waiting(attempt), placement=PATIENT)
    environment = {"PATH": f"{shim.parent}:{os.environ['PATH']}"}
    first = allocation.ranks(attempt, environment=environment).start(invocation, attempt)
    adopted = allocation.ranks(attempt).adopt(invocation, attempt)
    assert adopted is not None
    (attempt / "go").touch()
    assert [one.ended.code for one in ends(adopted).values()] == [0, 1, 2]
    ends(first)


def test_nothing_is_adopted_that_never_started(allocation: Allocated, attempt: Path) -> None:
    (attempt / "ended").mkdir()
    assert allocation.ranks(attempt).adopt(ranked("pass"), attempt) is None


def test_a_controller_that_comes_back_has_lost_nothing(cluster: Cluster, allocation: Allocated, attempt: Path) -> None:
    invocation = ranked(waiting(attempt), placement=PATIENT, timeout_s=90.0)
    started = allocation.ranks(attempt).start(invocation, attempt)
    running(attempt)
    cluster.verb("kill-controller")
    started.cancel()  # it cannot be asked now, and is asked again
    assert started.wait(0.5) is None
    cluster.start()
    assert {one.ended.by for one in ends(started).values()} == {EndedBy.CANCEL}


def test_a_cancel_lets_every_rank_write_its_end_and_never_signals_srun(
    allocation: Allocated, attempt: Path, tmp_path: Path
) -> None:
    shim = tmp_path / "bin" / "srun"
    shim.parent.mkdir()
    shim.write_text(
        "#!/bin/bash\nexec 3<&0\n"
        f"for s in INT TERM HUP QUIT USR1; do trap \"echo $s >> '{tmp_path}/signals'\" $s; done\n"
        f'touch "{tmp_path}/signals"\nPATH=${{PATH#*:}}\nsrun "$@" <&3 3<&- &\nexec 3<&-\nwait $!\n'
    )
    shim.chmod(0o755)
    environment = {"PATH": f"{shim.parent}:{os.environ['PATH']}"}
    started = allocation.ranks(attempt, environment=environment).start(
        ranked(waiting(attempt), placement=PATIENT), attempt
    )
    running(attempt)
    # Ctrl-C in a terminal is sent to all of its group: srun has a session of its own.
    assert os.getsid(0) not in {os.getsid(pid) for pid in sruns(attempt)}
    started.cancel()
    assert {one.ended.by for one in ends(started).values()} == {EndedBy.CANCEL}
    assert (tmp_path / "signals").read_text() == ""


def test_a_step_that_others_cancel_is_no_lost_node(cluster: Cluster, allocation: Allocated, attempt: Path) -> None:
    """Without a signal's name scancel kills the tasks of a step, and their supervisors, at once."""
    started = allocation.ranks(attempt).start(ranked(waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    cluster.run("scancel", f"{allocation.job}.{json.loads((attempt / 'n0-0' / 'node.json').read_text())['step']}")
    seen = ends(started)
    assert {one.ended.by for one in seen.values()} == {EndedBy.CANCEL}
    assert "Slurm killed it before its record was written" in str(seen[2].ended.message)


def test_a_rank_whose_supervisor_was_killed_is_no_lost_node(allocation: Allocated, attempt: Path) -> None:
    """What ends a supervisor is most often the node's memory: who looks for a broken node looks at the wrong thing."""
    started = allocation.ranks(attempt).start(ranked(waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    first, _, _ = (attempt / "n1-1" / "supervisor.json").read_text().partition("\n")
    os.kill(json.loads(first)["pid"], signal.SIGKILL)
    (attempt / "go").touch()
    seen = ends(started)
    assert [one.ended.by for one in seen.values()] == [EndedBy.EXIT, EndedBy.ENGINE_LOST, EndedBy.EXIT]
    assert "its supervisor was killed" in str(seen[1].ended.message)


def test_a_second_cancel_kills_what_will_not_end(allocation: Allocated, attempt: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + waiting(attempt)
    started = allocation.ranks(attempt).start(ranked(code, placement=PATIENT, kill=KillPolicy(grace_s=3.0)), attempt)
    running(attempt)
    started.cancel(firmly=True)
    seen = ends(started)
    assert {(one.ended.by, one.ended.signal) for one in seen.values()} == {(EndedBy.CANCEL, 9)}
    assert max(one.duration_s for one in seen.values()) < 30


def test_a_job_that_is_cancelled_still_gets_every_record(cluster: Cluster, attempt: Path) -> None:
    """Slurm kills KillWait (5 s here) after its SIGTERM: a step's own grace of 20 s is cut to what is left of it."""
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + waiting(attempt)
    with cluster.allocated(2) as short:
        started = short.ranks(attempt).start(ranked(code, placement=PATIENT, kill=KillPolicy(grace_s=20.0)), attempt)
        running(attempt, 2)
        cluster.run("scancel", short.job)
        seen = ends(started)
    assert {(one.ended.by, one.ended.signal) for one in seen.values()} == {(EndedBy.CANCEL, 9)}


def test_no_secret_is_in_any_file_and_nothing_of_ours_listens(
    cluster: Cluster, allocation: Allocated, attempt: Path
) -> None:
    secret = "hf_" + "Qw7" * 12
    code = (
        "print('my token is', os.environ['HF_TOKEN'], flush=True)\n"
        "open('${{ rank.dir }}/note', 'w').write(os.environ['HF_TOKEN'])\n"
    )
    found = allocation.ranks(attempt, environment={"HF_TOKEN": secret})
    started = found.start(ranked(code + waiting(attempt), placement=PATIENT), attempt)
    running(attempt)
    assert listening(map(int, cluster.steps_and_tasks())) == []
    (attempt / "go").touch()
    ends(started)
    assert "my token is [redacted" in (attempt / "n0-0" / "stdout").read_text()
    for folder in (cluster.folder, attempt):
        for path in folder.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path


def listening(pids: object) -> list[str]:
    """Return the programs among these processes, slurmstepd apart, that have a listening socket."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{words[9]}]" for words in lines if words[3] == "0A"}
    found = []
    for pid in pids:  # type: ignore[attr-defined]
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        links = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
        if name != "slurmstepd" and links & sockets:
            found.append(name)
    return found
