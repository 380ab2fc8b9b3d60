"""Queue a whole run as one Slurm job: a batch script that runs the engine, and the engine again if it was killed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from vdbg_env.adapters.placement.slurm.commands import NOT_HERE
from vdbg_env.application.ports.places import BatchJob
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.record.runs import JOB_OUTPUT, JOB_SCRIPT

# A lost node must not start the job again in the same folders, nor end what the other nodes still do; and the
# controller keeps the environment of the submitting shell in its state, unless it exports none.
_ALWAYS = ("--no-requeue", "--no-kill", "--export=NONE")
_SBATCH_S = 60.0


class SlurmQueue:
    """Queues whole runs by sbatch."""

    def __init__(self, programs: ProgramRunner) -> None:
        self._programs = programs

    def script(self, job: BatchJob) -> str:
        """Return the script of a job; raises BadInput for a command line with a secret."""
        if Redactor().argv(job.words) != job.words:
            raise BadInput(
                "the command line has a secret, and Slurm keeps the script of a job in its own files",
                next_step="export it in a file that only you may read, and give that with --setup FILE",
            )
        broken = next((word for word in _words(job) if "\n" in word), None)
        if broken is not None:
            raise BadInput(
                f"{broken!r} has two lines, and cannot be an argument of sbatch",
                next_step="give each argument its own --submit-arg, and a --run-dir without a line end",
            )
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {shlex.quote(word)}" for word in _words(job)),
            "unset SLURM_EXPORT_ENV  # the ranks get the environment of this script",
            *([f". {shlex.quote(job.setup)}"] if job.setup else []),
            f'engine() {{ {shlex.join(job.engine)} "$@"; }}',
            f"engine {shlex.join(job.words)}",
            "status=$?",
            "# Killed, and not asked to end: the ranks run on, and the next engine takes them over.",
            'if [ "$status" -gt 128 ] && [ "$status" -ne 130 ] && [ "$status" -ne 143 ]; then',
            f"    engine {shlex.join(job.resume)}",
            "    status=$?",
            "fi",
            "exit $status",
        ]
        return "\n".join(lines) + "\n"

    def allocation_flags(
        self, runbook: str, *, nodes: int | None, ranks: int | None, arguments: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return salloc with its flags, a command to follow; raises HostNotAble without salloc.

        A node that is lost must not end what the others still do.
        """
        if self._programs.which("salloc") is None:
            raise HostNotAble("--on slurm needs salloc, which is not installed here", next_step=NOT_HERE)
        counts = [f"{flag}={count}" for flag, count in (("--nodes", nodes), ("--ntasks", ranks or nodes)) if count]
        return ("salloc", f"--job-name=vdbg-{runbook}", "--no-kill", *counts, *arguments)

    def submit(self, job: BatchJob) -> str:
        """Queue a job, its script kept in its folder, and return its number; raises HostNotAble when it is refused."""
        text = self.script(job)
        RunDirectory(Path(job.folder)).create()
        path = Path(job.folder) / JOB_SCRIPT
        path.write_text(text)
        # Given again, as variables such as SBATCH_EXPORT are stronger than what is written in a script.
        if self._programs.which("sbatch") is None:
            raise HostNotAble("--submit needs sbatch, which is not installed here", next_step=NOT_HERE)
        done = self._programs.run(["sbatch", "--parsable", *_words(job), str(path)], timeout_s=_SBATCH_S)
        number = re.match(r"\d+", done.stdout)
        if done.code or not number:
            raise HostNotAble(
                f"sbatch refused the job with status {done.code}",
                cause="an argument of --submit-arg, or a limit of the site",
                details=tuple(done.stderr.strip().splitlines()[-5:]),
                next_step=f"read {path}; sbatch takes it as it is",
            )
        return number[0]


def _words(job: BatchJob) -> Iterator[str]:
    yield f"--job-name={job.name}"
    yield from _ALWAYS
    yield f"--output={job.folder.replace('%', '%%')}/{JOB_OUTPUT}"
    if job.nodes:
        yield f"--nodes={job.nodes}"
    if job.ranks:
        yield f"--ntasks={job.ranks}"
    yield from job.arguments
