"""Ranks through Slurm's own programs: `srun` starts them, `scancel` ends them, `squeue` lists them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.files import NotAFile, open_file, opened, read_document, write_whole
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.common.stop import ToldToStop, waiting
from vdbg_env.evidence.finding import Ended, EndedBy, Observation
from vdbg_env.record.redactor import Pseudonyms
from vdbg_env.run.begin import Places
from vdbg_env.run.job import PACKAGES, StepSettings, job_for
from vdbg_env.run.orders import ENDED, NODE, Orders
from vdbg_env.run.placement import Layout, PlacementRequest, Scratch, StepPlace, StepPlacement
from vdbg_env.run.ranks import AGAIN_S, SILENT_S, EndingRule, FollowedAttempt, RankRecords, RemoteRanks, Repeated
from vdbg_env.runbook.machine import master_port, ranked
from vdbg_env.runbook.state import Invocation

_ANSWER_S = 30.0
NOT_HERE = "type it on a login node of the cluster, or install its client programs (slurm-client)"
# What a job may be while steps can be started in it.
_ALIVE = {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_SOON_S = 5.0  # a program that found no controller sleeps ever longer: a new one finds it sooner


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The job that this process runs in: its nodes in the order in which Slurm numbers them, and its tasks.

    `address` is where the first node is reached: its name need not be one of the network.
    """

    job: str
    hosts: tuple[str, ...]
    tasks: int | None = None
    address: str = ""

    def check(self, nodes: int) -> None:
        """Raise BadInput for more nodes than there are."""
        if nodes > len(self.hosts):
            raise BadInput(
                f"{nodes} nodes are asked for, and the allocation has {len(self.hosts)}",
                next_step=f"--nodes {len(self.hosts)}, or salloc --nodes {nodes}",
            )


class SlurmCommands:
    """The programs of Slurm that a run needs besides srun."""

    def __init__(self, programs: ProgramRunner) -> None:
        self._programs = programs

    def allocation(self, environment: Mapping[str, str]) -> Allocation:
        """Return the allocation around this process; raises BadInput outside of one."""
        job, nodes = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
        if not job or not nodes:
            raise BadInput(
                "--on slurm starts ranks inside an allocation, and this is not one",
                cause="SLURM_JOB_ID is not set here",
                next_step="salloc --nodes 2 first, or add --submit to queue the whole run as a batch job",
            )
        hosts = self.hosts(nodes)
        tasks = environment.get("SLURM_NTASKS")
        return Allocation(job=job, hosts=hosts, tasks=int(tasks) if tasks else None, address=self._address(hosts[0]))

    def left_of(self, allocation: Allocation) -> Allocation:
        """Return the allocation without the nodes that it has lost; raises HostNotAble where its job is over."""
        said = self._said("squeue", "--noheader", "--jobs", allocation.job, "--states=all", "--format", "%T %N")
        state, _, nodes = said.strip().partition(" ")
        if state not in _ALIVE:
            raise HostNotAble(
                f"job {allocation.job} is over" + (f": {state}" if state else ""),
                cause="its time limit, scancel or preemption",
                next_step=f"salloc --nodes {len(allocation.hosts)}, and there continue with --resume",
            )
        hosts = self.hosts(nodes) if nodes else ()
        if not hosts or hosts == allocation.hosts:
            return allocation
        return replace(allocation, hosts=hosts, address=self._address(hosts[0]))

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """Return the hosts of a list such as `n[0-2]`; no controller is asked."""
        return tuple(self._said("scontrol", "show", "hostnames", nodes).split())

    def _address(self, host: str) -> str:
        described = re.search(r"\bNodeAddr=(\S+)", self._said("scontrol", "--oneliner", "show", "node", host))
        return described[1] if described else host

    def kill_wait_s(self) -> float | None:
        """Return how long Slurm waits between SIGTERM and SIGKILL when it ends a job; None where it does not say."""
        found = re.search(r"^KillWait\s*=\s*(\d+)", self._said("scontrol", "show", "config"), re.MULTILINE)
        return float(found[1]) if found else None

    def time_left_s(self, job: str) -> float | None:
        """Return the seconds until a job's time limit; None where it has no limit."""
        said = self._said("squeue", "--noheader", "--jobs", job, "--format", "%L").strip()
        found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", said)
        if not found:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    def step(self, job: str, name: str) -> str | None:
        """Return JOB.STEP of the running step of this name; None where there is none."""
        said = self._said("squeue", "--noheader", "--steps", "--jobs", job, "--format", "%i %j")
        pairs = (line.split(maxsplit=1) for line in said.splitlines())
        return next((pair[0] for pair in pairs if len(pair) == 2 and pair[1].strip() == name), None)

    def terminate(self, step: str) -> None:
        """Send SIGTERM to every task of a step: their supervisors then end their trees and write their ends."""
        self._said("scancel", "--signal=TERM", step, within_s=_SOON_S)

    def _said(self, *argv: str, within_s: float = _ANSWER_S) -> str:
        if self._programs.which(argv[0]) is None:
            raise HostNotAble(f"--on slurm needs {argv[0]}, which is not installed here", next_step=NOT_HERE)
        done = self._programs.run(argv, timeout_s=within_s)
        if done.code:
            raise HostNotAble(
                f"{' '.join(argv[:3])} failed with status {done.code}",
                cause="the controller does not respond, or the job is over",
                details=tuple(done.stderr.strip().splitlines()[-3:]),
                next_step="type it again once `sinfo` responds; a run that had begun continues with --resume",
            )
        return done.stdout


# The ranks of one attempt as the tasks of a Slurm step, known by the files that they write.


AFTER_STEP_S = 5.0  # for a file system to show what a rank wrote last
AFTER_CANCEL_S = 60.0  # a rank of a lost node cannot be asked to end, and is not waited for any longer
_SAID_LINES = 5
_KILLED = (
    "Slurm killed it before its record was written: scancel of its step, or a job's end whose KillWait was too short"
)
_SIGKILL = "its supervisor was killed, and with it the workload: the node's or the job's memory, or a kill -9"
_SRUN_KILLED = "srun was killed, and Slurm killed its ranks: the memory of the node that starts them, or a kill -9"
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_TASKS_KILLED = re.compile(r": tasks? ([\d,-]+): Killed$")


class SlurmStep(RemoteRanks):
    """RunningRanks; `process` is the srun that this program started, None where another one did.

    `note` is what is to be known of all its ranks.
    """

    def __init__(
        self,
        *,
        directory: Path,
        records: RankRecords,
        ranks: int,
        slurm: SlurmCommands,
        job: str,
        name: str,
        process: subprocess.Popen[bytes] | None,
        note: str = "",
    ) -> None:
        super().__init__(directory, records, ranks)
        self._directory = directory
        self._slurm = slurm
        self._job = job
        self._name = name
        self._process = process
        self._notes = (note,) if note else ()
        self._over_at: float | None = None
        self._failures: dict[str, str] = {}  # srun's message about each node that Slurm has lost
        self._read_at = 0.0
        self._question = Repeated()
        self._running = True

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Return what the ends mean, and take srun's status, which says only whether the supervisors ran."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired, ToldToStop), waiting():
                self._process.wait(AFTER_STEP_S)
        return [replace(self._meant(one), notes=(*one.notes, *self._lived_on(one), *self._notes)) for one in seen]

    def _lived_on(self, seen: Observation) -> tuple[str, ...]:
        """Return what is to be known of a rank that wrote its end on a node that Slurm had lost."""
        said = self._node_failures().get(seen.host) if seen.ended.by is not EndedBy.NODE_LOST else None
        return (f"Slurm lost its node, and it ran on there ({said})",) if said else ()

    def _ask_to_end(self, times: int) -> bool:
        """Send so many SIGTERM, the second of which kills; returns False where no step runs, or Slurm is away."""
        with suppress(HostNotAble):
            step = self._step() or self._slurm.step(self._job, self._name)
            for _ in range(times if step else 0):
                self._slurm.terminate(step or "")
            return step is not None
        return False

    def _step(self) -> str | None:
        """Return JOB.STEP, which the first rank that started has written down."""
        for path in self._directory.glob(f"*/{NODE}"):
            with suppress(OSError, ValueError, KeyError):
                return f"{self._job}.{read_document(path)['step']}"
        return None

    def _meant(self, seen: Observation) -> Observation:
        """Return what a rank's end means: scancel reaches the workload too, which may be faster than its supervisor."""
        ended = seen.ended
        ours = self._request.sent_at is not None and ended.by in {EndedBy.EXIT, EndedBy.SIGNAL}
        if ours and (ended.signal == signal.SIGTERM or ended.code == 128 + signal.SIGTERM):
            return replace(seen, ended=replace(ended, by=EndedBy.CANCEL))
        return seen

    def _without_end(self, rank: int) -> Observation | None:
        """Return what is known of a rank whose step is over, or whose node is lost; None while it lives on.

        The others wait for a lost rank, for ever as a rule: it must not be known only when they have ended. Raises
        HostNotAble, with what srun said, when it started no rank.
        """
        if self._launcher_runs():
            self._over_at = None
            return self._lost_with_its_node(rank)
        if self._process and self._process.returncode and not self._seen and not self._records.any_started():
            raise self._never_started()
        now = time.monotonic()
        self._over_at = self._over_at or now
        if now < self._over_at + AFTER_STEP_S:
            return None
        folder = self._records.folder(rank)
        if folder is None:
            if not self._seen and not self._records.any_started():
                raise self._never_started()
            why = "no record of it was found: its node was lost before it started, or does not share the run's folder"
            return self._records.lost(rank, why)
        if found := self._records.half_written(folder):
            return found
        if (killed := self._killed(rank, folder.name.rpartition("-")[0])) is not None:
            return self._records.without_end(rank, killed)
        given_up = self._request.sent_at is not None and now > self._request.sent_at + AFTER_CANCEL_S
        if self._records.silent_for(folder) < SILENT_S and not given_up:
            return None
        if self._process is not None and self._process.returncode < 0:  # Slurm then kills every task of the step
            return self._records.without_end(rank, Ended(by=EndedBy.ENGINE_LOST, message=_SRUN_KILLED))
        said = self._node_failures().get(folder.name.rpartition("-")[0], "Slurm ended the step without it")
        return self._records.lost(rank, f"its node was lost: {said}")

    def _lost_with_its_node(self, rank: int) -> Observation | None:
        """Return what is known of a rank of a lost node while others run; None where its tasks still live there."""
        if not (failures := self._node_failures()) or (folder := self._records.folder(rank)) is None:
            return None
        said = failures.get(folder.name.rpartition("-")[0])
        if said is None or self._records.silent_for(folder) < SILENT_S:
            return None
        return self._records.half_written(folder) or self._records.lost(rank, f"its node was lost: {said}")

    def _node_failures(self) -> dict[str, str]:
        """Return srun's message about each node that Slurm has lost since the step began, read now and then."""
        if time.monotonic() >= self._read_at + AGAIN_S:
            self._read_at = time.monotonic()
            for line in _tail(self._directory / "srun.txt"):
                if found := _NODE_FAILURE.search(line):
                    with suppress(HostNotAble):
                        self._failures |= dict.fromkeys(self._slurm.hosts(found[1]), line.strip())
        return self._failures

    def _killed(self, rank: int, host: str) -> Ended | None:
        """Return the end of a rank that was killed on a node that Slurm has not lost, by what srun says."""
        said = _tail(self._directory / "srun.txt")
        if host in self._node_failures():
            return None
        if any(" CANCELLED AT " in line for line in said):
            return Ended(by=EndedBy.CANCEL, message=_KILLED)
        found = (_TASKS_KILLED.search(line) for line in said)
        if any(rank in _numbers(tasks[1]) for tasks in found if tasks):
            return Ended(by=EndedBy.ENGINE_LOST, message=_SIGKILL)
        return None

    def _launcher_runs(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        self._question.again(self._ask_whether_it_runs)
        return self._running

    def _ask_whether_it_runs(self) -> None:
        with suppress(HostNotAble):  # a controller that is away will be back with its state
            self._running = self._slurm.step(self._job, self._name) is not None

    def _never_started(self) -> HostNotAble:
        said = [line for line in _tail(self._directory / "srun.txt") if line.strip()]
        status = self._process.returncode if self._process is not None else None
        return HostNotAble(
            "srun started no rank" + (f" and ended with status {status}" if status is not None else ""),
            cause="it refused an argument, or the nodes do not share the run's folder",
            details=tuple(said[-_SAID_LINES:]),
            next_step="--run-dir on a file system that all nodes share; --slurm-arg passes arguments to srun",
        )


def _tail(path: Path) -> list[str]:
    try:
        with opened(path) as file:
            return file.read().decode(errors="replace").splitlines()
    except (FileNotFoundError, NotAFile):
        return []


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as `0,3-5`."""
    ends = ([int(end) for end in part.split("-")] for part in text.split(",") if part)
    return {number for end in ends for number in range(end[0], end[-1] + 1)}


# Ranks as the tasks of one Slurm step, inside an allocation.
#
# `srun` gets flags to let the others run when one rank fails, and it is never signalled: it would have every task
# killed at once, before a rank could write its end. It has its own session and files and outlives this program, and
# its exit status is not used: each rank writes its own record, on its own node, into the folder of the attempt.


# All is on disk when a rank ends: nothing is left for the interpreter to tidy up.
RANK = f"import os, sys; sys.path.insert(0, {str(PACKAGES)!r}); from vdbg_env.run.rank import main; os._exit(main())"
SRUN_SAID = "srun.txt"  # in the attempt's folder: what srun itself said
_STARTS_S = 60.0  # for an srun of another engine to start its ranks
_LOOK_S = 0.1
_QUIET_S = 5.0  # NFS shows a size that is up to three seconds old
_MARGIN_S = 2.0  # between our SIGKILL and Slurm's
# The site's own defaults may end all ranks with the first one that fails, wait a moment for the others and then kill
# them, or export nothing from a job that was submitted without its environment.
_ALWAYS = (
    "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--overlap", "--input=all", "--output=none", "--export=ALL",
)  # fmt: skip


class SlurmRanks:
    """A StepPlacement inside an allocation; `ranks` and `nodes` are None where a step or the allocation says it."""

    def __init__(
        self,
        slurm: SlurmCommands,
        allocation: Allocation,
        settings: StepSettings,
        *,
        environment: Mapping[str, str],
        ranks: int | None,
        nodes: int | None,
        extra: tuple[str, ...] = (),
        scratch: Scratch | None = None,
    ) -> None:
        self._slurm = slurm
        self._allocation = allocation
        self._left = allocation
        self._settings = settings
        self._environment = environment
        self._ranks = ranks
        self._nodes = nodes
        self._extra = extra
        self._scratch = scratch
        self._kill_wait: float | None = None

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks: as the command line says, else the step, else one on each task of the allocation."""
        return Layout(ranks=self._shape(invocation)[1])

    def start(self, invocation: Invocation, directory: Path) -> FollowedAttempt:
        """Start every rank by one srun and send them their orders; see `StepPlacement.start`."""
        where = directory.resolve()
        (where / ENDED).mkdir(exist_ok=True)
        self._left = self._slurm.left_of(self._allocation)  # a step on a node that was lost would wait for ever
        orders = self._orders(invocation, where)
        nodes, ranks = self._shape(invocation)
        crowded = ("--overcommit",) if self._left.hosts != self._allocation.hosts else ()
        argv = (
            "srun", f"--job-name={self._name(where)}", f"--nodes={nodes}", f"--ntasks={ranks}", *_ALWAYS, *crowded,
            f"--error={where / SRUN_SAID}", *self._extra, sys.executable, "-I", "-c", RANK,
        )  # fmt: skip
        process = self._launched(argv, where)
        assert process.stdin
        # srun may refuse to start: its message is in its file then, and `wait` reports them.
        with suppress(BrokenPipeError), process.stdin as pipe, waiting():
            write_whole(pipe.fileno(), orders.to_json())
        return self._attempt(invocation, where, orders, process)

    def adopt(self, invocation: Invocation, directory: Path) -> FollowedAttempt | None:
        """Take over the ranks of an engine that is gone; see `StepPlacement.adopt`."""
        where = directory.resolve()
        if not (where / ENDED).is_dir():
            return None
        # Slurm knows no step of an srun that has only begun; a second srun would start every rank twice.
        until = time.monotonic() + _STARTS_S
        with waiting():
            while not (begun := _begun(where)) and _srun_lives(where) and time.monotonic() < until:
                time.sleep(_LOOK_S)
        if not begun and self._slurm.step(self._allocation.job, self._name(where)) is None:
            return None
        return self._attempt(invocation, where, self._orders(invocation, where), None)

    def _launched(self, argv: tuple[str, ...], where: Path) -> subprocess.Popen[bytes]:
        try:
            with os.fdopen(open_file(where / SRUN_SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as said:
                with suppress(OSError):  # some file systems have no locks
                    fcntl.flock(said, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by srun for as long as it lives
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env=dict(self._environment),
                    cwd=where,
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            raise HostNotAble(
                f"srun cannot be started: {error.strerror}", next_step="install slurm-client, or run without --on slurm"
            ) from error

    def _attempt(
        self, invocation: Invocation, where: Path, orders: Orders, process: subprocess.Popen[bytes] | None
    ) -> FollowedAttempt:
        ranks = self._shape(invocation)[1]
        step = SlurmStep(
            directory=where,
            records=RankRecords(where, orders),
            ranks=ranks,
            slurm=self._slurm,
            job=self._allocation.job,
            name=self._name(where),
            process=process,
            note=self._crowded(invocation),
        )
        return FollowedAttempt(step, ranks, EndingRule(invocation, where, quiet_s=_QUIET_S))

    def _orders(self, invocation: Invocation, where: Path) -> Orders:
        nodes, ranks = self._shape(invocation)
        if self._kill_wait is None:
            self._kill_wait = self._slurm.kill_wait_s() or float("inf")
        grace = max(1.0, min(invocation.kill.grace_s, self._kill_wait - _MARGIN_S))
        cut = replace(invocation, kill=invocation.kill.model_copy(update={"grace_s": grace}))
        both = ranked(cut, ranks=ranks, nodes=nodes, master=self._left.address, port=master_port(str(where)))
        rank = where / "${{ rank.host }}-${{ rank.number }}"  # its folder, and the end of its mark
        return Orders(
            directory=str(where),
            step=invocation.step,
            attempt=invocation.attempt,
            first=job_for(both.first, rank, self._settings),
            others=job_for(both.others, rank, self._settings),
            rank_from="SLURM_PROCID",
            host_from="SLURMD_NODENAME",
            step_from="SLURM_STEP_ID",
            local_from="SLURM_LOCALID",
            scratch=self._scratch.folder if self._scratch else "",
            scratch_limit=self._scratch.limit if self._scratch else 0,
            artifacts=tuple(rule.model_dump() for rule in invocation.artifacts),
        )

    def _shape(self, invocation: Invocation) -> tuple[int, int]:
        """Return nodes and ranks, on what is left of lost nodes; raises BadInput for more nodes than there were."""
        asked = invocation.placement
        hosts = len(self._allocation.hosts)
        nodes = self._nodes or asked.nodes or (min(hosts, self._ranks) if self._ranks else hosts)
        ranks = self._ranks or (nodes * asked.per_node if asked.per_node else max(nodes, self._tasks(asked.nodes)))
        self._allocation.check(nodes)
        left = len(self._left.hosts)
        if nodes > left and not self._ranks:
            raise HostNotAble(
                f"{left} of {hosts} nodes are left, and this step has its ranks on {nodes}",
                cause=f"lost during an earlier step: {', '.join(self._lost())}",
                next_step=f"salloc --nodes {nodes}, and there continue with --resume; or begin again here with "
                f"--nodes {left}, or with --ranks {ranks} where ranks may share a node and its GPUs",
            )
        return min(nodes, left), ranks

    def _crowded(self, invocation: Invocation) -> str:
        """Return what is noted of an attempt whose ranks share the nodes that are left; empty of others."""
        nodes, ranks = self._shape(invocation)
        if ranks <= nodes or not (lost := self._lost()):
            return ""
        return (
            f"{ranks} ranks shared {nodes} nodes and their GPUs, and a failure may come of that (lost before: "
            f"{', '.join(lost)}); to have a rank on each node, begin again with --nodes {nodes} and without --ranks"
        )

    def _lost(self) -> list[str]:
        return [host for host in self._allocation.hosts if host not in self._left.hosts]

    def _tasks(self, nodes: int | None) -> int:
        return (self._allocation.tasks or 1) if nodes is None and self._nodes is None else 1

    def _name(self, where: Path) -> str:
        """Return a name of the attempt's step that no other step of the job has."""
        return f"vdbg-{hashlib.sha256(os.fsencode(where)).hexdigest()[:16]}"


def _begun(where: Path) -> bool:
    """Return whether a rank of the attempt has made its folder."""
    return any(path.is_dir() and path.name != ENDED for path in where.iterdir())


def _srun_lives(where: Path) -> bool:
    """Return whether the attempt's srun is known to live, by the lock that it has inherited."""
    try:
        with opened(where / SRUN_SAID) as said:
            fcntl.flock(said, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file, or no locks
        return False
    return False


def allocation_place(places: Places, asked: PlacementRequest) -> StepPlace:
    """Return the nodes of the Slurm allocation around this process; raises BadInput outside of one."""
    slurm = SlurmCommands(places.programs)
    allocation = slurm.allocation(places.environment)
    allocation.check(asked.nodes or 1)
    nodes = asked.nodes or len(allocation.hosts)

    def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
        settings = places.settings(
            places.programs,
            env={},
            mark=str(run),
            inherits=True,
            inherited=places.environment,
            sensitive=sensitive,
            pseudonyms=names,
        )
        return SlurmRanks(
            slurm,
            allocation,
            settings,
            environment=places.environment,
            ranks=asked.ranks,
            nodes=asked.nodes,
            extra=asked.arguments,
            scratch=asked.scratch,
        )

    return replace(
        places.here(),
        placement=placement,
        on="slurm",
        nodes=nodes,
        time_left_s=slurm.time_left_s(allocation.job),
        in_words={"steps run in": f"a Slurm allocation of {nodes} nodes", **_dumps(asked.scratch)},
    )


def _dumps(scratch: Scratch | None) -> dict[str, str]:
    if scratch is None:
        return {}
    limit = scratch.limit >> 20
    return {"dumps go to": f"{scratch.folder} of each node; all ranks together move at most {limit} MiB"}
