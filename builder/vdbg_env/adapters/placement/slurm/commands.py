"""Ask Slurm, and end a step: each answer is read from the text that every release of its programs prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.common.errors import BadInput, HostNotAble

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
