"""A builder that makes nothing: it records what was asked of it, and its image holds the libraries it was given."""

import io
import json
import tarfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vdbg_env.build.builder import (
    BuilderDescription,
    BuildEvent,
    BuildFailed,
    BuildOrder,
    Built,
    StepEnded,
    StepStarted,
)
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, Buffer
from vdbg_env.engine.images import PushProgress


@dataclass
class FakeEngine:
    """An engine whose image holds `libraries` and a cuobjdump that lists `listed` cubins of each."""

    libraries: Mapping[str, bytes]
    listed: int = 2
    failure: BuildFailed | None = None
    silent: bool = False
    total: int = 99
    orders: list[BuildOrder] = field(default_factory=list)
    tagged: list[tuple[str, tuple[str, ...], dict[str, str]]] = field(default_factory=list)
    read_to_the_end: bool = False
    content: str = "sha256:of-the-layers"
    loaded: list[Path] = field(default_factory=list)

    def describe(self) -> BuilderDescription:
        return BuilderDescription(name="buildkit", version="1", why="it is a fake", capabilities=frozenset())

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        self.orders.append(order)
        yield StepStarted(key="a", title="RUN make", number=1, total=self.total)
        if self.failure:
            yield self.failure
            return
        yield StepEnded(key="a", cached=False, duration_s=1.0)
        if not self.silent:
            yield Built(image_id=f"sha256:{len(self.orders)}")
        self.read_to_the_end = True

    @contextmanager
    def files(self, image_id: str, folders: Sequence[str]) -> Generator[Iterator[BinaryFile], None, None]:
        assert folders == ["/opt/vdbg/out"]
        yield (BinaryFile(name=name, data=data) for name, data in self.libraries.items())

    def execute(
        self, image_id: str, argv: Sequence[str], *, timeout_s: float = 600.0, lent: Mapping[str, Buffer] | None = None
    ) -> Completed:
        if argv[0] == "sh":
            return Completed(argv=tuple(argv), code=0, stdout="/cuda/bin/cuobjdump\n", stderr="")
        assert list(argv[:3]) == ["/cuda/bin/cuobjdump", "-all", "-lelf"]
        listing = "".join(f"ELF file {n:4}: k.{n}.sm_90.cubin\n" for n in range(self.listed))
        return Completed(argv=tuple(argv), code=0, stdout=listing, stderr="")

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        self.tagged.append((image_id, tuple(names), dict(labels)))
        return f"{image_id}-labelled"

    def save(self, image: str, path: Path) -> int:
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(f"{image.replace(':', '-')}.json"))
            names = json.dumps([{"RepoTags": [image]}]).encode()
            member = tarfile.TarInfo("manifest.json")
            member.size = len(names)
            archive.addfile(member, io.BytesIO(names))
        return path.stat().st_size

    def load(self, path: Path) -> None:
        self.loaded.append(path)

    def layers(self, image: str) -> str:
        return self.content

    def push(self, image: str) -> Iterator[PushProgress]:
        yield PushProgress(layer="x", status="pushing")
        yield PushProgress(layer="x", status="pushed", digest=f"sha256:of-{image}")

    def remove(self, image_id: str) -> None:
        raise AssertionError("nothing here is removed")
