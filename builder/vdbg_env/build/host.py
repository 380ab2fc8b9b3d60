"""Build without any container: the same plan, run step by step below a private folder of this machine.

The toolchain is installed from PyPI wheels as in a container. Steps that change the system (apt) are left out; the
programs that they would install must be here already. Nothing is written outside the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, assert_never

import platformdirs

from vdbg_env.build.builder import (
    BuilderDescription,
    BuildEvent,
    BuildFailed,
    BuildOrder,
    BuildWarning,
    Built,
    OutputLine,
    StepEnded,
    StepStarted,
)
from vdbg_env.build.progress import TAIL_LINES, LineSplitter, Stream, explain_failure
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, quoted
from vdbg_env.common.programs import Completed, Programs, output_of
from vdbg_env.common.stop import Held
from vdbg_env.crash.files import BinaryFile, BinaryFiles, Buffer
from vdbg_env.engine.images import PushProgress
from vdbg_env.engine.trees import extract
from vdbg_env.image.context import ROOT
from vdbg_env.image.plan import OBJECTS, BuildPlan, CommandStep, CopyStep, Step
from vdbg_env.supervisor.proc import send_to_group

# Run the steps of a plan on this machine, each in a new session that ends with it.


_GRACE_S = 5.0

# What a step keeps from the environment. Everything else is dropped: a CUDAFLAGS or NVCC_APPEND_FLAGS set there
# would change what is compiled, and a container never sees it either.
_KEPT = {
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
}  # fmt: skip
_KEPT_BEGINNINGS = ("LC_", "PIP_", "UV_")


class StepFailed(Exception):
    """A step failed; carries the event that reports it."""

    def __init__(self, event: BuildFailed) -> None:
        super().__init__(event.title)
        self.event = event


class HostSteps:
    """The steps of one order below one folder; `environment` is what programs of the build run in afterwards.

    `objects` is the folder of all caches of compiled objects.
    """

    def __init__(self, order: BuildOrder, prefix: Path, *, objects: Path) -> None:
        self._order = order
        self._prefix = prefix
        self._objects = objects
        kept = kept_environment()
        self.environment = {**kept, **order.plan.environment(str(prefix), kept)}

    def all_cached(self) -> Iterator[BuildEvent]:
        """Report every step as taken from the cache."""
        for number, step in enumerate(self._order.plan.steps, 1):
            yield self._start(number, step)
            yield StepEnded(key=step.id, cached=True, duration_s=0.0)

    def run(self, context: Path) -> Iterator[BuildEvent]:
        """Run every step in order; raises StepFailed at the first that fails."""
        for number, step in enumerate(self._order.plan.steps, 1):
            if isinstance(step, CommandStep) and step.where == "container":
                yield BuildWarning(text=f"left out without a container: {step.title}")
                continue
            yield self._start(number, step)
            since = time.monotonic()
            match step:
                case CopyStep():
                    self._copy(step, context)
                case CommandStep():
                    yield from self._run(step, since)
                case _:
                    assert_never(step)
            yield StepEnded(key=step.id, cached=False, duration_s=time.monotonic() - since)

    def _start(self, number: int, step: Step) -> StepStarted:
        return StepStarted(key=step.id, title=step.title, number=number, total=len(self._order.plan.steps))

    def _copy(self, step: CopyStep, context: Path) -> None:
        source, target = context / step.source, self._prefix / step.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def _run(self, step: CommandStep, since: float) -> Iterator[BuildEvent]:
        folder = self._prefix / step.cwd
        folder.mkdir(parents=True, exist_ok=True)
        if step.objects is not None:
            self._show_objects(step.objects)
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        with Held() as held:
            process = subprocess.Popen(
                ["/bin/sh", "-c", step.script()],
                cwd=folder,
                env={**self.environment, **self._order.build_args, **self._secrets(step)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                held.release()
                for line in _lines(process, step.id):
                    tail.append(line.text)
                    yield line
                code = process.wait()
            finally:
                _end(process)
        if code != 0:
            status = code if code >= 0 else 128 - code
            yield StepEnded(
                key=step.id, cached=False, duration_s=time.monotonic() - since, error=f"exit status {status}"
            )
            raise StepFailed(self._failure(step, status, tuple(tail)))

    def _show_objects(self, name: str) -> None:
        """Link the kept objects to where the step looks for them; they outlive the folder of the build."""
        kept, shown = self._objects / name, self._prefix / OBJECTS
        kept.mkdir(parents=True, exist_ok=True)
        shown.unlink(missing_ok=True)
        shown.symlink_to(kept)

    def _failure(self, step: CommandStep, status: int, tail: tuple[str, ...]) -> BuildFailed:
        cause, next_step = explain_failure(title=step.title, code=status, message="", tail=tail, jobs=self._order.jobs)
        return BuildFailed(key=step.id, title=step.title, code=status, cause=cause, next_step=next_step, tail=tail)

    def _secrets(self, step: CommandStep) -> dict[str, str]:
        """Return the variables with the paths of a step's secrets; they are read in place, never copied."""
        found: dict[str, str] = {}
        for use in step.secrets:
            path = self._order.secrets.get(use.id)
            if path is None:
                continue
            if use.variable is None:
                raise HostNotAble(
                    f"the secret {use.id} must stand at {use.target}, which a bare machine has no private copy of",
                    next_step="build with Docker and docker-buildx",
                )
            found[use.variable] = str(path)
        return found


def kept_environment() -> dict[str, str]:
    """Return what a step keeps of this process's environment."""
    return {name: value for name, value in os.environ.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name in _KEPT or name.startswith(_KEPT_BEGINNINGS) or name.lower().endswith("_proxy")


def _lines(process: subprocess.Popen[bytes], key: str) -> Iterator[OutputLine]:
    assert process.stdout is not None and process.stderr is not None
    splitters: dict[IO[bytes], tuple[Stream, LineSplitter]] = {
        process.stdout: ("stdout", LineSplitter()),
        process.stderr: ("stderr", LineSplitter()),
    }
    for pipe, piece in output_of(process):
        stream, splitter = splitters[pipe]
        yield from (OutputLine(key=key, text=text, stream=stream) for text in splitter.feed(piece))
    for stream, splitter in splitters.values():
        yield from (OutputLine(key=key, text=text, stream=stream) for text in splitter.rest())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the step started, politely then firmly, its background children too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send_to_group(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


_PREFIX = "host:"
_RECORD = "vdbg-env.json"


class HostBuilder:
    """`ImageBuilder` on a bare machine: an "image" is a folder, its id is `host:` and the folder's path."""

    def __init__(self, *, why: str, home: Path | None = None) -> None:
        self._why = why
        self._home = home or Path(platformdirs.user_cache_dir("vdbg-env")) / "host"

    def describe(self) -> BuilderDescription:
        version = f"{platform.system()} {platform.release()}"
        return BuilderDescription(
            name="host", version=version, why=self._why, capabilities=frozenset({"cache-mounts", "secrets"})
        )

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """See `ImageBuilder.build`; a build that does not end well takes its folder with it."""
        _check_able(order.plan)
        prefix = self._home / order.plan.digest.removeprefix("sha256:")[:16]
        with _locked(prefix.with_suffix(".lock")):
            steps = HostSteps(order, prefix, objects=self._home.parent / "objects")
            if _read_record(prefix) is not None and not order.no_cache:
                yield from steps.all_cached()
                yield Built(image_id=f"{_PREFIX}{prefix}")
                return
            yield BuildWarning(text=f"built on this machine's own system in {prefix}, not on {order.plan.base}")
            yield from self._build_anew(order, steps, prefix)

    def _build_anew(self, order: BuildOrder, steps: HostSteps, prefix: Path) -> Iterator[BuildEvent]:
        shutil.rmtree(prefix, ignore_errors=True)
        whole = False
        try:
            prefix.mkdir(parents=True)
            context = prefix / ".context"
            extract(order.context, context)
            try:
                yield from steps.run(context)
            except StepFailed as failed:
                yield failed.event
                return
            shutil.rmtree(context)
            plan = order.plan
            record = _Record(plan=plan.digest, environment=steps.environment, labels=dict(plan.labels), names=())
            record.write(prefix)
            whole = True
        except OSError as error:
            raise EngineFailed(
                f"cannot build in {prefix}: {error.strerror}",
                cause="the disk is full, or the folder is not yours",
                next_step=f"df -h {quoted(self._home)}; XDG_CACHE_HOME=DIR puts the folder elsewhere",
            ) from error
        finally:
            if not whole:
                shutil.rmtree(prefix, ignore_errors=True)
        yield Built(image_id=f"{_PREFIX}{prefix}")

    def files(self, image_id: str, folders: Sequence[str]) -> AbstractContextManager[Iterator[BinaryFile]]:
        """See `ImageBuilder.files`; folders are named as in an image, below its root."""
        prefix = _prefix_of(image_id)
        return contextlib.closing(_candidates(prefix, folders))

    def execute(
        self, image_id: str, argv: Sequence[str], *, timeout_s: float = 600.0, lent: Mapping[str, Buffer] | None = None
    ) -> Completed:
        """See `ImageBuilder.execute`; a bare machine cannot take the network away without root, so it stays."""
        prefix = _prefix_of(image_id)
        env = _record_of(prefix).environment
        program = shutil.which(argv[0].replace(ROOT, str(prefix), 1), path=env.get("PATH"))
        if program is None:
            raise EngineFailed(
                f"{argv[0]} is not in {prefix}", next_step="build again: the folder may have been cleaned"
            )
        real = [program, *(word.replace(ROOT, str(prefix), 1) if word.startswith(ROOT) else word for word in argv[1:])]
        try:
            with _lent(prefix, lent or {}):
                ran = Programs(environment=env).run(real, timeout_s=timeout_s)
        except HostNotAble as error:
            raise EngineFailed(
                f"{argv[0]} could not be run to its end: {error}", next_step="vdbg-env doctor"
            ) from error
        return replace(ran, argv=tuple(argv))

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """See `ImageBuilder.tag`: names and labels go into the folder's record."""
        prefix = _prefix_of(image_id)
        record = _record_of(prefix)
        merged = tuple(dict.fromkeys([*record.names, *names]))
        replace(record, names=merged, labels={**record.labels, **labels}).write(prefix)
        return image_id

    def save(self, image: str, path: Path) -> int:
        """Refuse: there is no image."""
        raise _needs_docker(f"write {image} to {path}")

    def load(self, path: Path) -> None:
        """Refuse: there is no image."""
        raise _needs_docker(f"load {path}")

    def layers(self, image: str) -> str:
        """Refuse: there is no image."""
        raise _needs_docker(f"bundle {image}")

    def push(self, image: str) -> Iterator[PushProgress]:
        """Refuse: there is no image."""
        raise _needs_docker(f"push {image}")

    def remove(self, image_id: str) -> None:
        """See `ImageBuilder.remove`: a folder without our record is left alone."""
        prefix = Path(image_id.removeprefix(_PREFIX))
        if _read_record(prefix) is not None:
            shutil.rmtree(prefix)


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What is recorded of a finished build: its plan's digest, the environment to run it in, its labels and names."""

    plan: str
    environment: dict[str, str]
    labels: dict[str, str]
    names: tuple[str, ...]

    def write(self, prefix: Path) -> None:
        partial = prefix / f"{_RECORD}.partial"
        partial.write_text(json.dumps(asdict(self), indent=2, sort_keys=True))
        partial.replace(prefix / _RECORD)


def _read_record(prefix: Path) -> _Record | None:
    """Return the record of a whole build, or None where there is none; a spoilt one counts as none."""
    try:
        found = json.loads((prefix / _RECORD).read_text())
        return _Record(
            plan=found["plan"],
            environment=found["environment"],
            labels=found["labels"],
            names=tuple(found["names"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record_of(prefix: Path) -> _Record:
    record = _read_record(prefix)
    if record is None:
        raise EngineFailed(f"{prefix} holds no finished build", next_step="build it again")
    return record


def _prefix_of(image_id: str) -> Path:
    if not image_id.startswith(_PREFIX):
        raise BadInput(
            f"{image_id} is an image of Docker, and the engine in use is this bare machine",
            next_step="start Docker, or build with --engine host first",
        )
    return Path(image_id.removeprefix(_PREFIX))


def _check_able(plan: BuildPlan) -> None:
    """Refuse before anything is written when this machine lacks what the plan would have installed by apt."""
    ours = platform.machine()
    wanted = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}.get(plan.platform or "", ours)
    if wanted != ours:
        raise HostNotAble(
            f"this machine is {ours} and cannot build for {plan.platform}",
            next_step="build on such a machine, or with Docker and its emulation",
        )
    needs = {need for step in plan.steps if isinstance(step, CommandStep) for need in step.needs}
    if missing := sorted(need for need in needs if shutil.which(need) is None):
        raise HostNotAble(
            f"without a container this build needs {', '.join(missing)} on this machine",
            cause="in a container the plan installs them with apt; a bare machine's system is left as it is",
            next_step=f"install {' '.join(missing)} with the system's package manager, or build with Docker",
        )


def _needs_docker(what: str) -> HostNotAble:
    return HostNotAble(
        f"cannot {what}: the host engine makes a folder, not an image",
        cause="--engine host was given",
        next_step="start Docker and build with --engine docker",
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock: two builds of one plan must not write one folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EngineFailed(
                "another vdbg-env is building the same plan on this machine", next_step="wait for it to end"
            ) from error
        yield


@contextmanager
def _lent(prefix: Path, lent: Mapping[str, Buffer]) -> Iterator[None]:
    """Keep files below the prefix while a program runs; their paths are those of an image."""
    paths = {Path(path.replace(ROOT, str(prefix), 1)): data for path, data in lent.items()}
    try:
        for path, data in paths.items():
            path.write_bytes(data)
        yield
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _candidates(prefix: Path, folders: Sequence[str]) -> Generator[BinaryFile, None, None]:
    for folder in folders:
        real = prefix / folder.removeprefix(ROOT).lstrip("/")
        if real.exists():
            with BinaryFiles().open(str(real)) as found:
                for file in found:
                    yield replace(file, name=ROOT + file.name.removeprefix(str(prefix)), asked_for=False)
