"""Build with the docker-buildx plugin, run as a program whose progress is read as JSON: the first choice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from vdbg_env.adapters.builders.cleanup import removing_leftovers
from vdbg_env.adapters.builders.progress.events import Progress, ProgressReader
from vdbg_env.adapters.builders.progress.rawjson import RawJsonReader
from vdbg_env.adapters.docker.client import Endpoint, Engine
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.application.ports.build_events import BuildEvent, BuildFailed, Built
from vdbg_env.application.ports.images import BuilderDescription, BuildOrder
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.supervisor.processes.signals import send_to_group

_GRACE_S = 10.0  # for buildx to cancel the build in the engine


@dataclass(frozen=True, kw_only=True)
class Buildx:
    """The buildx program as found on this machine: how to call it, and its version."""

    argv: tuple[str, ...]
    version: str


def find_buildx(environ: Mapping[str, str] | None = None) -> Buildx | None:
    """Return buildx as a plugin of the docker command, or by itself; None when neither starts."""
    env = dict(os.environ if environ is None else environ)
    for argv in (("docker", "buildx"), ("docker-buildx",)):
        if not shutil.which(argv[0], path=env.get("PATH")):
            continue
        with suppress(OSError, subprocess.TimeoutExpired):
            ran = subprocess.run([*argv, "version"], capture_output=True, text=True, env=env, timeout=30, check=False)
            words = ran.stdout.split()
            if ran.returncode == 0 and len(words) > 1:
                return Buildx(argv=argv, version=words[1])
    return None


class BuildxBuilder(DockerImages):
    """buildx with the builder that is the engine itself, which finds local base images and pulls none."""

    def __init__(self, engine: Engine, buildx: Buildx, *, why: str) -> None:
        super().__init__(engine)
        self._buildx = buildx
        self._why = why
        self._order: BuildOrder | None = None

    def describe(self) -> BuilderDescription:
        return BuilderDescription(
            name="buildx",
            version=f"{self._buildx.version} on Docker {self.engine.version}",
            why=self._why,
            capabilities=frozenset({"containers", "cache-mounts", "secrets"}),
        )

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """See `ImageBuilder.build`; buildx is interrupted as Ctrl-C would, then killed."""
        self._order = order
        with removing_leftovers(self, order.plan) as done:
            yield from self._run(order)
            done()

    def _run(self, order: BuildOrder, *more: str) -> Iterator[BuildEvent]:
        with tempfile.TemporaryDirectory(prefix="vdbg-buildx-") as folder:
            files = _ResultFiles(Path(folder))
            argv = [*self._buildx.argv, "build", *_arguments(order, self.engine.endpoint, files), *more, "-"]
            with _started(argv, _environment(self.engine.endpoint)) as process:
                yield from _follow(process, order, files)

    def _label(self, image: str, labels: Mapping[str, str]) -> str:
        """Label by building the order again where attestations were asked for, each step from the cache.

        What they say about a build of nothing but `FROM` is nothing. Raises EngineFailed when other layers result.
        """
        order = self._order
        if order is None or not (order.buildx.sbom or order.buildx.provenance):
            return super()._label(image, labels)
        again = replace(order, no_cache=False, buildx=replace(order.buildx, cache_from=(), cache_to=()))
        *_, last = self._run(again, *(f"--label={name}={value}" for name, value in labels.items()))
        if isinstance(last, Built) and self.layers(last.image_id) == self.layers(image):
            return last.image_id
        raise EngineFailed(
            "buildx could not attest the image that was proven",
            cause=last.cause if isinstance(last, BuildFailed) else "its steps were no longer in the cache",
            next_step="the same command again, or without --sbom and --provenance",
        )


@dataclass(frozen=True)
class _ResultFiles:
    """Where buildx writes what it made; neither file exists after a failure."""

    folder: Path

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata.json"

    @property
    def image_id(self) -> Path:
        return self.folder / "image-id"


def shared_arguments(order: BuildOrder) -> Iterator[str]:
    """Yield the arguments that `docker buildx build` and `podman build` have in common."""
    plan = order.plan
    if plan.network != "default":
        yield from ("--network", plan.network)
    if plan.platform:
        yield from ("--platform", plan.platform)
    for name, value in sorted(order.build_args.items()):
        yield from ("--build-arg", f"{name}={value}")
    for name, path in sorted(order.secrets.items()):
        yield from ("--secret", f"id={name},src={path}")
    if order.no_cache:
        yield "--no-cache"


def _arguments(order: BuildOrder, endpoint: Endpoint, files: _ResultFiles) -> Iterator[str]:
    yield from ("--builder", endpoint.context or "default", "--progress", "rawjson", "--file", order.dockerfile)
    yield from ("--metadata-file", str(files.metadata), "--iidfile", str(files.image_id), "--load")
    yield from shared_arguments(order)
    if not order.buildx.provenance:
        yield "--provenance=false"  # buildx attests where it can, and each build would have another id
    yield from order.buildx.words()


def _environment(endpoint: Endpoint) -> dict[str, str]:
    """Point buildx at the very engine the rest of the program speaks to."""
    env = {k: v for k, v in os.environ.items() if k not in {"BUILDX_BUILDER", "DOCKER_CONTEXT", "DOCKER_HOST"}}
    if endpoint.context:
        return {**env, "DOCKER_CONTEXT": endpoint.context}
    return {**env, "DOCKER_HOST": endpoint.host}


@contextmanager
def _started(argv: list[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start buildx in its own session: Ctrl-C reaches this program, which passes it on."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise EngineFailed(
            f"{argv[0]} cannot be started: {error.strerror}", next_step="docker buildx version"
        ) from error
    try:
        yield process
    finally:
        end_program(process)


def end_program(process: subprocess.Popen[bytes]) -> None:
    """End a builder's program with all that it started: as Ctrl-C would, then for good."""
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            send_to_group(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def _follow(process: subprocess.Popen[bytes], order: BuildOrder, files: _ResultFiles) -> Iterator[BuildEvent]:
    """Write the context and turn the output into events."""
    assert process.stdin is not None and process.stderr is not None
    feeder = _Feeder(process.stdin, upload(order.context))
    feeder.start()
    reader, raw = ProgressReader(jobs=order.jobs), RawJsonReader()
    said: deque[str] = deque(maxlen=20)
    while chunk := os.read(process.stderr.fileno(), 1 << 16):
        yield from _told(raw.feed(chunk), reader, said)
    yield from _told(raw.feed(b"", final=True), reader, said)
    code = process.wait()
    feeder.join()
    if feeder.error is not None and not isinstance(feeder.error, BrokenPipeError):
        raise feeder.error
    yield _result(code, files, reader, said)


def _told(found: Iterator[Progress | str], reader: ProgressReader, said: deque[str]) -> Iterator[BuildEvent]:
    for item in found:
        if isinstance(item, str):
            said.append(item)
        else:
            yield from reader.events(item)


def _result(code: int, files: _ResultFiles, reader: ProgressReader, said: deque[str]) -> Built | BuildFailed:
    if code != 0 or not files.image_id.exists():
        message = "\n".join(said) or f"docker buildx ended with exit status {code}"
        return reader.lost(message) if _engine_gone(message) else reader.failure(message)
    digest = None
    if files.metadata.exists():
        digest = json.loads(files.metadata.read_text()).get("containerimage.digest")
    # The containerd image store knows an image by this digest, and not by that of its configuration.
    return Built(image_id=digest or files.image_id.read_text().strip(), digest=digest)


def _engine_gone(message: str) -> bool:
    return any(
        mark in message
        for mark in ("Cannot connect to the Docker daemon", "error reading from server", "closing transport", "EOF")
    )


class _Feeder(threading.Thread):
    """Writes the context into buildx while its progress is read, since neither side may wait for the other."""

    def __init__(self, stdin: IO[bytes], chunks: Iterable[bytes]) -> None:
        super().__init__(name="build-context", daemon=True)
        self._stdin = stdin
        self._chunks = chunks
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._stdin:
                for chunk in self._chunks:
                    self._stdin.write(chunk)
        except (OSError, BadInput) as error:
            self.error = error
