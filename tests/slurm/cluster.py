"""A private Slurm cluster, its allocations, and the placement in one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.steps import python
from vdbg_env.common.programs import Programs
from vdbg_env.evidence.finding import Observation
from vdbg_env.run.job import StepSettings
from vdbg_env.runbook.model import OnFirstFailure, Placement
from vdbg_env.runbook.state import Invocation
from vdbg_env_slurm.placement import Allocation, SlurmCommands, SlurmRanks

SCRIPT = Path(__file__).with_name("cluster.sh")
QUICKLY = Placement(on_first_failure=OnFirstFailure(wait_s=0.5))
RANK = "import os,sys,time,signal\nrank=int(os.environ['SLURM_PROCID'])\n"


def missing() -> str | None:
    """Return why there can be no cluster here."""
    absent = [name for name in ("slurmctld", "slurmd", "munged", "srun", "salloc") if shutil.which(name) is None]
    if absent:
        return f"no Slurm here: {', '.join(absent)} (scripts/prepare-tests installs it)"
    return None if os.geteuid() == 0 else "a private Slurm cluster needs root"


def until(seen: Callable[[], Any], within_s: float = 20.0) -> Any:
    """Return what `seen` returns once it is true."""
    end = time.monotonic() + within_s
    while not (found := seen()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


@dataclass
class Cluster:
    folder: Path
    nodes: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return {**clean, "SLURM_CONF": str(self.folder / "slurm.conf"), **self.settings}

    def verb(self, *words: str) -> str:
        verb, *rest = words
        argv = [str(SCRIPT), verb, str(self.folder), *rest]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def start(self) -> None:
        self.verb("start", str(self.nodes))

    def run(self, *argv: str) -> str:
        """Run one of Slurm's programs and return what it says."""
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    def steps_and_tasks(self) -> list[str]:
        said = self.verb("status").splitlines()[-1]
        return said.removeprefix("steps and tasks:").split()

    def of_job(self, job: str) -> list[str]:
        """Return the processes of one job that still live."""
        marks, found = (f"[{job}.".encode(), f"SLURM_JOB_ID={job}\0".encode()), []
        for pid in self.steps_and_tasks():
            with suppress(OSError):  # it has ended since
                process = Path("/proc") / pid
                said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
                found += [pid] if any(mark in said for mark in marks) else []
        return found

    @contextmanager
    def allocated(self, nodes: int, *words: str) -> Iterator[Allocated]:
        argv = ["salloc", "--no-shell", f"--nodes={nodes}", f"--ntasks={nodes}", *words]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        job = done.stderr.split("Granted job allocation ")[-1].split()[0]
        assert job.isdigit(), done.stderr
        try:
            hosts = self.run("squeue", "--noheader", "--jobs", job, "--format", "%N").strip()
            yield Allocated(cluster=self, job=job, hosts=hosts)
        finally:
            subprocess.run(["scancel", job], env=self.environment, check=False)
            until(lambda: not self.of_job(job))  # what another test has left behind is that test's failure


@dataclass
class Allocated:
    cluster: Cluster
    job: str
    hosts: str

    @property
    def environment(self) -> dict[str, str]:
        return {**self.cluster.environment, "SLURM_JOB_ID": self.job, "SLURM_JOB_NODELIST": self.hosts}

    def ranks(self, folder: Path, *, ranks: int | None = None, **fields: Any) -> SlurmRanks:
        """Return the placement; the programs of Slurm read this process's environment, so it is set there."""
        environment = {**self.environment, **fields.pop("environment", {})}
        slurm = SlurmCommands(_Programs(environment))
        found = slurm.allocation(environment)
        assert isinstance(found, Allocation)
        settings = StepSettings(env={}, cwd=folder, mark=str(folder), inherits=True, inherited=environment)
        return SlurmRanks(slurm, found, settings, environment=environment, ranks=ranks, nodes=None, **fields)


class _Programs(Programs):
    """Programs with an environment of their own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._environment = environment

    def run(self, argv: Any, *, timeout_s: float = 60.0) -> Any:
        kept = {name: value for name, value in self._environment.items() if name.startswith("SLURM")}
        return super().run(["env", *(f"{name}={value}" for name, value in kept.items()), *argv], timeout_s=timeout_s)


def ranked(code: str, **fields: Any) -> Invocation:
    """Return an invocation of a Python program that knows its rank."""
    # Its own time limit is far above what a busy machine takes to see what the test is about.
    return python(RANK + code, **{"placement": QUICKLY, "timeout_s": 600.0, **fields})


def ends(started: Any, within_s: float = 40.0) -> dict[int, Observation]:
    seen = started.wait(within_s)
    assert seen is not None, "the attempt did not end in time"
    assert [one.rank for one in seen] == list(range(len(seen)))
    return {one.rank: one for one in seen}


__all__ = ["Allocated", "Cluster", "ends", "missing", "ranked", "until"]
