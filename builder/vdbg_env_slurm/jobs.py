"""Get a run the nodes that it needs: queue it as a batch job, show the script of that job, or start it by salloc."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import vdbg_env
from vdbg_env.common.errors import BadInput, HostNotAble, quoted
from vdbg_env.common.programs import ProgramRunner, Programs
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, part_of
from vdbg_env.record.runs import JOB_OUTPUT, JOB_SCRIPT, find_run, runs_home
from vdbg_env.run.begin import RunbookRequest, resumed_placement
from vdbg_env.run.placement import PlacementRequest
from vdbg_env.run.session import Session, no_run_in
from vdbg_env.runbook.state import Facts
from vdbg_env_slurm.placement import NOT_HERE

# A job inherits no PYTHONPATH, and no folder of the submitting shell may come before ours.
_START = "import sys; sys.path.insert(0, {0!r}); from vdbg_env.cli import main; sys.exit(main())"
_ENGINE = (sys.executable, "-I", "-c", _START.format(str(Path(vdbg_env.__file__).parents[1])))
# A lost node must not start the job again in the same folders, nor end what the other nodes still do; and the
# controller keeps the environment of the submitting shell in its state, unless it exports none.
_ALWAYS = ("--no-requeue", "--no-kill", "--export=NONE")
_SBATCH_S = 60.0


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A whole run as a job of a queue.

    `engine` are the words that start this program on the batch node, `words` those that begin the run and `resume`
    those that continue it. `setup` is a shell file read there first; `arguments` are for the queue's program, unread.
    """

    name: str
    folder: str
    engine: tuple[str, ...]
    words: tuple[str, ...]
    resume: tuple[str, ...]
    nodes: int | None = None
    ranks: int | None = None
    setup: str = ""
    arguments: tuple[str, ...] = ()


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


def queue_run(
    request: RunbookRequest, *, setup: str, arguments: tuple[str, ...], show_only: bool, say: Callable[[str], None]
) -> str:
    """Lint the runbook, queue the job and return its number in words; with `show_only` return its script alone."""
    Session(request, say).check("slurm", interactive=False)
    folder = _folder(request)
    no_run_in(RunDirectory(folder), request.runbook)
    asked = request.placement or PlacementRequest()
    first, *others = _request_words(request)
    job = BatchJob(
        name=f"vdbg-{request.runbook}",
        folder=str(folder),
        engine=_ENGINE,
        words=(first, "--run-dir", str(folder), *others),
        resume=("runbook", "--batch", "--resume", str(folder)),
        nodes=asked.nodes,
        ranks=asked.ranks,
        setup=setup,
        arguments=arguments,
    )
    jobs = SlurmQueue(Programs())
    if show_only:
        return jobs.script(job)
    number = jobs.submit(job)
    say(f"why it waits: squeue --job {number}; follow it with: tail -F {quoted(folder / 'slurm.txt')}")
    say(f"its report: vdbg-env runs report {quoted(folder)}")
    return f"job {number}, to be kept in {folder}\n"


def run_in_allocation(request: RunbookRequest, words: tuple[str, ...], say: Callable[[str], None]) -> int:
    """Let salloc start the same command line, given by its words, once it has the nodes; it takes this one's place."""
    asked = request.placement or PlacementRequest()
    nodes, ranks = asked.nodes, asked.ranks
    if request.resume:
        head = find_run(request.resume, os.environ).read_head()
        known = resumed_placement(head, asked) or asked
        nodes, ranks, asked = known.nodes or part_of(head, "facts", Facts).nodes, known.ranks, known
    else:
        at_a_terminal = not request.batch and sys.stdin.isatty() and sys.stderr.isatty()
        Session(request, say).check("slurm", interactive=at_a_terminal)
    queue = SlurmQueue(Programs())
    flags = queue.allocation_flags(request.runbook, nodes=nodes, ranks=ranks, arguments=asked.arguments)
    gets = f"no allocation here: {shlex.join(flags)} gets one and ends it with the run"
    say(f"{gets}; --submit queues a batch job instead")
    sys.stdout.flush()
    os.execvp(flags[0], [*flags, *_ENGINE, *words])


def _folder(request: RunbookRequest) -> Path:
    """Return the folder that the run will be kept in: it must be known before the run begins."""
    started = datetime.now(UTC)
    name = f"{started:%Y%m%d-%H%M%S}-{request.runbook}-{secrets.token_hex(2)}"
    return (request.run_dir or runs_home(os.environ) / name).absolute()


def _request_words(request: RunbookRequest) -> Iterator[str]:
    """Yield the words of the engine's command that are the request's."""
    placement = request.placement
    yield from ("runbook", request.runbook, "--on", "slurm", "--batch")
    yield from (word for file in request.files for word in ("--file", str(file.absolute())))
    yield from (word for name, value in request.inputs.items() for word in ("--input", f"{name}={value}"))
    if request.total_s is not None:
        yield from ("--total-time", f"{request.total_s:g}s")
    if request.disk_floor is not None:
        yield from ("--disk-floor", f"{request.disk_floor}b")
    if request.pseudonyms:
        yield "--pseudonyms"
    for name, value in (("--nodes", placement and placement.nodes), ("--ranks", placement and placement.ranks)):
        if value:
            yield from (name, str(value))
    if scratch := placement and placement.scratch:
        yield from ("--scratch", scratch.folder, "--scratch-limit", f"{scratch.limit}b")
    yield from (f"--slurm-arg={word}" for word in (placement.arguments if placement else ()))
    if request.from_run:
        yield from ("--from", str(find_run(request.from_run, os.environ).path))
    if request.argv:
        yield from ("--", *request.argv)
