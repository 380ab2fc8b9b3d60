"""What a builder is: its order, its events and its verbs, alike for buildx, BuildKit and the host."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from vdbg_env.common.flags import flag
from vdbg_env.common.programs import Completed

if TYPE_CHECKING:
    from vdbg_env.crash.files import BinaryFile, Buffer
    from vdbg_env.engine.images import PushProgress
    from vdbg_env.image.context import BuildContext
    from vdbg_env.image.plan import BuildPlan


BuilderName = Literal["auto", "docker", "buildx", "buildkit", "host"]


@dataclass(frozen=True, kw_only=True)
class BuilderDescription:
    """Which builder was chosen and why; `capabilities` names what a Dockerfile or a build may ask of it.

    Capabilities in use: `secrets` (mounted for one step, never in a layer), `cache-mounts`, `heredocs`, `copy-link`,
    `platforms` (images for another architecture), `containers` (a built image can be started, saved and pushed).
    """

    name: Literal["buildx", "buildkit", "host"]
    version: str
    why: str
    capabilities: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class BuildxOptions:
    """Options of buildx, handed through as they are: caches in a registry, and attestations of the image."""

    cache_from: tuple[str, ...] = flag(
        default=(), metavar="WHERE", section="With buildx", help="Import cached layers; repeatable."
    )
    cache_to: tuple[str, ...] = flag(
        default=(), metavar="WHERE", section="With buildx", help="Export the layer cache, such as type=inline."
    )
    sbom: str | None = flag(metavar="VALUE", section="With buildx", help="Attach an SBOM, such as true.")
    provenance: str | None = flag(
        metavar="VALUE", section="With buildx", help="Attach provenance, such as true or mode=max."
    )


@dataclass(frozen=True, kw_only=True)
class BuildOrder:
    """One build: the plan, and the same plan rendered as a context that holds its Dockerfile.

    Containers are built from the context, a bare machine from the plan. `build_args` are values of this machine for
    the plan's arguments (proxies, mirrors), `secrets` id -> file, which only a builder with that capability takes.
    `jobs` is how many compilers run at once: it makes the advice after an out-of-memory kill exact. `buildx` is for
    that builder alone.
    """

    plan: BuildPlan
    context: BuildContext
    dockerfile: str = "Dockerfile"
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    jobs: int | None = None
    no_cache: bool = False
    buildx: BuildxOptions = field(default_factory=BuildxOptions)


class ImageBuilder(Protocol):
    """Builds an image and hands it on. Everything it makes is labelled `dev.vdbg-env*`; it touches nothing else."""

    def describe(self) -> BuilderDescription:
        """Describe this builder and what it can do; never raises."""
        ...

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """Build, yielding each event at once; closing the generator cancels the build and removes what it left.

        A step that fails is an event (`BuildFailed`). Raises EngineFailed when the engine cannot be reached at all.
        """
        ...

    def files(self, image_id: str, folders: Sequence[str]) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every ELF file, archive and fat binary below `folders` of the image, named by its path in the image.

        Each one's bytes are valid until the next is asked for. A folder the image lacks yields nothing.
        """
        ...

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """Give the image these labels and names over the same layers; returns the id it has from then on.

        The image under `image_id` is gone afterwards, unless it had another name. Raises BadInput for a name no
        engine takes, EngineFailed when the engine refuses; the image then stays as it was.
        """
        ...

    def execute(
        self, image_id: str, argv: Sequence[str], *, timeout_s: float = 600.0, lent: Mapping[str, Buffer] | None = None
    ) -> Completed:
        """Run a program inside the image, without network, and remove its container whatever happens.

        `lent` are files, by their path in the image, that exist for this run only.

        Raises EngineFailed when the container cannot be started or outlasts `timeout_s`.
        """
        ...

    def save(self, image: str, path: Path) -> int:
        """Write the image as a tar that `docker load` reads, whole or not at all; returns its size in bytes."""
        ...

    def load(self, path: Path) -> None:
        """Take the images of a tar that `save` wrote; raises BadInput for a file that is not one."""
        ...

    def layers(self, image: str) -> str:
        """Return "sha256:..." over an image's layers, the same in every store; raises BadInput for a missing image."""
        ...

    def push(self, image: str) -> Iterator[PushProgress]:
        """Push a tagged image, yielding the progress of each layer; the last event carries the digest.

        Raises EngineFailed with the registry's message when it refuses or cannot be reached.
        """
        ...

    def remove(self, image_id: str) -> None:
        """Remove an image this program built; one that is gone already, or in use, is left alone."""
        ...


# The events of a build: one stream, the same kinds from every builder.
#
# Every builder keeps this order: a step's `StepStarted` precedes its output and its `StepEnded`; the stream ends with
# exactly one `Built` or `BuildFailed`. Steps of different stages may overlap.


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A step began; `number` of `total` are its place in its stage, if the builder reports them."""

    key: str
    title: str
    number: int | None = None
    total: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepEnded:
    """A step ended: taken from the cache, done, or failed when `error` is set; a cached step took 0 seconds."""

    key: str
    cached: bool
    duration_s: float
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputLine:
    """One line a step printed, without its line end and without terminal control sequences."""

    key: str
    text: str
    stream: Literal["stdout", "stderr"]


@dataclass(frozen=True, kw_only=True)
class BuildWarning:
    """Something the user should know that does not stop the build."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Built:
    """The image is finished, untagged, as `image_id`; `digest` is its manifest digest, if the builder reports one."""

    image_id: str
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildFailed:
    """The build stopped at a step, or before the first one when `key` is None.

    `code` is the exit status of the step's command (137 = killed, mostly for memory), `cause` says in one sentence
    what is known of the reason, `next_step` what to type, and `tail` holds the last lines the step printed.
    """

    key: str | None
    title: str
    code: int | None
    cause: str
    next_step: str | None = None
    tail: tuple[str, ...] = ()


BuildEvent = StepStarted | StepEnded | OutputLine | BuildWarning | Built | BuildFailed
