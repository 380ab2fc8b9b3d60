"""Ranks as the tasks of one Slurm step, inside an allocation.

`srun` gets flags to let the others run when one rank fails, and it is never signalled: it would have every task killed
at once, before a rank could write its end. It has its own session and files and outlives this program, and its exit
status is not used: each rank writes its own record, on its own node, into the folder of the attempt.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.execution.job_builder import PACKAGES, StepSettings, job_for
from vdbg_env.adapters.placement.ending_rule import EndingRule
from vdbg_env.adapters.placement.followed import FollowedAttempt
from vdbg_env.adapters.placement.rank.orders import ENDED, Orders
from vdbg_env.adapters.placement.records import RankRecords
from vdbg_env.adapters.placement.slurm.attempt import SlurmStep
from vdbg_env.adapters.placement.slurm.commands import Allocation, SlurmCommands
from vdbg_env.application.ports.places import Scratch
from vdbg_env.application.ports.steps import Layout
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.reading import opened
from vdbg_env.common.stop import waiting
from vdbg_env.common.writing import open_file, write_whole
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.machine.ranks import master_port, ranked

RANK = PACKAGES / "vdbg_env" / "adapters" / "placement" / "rank" / "__main__.py"
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
            f"--error={where / SRUN_SAID}", *self._extra, sys.executable, "-I", str(RANK),
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
