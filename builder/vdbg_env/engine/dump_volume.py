"""Dumps in a named volume, read in place where its folder may be, else through a container that only looks inside."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from docker import errors

from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.crash.dumps import DumpStore
from vdbg_env.engine.client import OUR_LABEL, Engine, engine_errors
from vdbg_env.engine.containers import created, tool_container
from vdbg_env.engine.dump_folder import MARKER, FolderDumps
from vdbg_env.engine.images import container_archive
from vdbg_env.engine.request import ContainerRunner
from vdbg_env.image.settings import DUMPS, DumpVolume
from vdbg_env.record.dump_files import HEAD_BYTES, PACKED_HEAD_BYTES, Dump, kind_of

_CHUNK = 1 << 20

# For every file: its first bytes in hexadecimal, size, time of change, name; a zero byte ends each entry, since a name
# may hold anything else.
_LIST = rf"""cd {DUMPS} && find . -type f -printf '%s %T@ %P\0' | while IFS= read -r -d '' entry; do
  name=${{entry#* }}; name=${{name#* }}
  bytes={HEAD_BYTES}
  case $(head -c 6 -- "$name" | od -An -v -tx1 | tr -d ' \n') in
    1f8b*|425a68*|fd377a585a00*|28b52ffd*|5?2a4d18*|04224d18*) bytes={PACKED_HEAD_BYTES} ;;
  esac
  head=$(head -c $bytes -- "$name" | od -An -v -tx1 | tr -d ' \n')
  printf '%s %s\0' "$head" "$entry"
done"""


class VolumeDumps:
    """Dumps in a named volume, read through a container of an image that this program built."""

    def __init__(self, engine: Engine, containers: ContainerRunner, volume: str, *, ours: bool) -> None:
        self._engine = engine
        self._containers = containers
        self._volume = volume
        self._ours = ours

    @property
    def name(self) -> str:
        return f"volume {self._volume}"

    def is_ours(self) -> bool:
        """See `DumpStore.is_ours`."""
        return self._ours or self._run(["bash", "-c", f"test -f {DUMPS}/{MARKER} && echo yes || true"]) == "yes\n"

    def adopt(self) -> None:
        """See `DumpStore.adopt`."""
        self._run(["touch", f"{DUMPS}/{MARKER}"])

    def list(self) -> tuple[Dump, ...]:
        """See `DumpStore.list`: one line for each file, its first bytes in hexadecimal, its name up to a zero byte."""
        entries = self._run(["bash", "-c", _LIST]).split("\0")
        dumps = sorted((self._dump(entry) for entry in entries if entry), key=lambda dump: dump.path)
        return tuple(dump for dump in dumps if dump.path != MARKER)

    def _dump(self, entry: str) -> Dump:
        head, size, modified, path = entry.split(" ", 3)
        return Dump(path=path, size=int(size), modified=float(modified), kind=kind_of(bytes.fromhex(head)))

    def remove(self, dumps: Sequence[Dump]) -> None:
        """See `DumpStore.remove`; the container sees the volume alone, so a link leads nowhere else."""
        for start in range(0, len(dumps), 500):
            self._run(["rm", "-f", "--", *(f"{DUMPS}/{dump.path}" for dump in dumps[start : start + 500])])

    @contextmanager
    def read(self, path: str) -> Generator[Iterator[bytes], None, None]:
        """See `DumpStore.read`."""
        client = self._engine.client
        with self._container(["true"]) as container, engine_errors(self._engine.endpoint):
            try:
                with container_archive(client, container, f"{DUMPS}/{path}") as (archive, _):
                    member = archive.next()
                    stream = archive.extractfile(member) if member else None
                    if stream is None:
                        raise BadInput(f"{path} of {self.name} is not a file")
                    yield _pieces(stream)
            except errors.NotFound as error:
                raise BadInput(f"{self.name} has no {path}", next_step="vdbg-env dumps list") from error

    def _run(self, argv: Sequence[str]) -> str:
        client = self._engine.client
        with self._container(argv) as container, engine_errors(self._engine.endpoint):
            client.start(container)
            code = client.wait(container, timeout=None)["StatusCode"]
            out = client.logs(container, stdout=True, stderr=False).decode("utf-8", "surrogateescape")
            if code != 0:
                said = client.logs(container, stdout=False, stderr=True).decode("utf-8", "replace")
                raise EngineFailed(f"looking into {self.name} failed: {' '.join(said.split())[:300]}")
        return out

    def _container(self, argv: Sequence[str]) -> AbstractContextManager[str]:
        # Root without DAC_OVERRIDE could neither read nor remove what another user's process has left.
        wanted = tool_container(
            self._image(), argv, "dumps", dumps=DumpVolume(source=self._volume), capabilities=("DAC_OVERRIDE",)
        )
        return created(self._engine, wanted)

    def _image(self) -> str:
        images = self._containers.images()
        if not images:
            raise BadInput(
                f"no image of vdbg-env is here to read {self.name} with",
                cause="a volume can be read only through a container, or by root",
                next_step="run the same as root, or vdbg-env build --profile sample",
            )
        return images[0].image_id


def find_dumps(engine: Engine, containers: ContainerRunner, volume: str) -> DumpStore | None:
    """Return a named volume's dumps, read in place where its folder may be, or None without such a volume."""
    with engine_errors(engine.endpoint):
        try:
            found = engine.client.inspect_volume(volume)
        except errors.NotFound:
            return None
    folder = Path(str(found.get("Mountpoint") or ""))
    ours = (found.get("Labels") or {}).get(f"{OUR_LABEL}.purpose") == "dumps"
    if found.get("Driver") == "local" and _readable(folder):
        return FolderDumps(folder, name=f"volume {volume}", ours=ours)
    return VolumeDumps(engine, containers, volume, ours=ours)


def _readable(folder: Path) -> bool:
    try:
        next(folder.iterdir(), None)
    except OSError:
        return False
    return True


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(_CHUNK):
        yield piece
