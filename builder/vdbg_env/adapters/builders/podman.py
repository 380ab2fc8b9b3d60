"""Build with the podman command, where Podman's Docker-compatible socket responds: its service may hang at a COPY."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from vdbg_env.adapters.builders.buildx import end_program, shared_arguments
from vdbg_env.adapters.builders.classic import StepText
from vdbg_env.adapters.builders.cleanup import removing_leftovers
from vdbg_env.adapters.docker.archive import Followed
from vdbg_env.adapters.docker.client import Engine
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.adapters.files.context_tar import extract
from vdbg_env.application.ports.build_events import BuildEvent, Built
from vdbg_env.application.ports.images import BuilderDescription, BuildOrder
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.tar import tarfile
from vdbg_env.crash.files import BinaryFile
from vdbg_env.image.profile import parse_reference

_TAR_LACKS = 2  # tar's exit status for a folder that is not there
# Podman gives its containers more than a service without CAP_SYS_RESOURCE may.
_LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")


class PodmanBuilder(DockerImages):
    """`podman build` on this machine; the image is read, started and named over the socket, from the same store."""

    def __init__(self, engine: Engine, *, program: str, why: str) -> None:
        super().__init__(engine)
        self._program = program
        self._why = why

    def describe(self) -> BuilderDescription:
        return BuilderDescription(
            name="podman", version=self.engine.version, why=self._why,
            capabilities=frozenset({"containers", "cache-mounts", "secrets"}),
        )  # fmt: skip

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """See `ImageBuilder.build`; podman is interrupted as Ctrl-C would, then killed."""
        with tempfile.TemporaryDirectory(prefix="vdbg-podman-") as folder, removing_leftovers(self, order.plan) as done:
            context, image_id = Path(folder) / "context", Path(folder) / "image-id"
            extract(order.context, context)
            yield from self._follow(
                [*_arguments(order, context), "--iidfile", str(image_id), str(context)], image_id, order
            )
            done()

    def _follow(self, words: list[str], image_id: Path, order: BuildOrder) -> Iterator[BuildEvent]:
        reader = StepText(jobs=order.jobs)
        last: deque[bytes] = deque(maxlen=20)
        process = self._started(words)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                last.append(line)
                yield from reader.feed(line)
            code = process.wait()
        finally:
            end_program(process)
        if code != 0 or not image_id.exists():
            said = b"".join(last).decode("utf-8", "replace")
            yield from reader.finish(said[-2000:] or f"podman build ended with exit status {code}")
            return
        yield from reader.finish(None)
        yield Built(image_id=self._stored(image_id.read_text().strip()))

    def _started(self, words: list[str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [self._program, "build", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True, env=_environment(),
            )  # fmt: skip
        except OSError as error:
            raise EngineFailed(f"podman cannot be started: {error.strerror}", next_step="podman version") from error

    def _stored(self, image_id: str) -> str:
        """Return the id, once the service has the image too."""
        try:
            self.layers(image_id)
        except BadInput as error:
            raise EngineFailed(
                f"the service at {self.engine.endpoint.host} does not have the image that podman has just built",
                cause="it runs as another user, or with another --root than the podman command",
                next_step="start the service as this user: podman system service --time=0 unix:///PATH &",
            ) from error
        return image_id

    @contextmanager
    def files(self, image_id: str, folders: Sequence[str]) -> Generator[Iterator[BinaryFile], None, None]:
        """Read by tar inside a container: the service may hang when it copies out of one, too."""
        with closing(self._found(image_id, folders)) as found:
            yield found

    def _found(self, image_id: str, folders: Sequence[str]) -> Generator[BinaryFile, None, None]:
        words = ["run", "--rm", "--network=none", *_LIMITS, "--entrypoint=tar", image_id]
        followed = Followed(folders)
        for folder in followed.folders:
            if followed.has_read(folder):
                continue
            parent, _, name = folder.rstrip("/").rpartition("/")
            with tempfile.TemporaryFile() as said:
                process = subprocess.Popen(
                    [self._program, *words, "-C", parent or "/", "-cf", "-", name], stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=said, start_new_session=True, env=_environment(),
                )  # fmt: skip
                try:
                    assert process.stdout is not None
                    # An empty stream is no tar: the program's exit status says why.
                    with suppress(tarfile.ReadError), tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                        yield from followed.files(folder, archive)
                    code = process.wait()
                finally:
                    end_program(process)
                if code not in (0, _TAR_LACKS):
                    said.seek(0)
                    text = said.read().decode("utf-8", "replace").strip()
                    raise EngineFailed(f"podman could not read {folder} of the image: {text[-500:]}")

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """See `ImageBuilder.tag`; the image without labels stays as a layer of the one with them."""
        places = [parse_reference(name, "the image's name") for name in names]
        with tempfile.TemporaryDirectory(prefix="vdbg-podman-") as folder:
            result = Path(folder) / "image-id"
            (Path(folder) / "Dockerfile").write_text(f"FROM {image_id}\n")
            words = [f"--label={name}={value}" for name, value in labels.items()]
            self._run("build", "--format=docker", *words, "--iidfile", str(result), folder)
            labelled = result.read_text().strip()
        for place in places:
            self._run("tag", labelled, f"{place.name}:{place.tag or 'latest'}")
        return labelled

    def _run(self, *words: str) -> None:
        argv = [self._program, *words]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=_environment())
        if ran.returncode != 0:
            raise EngineFailed(f"podman {words[0]} failed: {ran.stderr.strip()[-500:]}", next_step="podman info")


def find_podman() -> str | None:
    """Return the podman command of this machine, if there is one."""
    return shutil.which("podman")


def _arguments(order: BuildOrder, context: Path) -> Iterator[str]:
    yield from ("--format=docker", "--file", str(context / order.dockerfile))
    yield from shared_arguments(order)


def _environment() -> dict[str, str]:
    """Return the environment for the command of this machine.

    The address of a service would make it a remote one, and `podman run` ends at a DOCKER_CONFIG without config.json,
    which Docker takes for one without credentials.
    """
    kept = {name: value for name, value in os.environ.items() if name != "CONTAINER_HOST"}
    if "DOCKER_CONFIG" in kept and not Path(kept["DOCKER_CONFIG"], "config.json").exists():
        del kept["DOCKER_CONFIG"]
    return kept
