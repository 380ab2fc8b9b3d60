"""Build with a Docker Engine: by the docker-buildx plugin, else by the engine's own BuildKit over its API.

The Python client does not support BuildKit (docker/docker-py#2230), but the engine takes `version=2` with the context
as the body and runs its own BuildKit: without a session, so without secrets and only into its image store.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from docker import APIClient, auth, errors

from vdbg_env.build.builder import (
    BuilderDescription,
    BuilderName,
    BuildEvent,
    BuildFailed,
    BuildOrder,
    BuildxOptions,
    Built,
    ImageBuilder,
)
from vdbg_env.build.host import HostBuilder
from vdbg_env.build.progress import Progress, ProgressReader, RawJsonReader, read_status_response
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble
from vdbg_env.common.programs import output_of
from vdbg_env.common.stop import Held
from vdbg_env.engine.client import (
    GONE,
    OUR_LABEL,
    Endpoint,
    Engine,
    connect,
    engine_errors,
    inspect_image,
    raise_for_status,
)
from vdbg_env.engine.images import DockerImages, messages_of
from vdbg_env.engine.trees import upload
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env.image.plan import LABEL_DIGEST, LABEL_LAYERS, BuildPlan
from vdbg_env.image.profile import parse_reference
from vdbg_env.supervisor.proc import send_to_group

_GRACE_S = 10.0  # for buildx to cancel the build in the engine
_PATIENCE_S = 10.0  # for what a cancelled build left to appear
_CANDIDATE = "vdbg-env-candidate"
_TRACE = "moby.buildkit.trace"
_HOW_TO_GET_BUILDX = "apt-get install docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin"


class EngineBuilder(DockerImages):
    """What all ways to build with an engine have in common: labels, names, and small builds over an image."""

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """See `ImageBuilder.tag`.

        Labels belong to an image's configuration, which its id is the digest of, so a labelled image is another image
        over the same layers. A build of nothing but `FROM` makes it: no layer is added and nothing else of the
        configuration changes, whereas committing a container would copy the container's settings into the image. The
        labels are sent next to the Dockerfile, where the proof needs no quoting.
        """
        places = [parse_reference(name, "the image's name") for name in names]
        client = self.engine.client
        candidate = f"{_CANDIDATE}:{uuid.uuid4().hex}"
        with engine_errors(self.engine.endpoint):
            client.tag(image_id, candidate)
            labelled = self._label(candidate, {**labels, LABEL_LAYERS: self.layers(image_id)})
            for place in places:
                client.tag(labelled, place.name, place.tag or "latest")
            # Losing its last name removes the image without labels; had anything failed above, it stays for a look.
            client.remove_image(candidate, noprune=True)
        return labelled

    @contextmanager
    def candidate(self, image_id: str) -> Iterator[str]:
        """Give an image a name for as long as something is built over it."""
        name = f"{_CANDIDATE}:{uuid.uuid4().hex}"
        with engine_errors(self.engine.endpoint):
            self.engine.client.tag(image_id, name)
            try:
                yield name
            finally:
                self.engine.client.remove_image(name, noprune=True)

    def buildx_instead(self) -> Buildx | None:
        """Return buildx where it must do what the engine's own BuildKit cannot; raises HostNotAble without it."""
        reason = self.engine.no_buildkit()
        buildx = find_buildx() if reason and not self.engine.is_podman else None
        if reason and buildx is None:
            raise _needs_buildx(reason, cause="it is not installed")
        return buildx

    def _label(self, image: str, labels: Mapping[str, str]) -> str:
        dockerfile = FileBytes(name="Dockerfile", data=f"FROM {image}\n".encode())
        failed = "the engine could not label the image"
        return self.build_over(BuildContext(items=(dockerfile,)), labels=labels, failed=failed)

    def build_over(
        self, context: BuildContext, *, labels: Mapping[str, str] | None = None, offline: bool = False, failed: str
    ) -> str:
        """Build a few lines over an image that the engine has, and return the new image's id.

        An engine that loses what is sent to its BuildKit gets it through buildx. Raises EngineFailed, which begins with
        `failed`, and HostNotAble where that engine's machine has no buildx.
        """
        labels = labels or {}
        if buildx := self.buildx_instead():
            words = [*(f"--label={name}={value}" for name, value in labels.items()), *["--network=none"] * offline]
            *_, last = buildx_events(buildx, self.engine.endpoint, ["--provenance=false", *words], context)
            if isinstance(last, Built):
                return last.image_id
            raise EngineFailed(f"{failed}: {last.cause if isinstance(last, BuildFailed) else 'buildx gave no result'}")
        parameters = {"labels": json.dumps(dict(labels), sort_keys=True)} if labels else {}
        parameters |= {"networkmode": "none"} if offline else {}
        built, printed = "", ""
        for message in _post_build(self.engine.client, context, parameters):
            built = _image_id_of(message) or built
            printed = message.get("stream", "").strip() or printed
            if "error" in message:
                raise EngineFailed(f"{failed}: {message['error']}", details=tuple(printed.splitlines()[-5:]))
        if not built:
            raise EngineFailed(f"{failed}: the engine ended without an image", next_step="vdbg-env doctor")
        return built

    def remove(self, image_id: str) -> None:
        """See `ImageBuilder.remove`: only an unnamed image that this program built is removed."""
        with suppress(BadInput):  # it is gone
            found = inspect_image(self.engine, image_id)
            labels = (found.get("Config") or {}).get("Labels") or {}
            if not found.get("RepoTags") and any(name.startswith(OUR_LABEL) for name in labels):
                with engine_errors(self.engine.endpoint), suppress(errors.APIError):  # in use by a container: it stays
                    self.engine.client.remove_image(image_id)

    @contextmanager
    def _removing_leftovers(self, plan: BuildPlan) -> Iterator[Callable[[], None]]:
        """Remove the unnamed images of `plan` that appear within the block, unless the function given is called.

        An image may become whole just before a cancel reaches the engine.
        """
        label = f"{LABEL_DIGEST}={plan.digest}"
        with engine_errors(self.engine.endpoint):
            before = self._unnamed(label)
        told: list[bool] = []
        try:
            yield lambda: told.append(True)
        finally:
            if not told:
                with suppress(errors.DockerException, *GONE):
                    self._remove_new(label, before)

    def _remove_new(self, label: str, before: frozenset[str]) -> None:
        """Remove what is new, and wait a little for what a step that is still ending holds on to."""
        deadline = time.monotonic() + _PATIENCE_S
        while left := self._unnamed(label) - before:
            for image_id in left:
                self.remove(image_id)
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def _unnamed(self, label: str) -> frozenset[str]:
        return frozenset(self.engine.client.images(quiet=True, filters={"dangling": True, "label": label}))


class BuildKitBuilder(EngineBuilder):
    """The engine's BuildKit over `POST /build?version=2`: without a session, so a build with secrets is refused."""

    def __init__(self, engine: Engine, *, why: str) -> None:
        super().__init__(engine)
        self._why = why

    def describe(self) -> BuilderDescription:
        return BuilderDescription(
            name="buildkit",
            version=self.engine.version,
            why=self._why,
            capabilities=frozenset({"containers", "cache-mounts"}),
        )

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """See `ImageBuilder.build`."""
        if order.secrets:
            raise EngineFailed(
                "this engine's BuildKit takes no secrets without buildx",
                cause="the docker-buildx plugin is not installed",
                next_step=f"{_HOW_TO_GET_BUILDX}; or build without --secret",
            )
        build_id = f"vdbg-{uuid.uuid4().hex}"
        parameters = _order_parameters(order, build_id)
        with self._removing_leftovers(order.plan) as finished:
            try:
                with closing(_post_build(self.engine.client, order.context, parameters)) as messages:
                    yield from follow_messages(messages, ProgressReader(jobs=order.jobs))
                finished()
            finally:
                self._cancel(build_id)

    def _cancel(self, build_id: str) -> None:
        """End the build if it still runs; an engine that has finished it, or is gone, has nothing to end."""
        client = self.engine.client
        with suppress(errors.DockerException, *GONE):
            client.post(f"{client.base_url}/v{client.api_version}/build/cancel", params={"id": build_id}, timeout=10)


def _post_build(
    client: APIClient, context: BuildContext, parameters: Mapping[str, str]
) -> Generator[dict[str, Any], None, None]:
    """Send a context and yield the engine's messages; closing the iterator closes the connection.

    The status is 200 even for a build that fails: its error is a message (`errorDetail`). Raises the client's errors
    when the engine refuses the request or goes away.
    """
    with client.post(
        f"{client.base_url}/v{client.api_version}/build",
        params={"version": "2", "dockerfile": "Dockerfile", "rm": "1", "forcerm": "1", **parameters},
        data=iter(upload(context)),
        headers={"Content-Type": "application/x-tar", **_registry_header()},
        stream=True,
        timeout=None,  # a compiler may print nothing for hours
    ) as response:
        raise_for_status(response)
        yield from messages_of(response)


def _registry_header() -> dict[str, str]:
    """Return the header with the credentials that `docker login` stored, for a base image in a private registry."""
    logins = auth.load_config().get_all_credentials()  # type: ignore[no-untyped-call]
    if auth.INDEX_NAME in logins:  # BuildKit looks for Docker Hub under its older name
        logins.setdefault(auth.INDEX_URL, logins[auth.INDEX_NAME])
    return {"X-Registry-Config": auth.encode_header(logins).decode()} if logins else {}


def _order_parameters(order: BuildOrder, build_id: str) -> dict[str, str]:
    network, platform = order.plan.network, order.plan.platform
    wanted = {
        "dockerfile": order.dockerfile,
        "networkmode": network if network != "default" else None,
        "platform": platform,
        "buildargs": json.dumps(dict(order.build_args), sort_keys=True) if order.build_args else None,
        "nocache": "1" if order.no_cache else None,
        "buildid": build_id,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def follow_messages(messages: Iterator[dict[str, Any]], reader: ProgressReader) -> Iterator[BuildEvent]:
    """Turn the messages of one build into its events; an engine that goes away on the way is a failed build."""
    image_id = error = None
    try:
        for message in messages:
            if message.get("id") == _TRACE and isinstance(message.get("aux"), str):
                yield from reader.events(read_status_response(base64.b64decode(message["aux"])))
            image_id = _image_id_of(message) or image_id
            error = _error_of(message) or error
    except GONE as gone:
        yield reader.lost(str(gone))
        return
    if error is not None:
        yield reader.failure(error)
    elif image_id is None:
        yield reader.lost("it closed the connection")
    else:
        yield Built(image_id=image_id)


def _image_id_of(message: Mapping[str, Any]) -> str | None:
    aux = message.get("aux")
    return aux.get("ID") if isinstance(aux, dict) else None


def _error_of(message: Mapping[str, Any]) -> str | None:
    detail = message.get("errorDetail")
    said = detail.get("message") if isinstance(detail, dict) else message.get("error")
    return str(said) if said else None


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


class BuildxBuilder(EngineBuilder):
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
        with self._removing_leftovers(order.plan) as done:
            yield from self._run(order)
            done()

    def _run(self, order: BuildOrder, *more: str) -> Iterator[BuildEvent]:
        words = [*_arguments(order), *more]
        yield from buildx_events(self._buildx, self.engine.endpoint, words, order.context, jobs=order.jobs)

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


def _arguments(order: BuildOrder) -> Iterator[str]:
    """Yield an order's arguments for `docker buildx build`."""
    plan = order.plan
    yield from ("--file", order.dockerfile)
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
    if not order.buildx.provenance:
        yield "--provenance=false"  # buildx attests where it can, and each build would have another id
    yield from buildx_words(order.buildx)


def buildx_words(options: BuildxOptions) -> Iterator[str]:
    """Yield the options of a user as buildx takes them."""
    yield from (f"--cache-from={place}" for place in options.cache_from)
    yield from (f"--cache-to={place}" for place in options.cache_to)
    yield from (f"--sbom={options.sbom}",) if options.sbom else ()
    yield from (f"--provenance={options.provenance}",) if options.provenance else ()


def buildx_events(
    buildx: Buildx, endpoint: Endpoint, words: Sequence[str], context: BuildContext, *, jobs: int | None = None
) -> Iterator[BuildEvent]:
    """Run one build and yield its events; buildx ends with the iterator."""
    with tempfile.TemporaryDirectory(prefix="vdbg-buildx-") as folder:
        files = _ResultFiles(Path(folder))
        argv = [
            *buildx.argv, "build", "--builder", endpoint.context or "default", "--progress", "rawjson", "--load",
            "--metadata-file", str(files.metadata), "--iidfile", str(files.image_id), *words, "-",
        ]  # fmt: skip
        with _started(argv, _environment(endpoint)) as process:
            yield from _follow(process, context, ProgressReader(jobs=jobs), files)


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


def _environment(endpoint: Endpoint) -> dict[str, str]:
    """Point buildx at the very engine the rest of the program speaks to."""
    env = {k: v for k, v in os.environ.items() if k not in {"BUILDX_BUILDER", "DOCKER_CONTEXT", "DOCKER_HOST"}}
    if endpoint.context:
        return {**env, "DOCKER_CONTEXT": endpoint.context}
    return {**env, "DOCKER_HOST": endpoint.host}


@contextmanager
def _started(argv: list[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start buildx in its own session, since Ctrl-C reaches this program; end it as Ctrl-C would, then for good."""
    with Held() as held:
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
            held.release()
            yield process
        finally:
            if process.stderr:
                process.stderr.close()
            for number in (signal.SIGINT, signal.SIGKILL):
                if process.poll() is None:
                    send_to_group(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE_S)


def _follow(
    process: subprocess.Popen[bytes], context: BuildContext, reader: ProgressReader, files: _ResultFiles
) -> Iterator[BuildEvent]:
    """Write the context and turn the output into events."""
    assert process.stdin is not None and process.stderr is not None
    feeder = _Feeder(process.stdin, upload(context))
    feeder.start()
    raw = RawJsonReader()
    said: deque[str] = deque(maxlen=20)
    for _, chunk in output_of(process):
        yield from _told(raw.feed(chunk), reader, said)
    yield from _told(raw.feed(b"", final=True), reader, said)
    code = process.wait()
    feeder.join(_GRACE_S)
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


def choose_builder(
    wanted: BuilderName,
    *,
    connect: Callable[[], Engine] = connect,
    find_buildx: Callable[[], Buildx | None] = find_buildx,
) -> ImageBuilder:
    """Return the builder; its description says why it was chosen.

    `auto` takes the best that Docker has; every other choice is taken as is, and `host` only by its name: a folder of
    this machine is no image. Raises HostNotAble and EngineFailed when the choice is not available here.
    """
    if wanted == "host":
        return HostBuilder(why="requested by --engine host")
    try:
        engine = connect()
    except (HostNotAble, EngineFailed) as error:
        if error.next_step and "--engine host" in error.next_step:
            raise
        further = (error.next_step, "--engine host builds in a folder of this machine, without a container")
        error.next_step = "; or ".join(filter(None, further))
        raise
    if engine.is_podman:
        raise HostNotAble(
            f"Podman {engine.version} responds at {engine.endpoint.host}, and vdbg-env builds with Docker",
            cause="Podman runs the images and does not build them here",
            next_step="vdbg-env render DIR && podman build --tag NAME DIR && vdbg-env verify NAME; or --engine host",
        )
    buildx = None if wanted == "buildkit" else find_buildx()
    if buildx is not None:
        return BuildxBuilder(engine, buildx, why="the docker-buildx plugin is installed")
    if wanted == "buildx":
        raise HostNotAble(
            "docker-buildx is not installed",
            cause="distributions package it separately from the engine",
            next_step=f"{_HOW_TO_GET_BUILDX}; or --engine docker",
        )
    if reason := engine.no_buildkit():
        raise _needs_buildx(reason, cause="it is not asked for" if wanted == "buildkit" else "it is not installed")
    why = "requested by --engine buildkit" if wanted == "buildkit" else "docker-buildx is not installed"
    return BuildKitBuilder(engine, why=f"{why}; the engine's own BuildKit builds, without secrets")


def _needs_buildx(reason: str, *, cause: str) -> HostNotAble:
    return HostNotAble(f"{reason}, and docker-buildx is not used", cause=cause, next_step=_HOW_TO_GET_BUILDX)
