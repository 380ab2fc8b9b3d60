"""Where line packs go: into the cache of what was fetched, a folder here, a folder that a web server hands out."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from gpucore.errors import UnreadableBinary
from gpucore.line_pack import KEY_SIZE, PACK_MAGIC, checksum
from gpucore.line_packs import LinePack
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.crash.files import Buffer, mapped_for_good
from vdbg_env.crash.line_packs import SUFFIX, LineStore, PackFile, write_whole
from vdbg_env.image.settings import parse_size
from vdbg_env.lines.packs import cache_folder, least_used, summarize
from vdbg_env.record.run_directory import replacement


@dataclass(frozen=True, kw_only=True)
class CarriedPack:
    """A sound line pack on its way to a store: its sha256, how many functions it has, of which builds."""

    digest: str
    functions: int
    builds: str
    data: Buffer


class PackTarget(Protocol):
    """A place that line packs can be put into."""

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Put packs there and return how each, or all together, are asked for.

        Raises BadInput when a folder cannot be written, HostNotAble when a server refuses.
        """
        ...


def carry(stores: Sequence[LineStore], target: PackTarget) -> tuple[str, ...]:
    """Put the packs of some stores into a target, each read to its end before; raises as stores and targets do."""
    packs = [_sound(file) for store in stores for file in store.packs()]
    if not packs:
        raise BadInput(f"{', '.join(store.name for store in stores)} has no line pack")
    return target.put(packs)


def _sound(file: PackFile) -> CarriedPack:
    found = summarize(file, check=True)
    if found.problem:
        raise UnreadableBinary(f"{file.name}: {found.problem}", next_step="get it again, or pack it again")
    return CarriedPack(digest=found.digest, functions=found.functions, builds=found.builds, data=file.data)


# Packs that were fetched, by their sha256, up to a number of bytes: those that were not used for longest go first.


DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class PackCache:
    """A folder of packs named by their sha256; each is compared with its name once, before it is used."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder: Final = folder
        self._most: Final = most_bytes
        self._checked: Final[set[str]] = set()

    def get(self, digest: str, origin: str, fetch: Callable[[Callable[[bytes], object]], None]) -> PackFile:
        """Return a pack, fetched from `origin` where it is not here; raises HostNotAble when it is another one.

        `fetch` gives its pieces to a function. What is no pack by its first bytes is not fetched to its end.
        """
        path = self._folder / f"{digest}{SUFFIX}"
        if digest not in self._checked and not self._is_sound(path, digest):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacement(path) as file:
                    incoming = _Incoming(file, digest, origin)
                    fetch(incoming.take)
                    incoming.finish()
            except OSError as error:
                raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error
            self._keep_within_bound(path)
        self._checked.add(digest)
        with contextlib.suppress(OSError):  # a cache that is read only works too; its order is then that of arrival
            os.utime(path)
        return PackFile(name=f"{origin}@{digest[:12]}", data=mapped_for_good(path), path=path)

    def _is_sound(self, path: Path, digest: str) -> bool:
        try:
            return hashlib.sha256(mapped_for_good(path)).hexdigest() == digest
        except FileNotFoundError:
            return False
        except OSError as error:
            raise HostNotAble(f"{path} cannot be read: {error.strerror or error}") from error

    def _keep_within_bound(self, newest: Path) -> None:
        for path in least_used(self._folder, self._most):
            if path != newest:
                path.unlink(missing_ok=True)


class _Incoming:
    """A pack on its way into a file: its bytes are compared with what they claim, and with its sha256 at the end."""

    def __init__(self, file: IO[bytes], digest: str, origin: str) -> None:
        self._file, self._digest, self._origin = file, digest, origin
        self._hash = hashlib.sha256()
        self._size = 0

    def take(self, piece: bytes) -> None:
        """Write a piece; raises HostNotAble where these are not the bytes of a pack."""
        begin = PACK_MAGIC[self._size :]
        self._size += len(piece)
        if not piece.startswith(begin[: len(piece)]):
            raise self._another()
        self._hash.update(piece)
        self._file.write(piece)

    def finish(self) -> None:
        """Raise HostNotAble where it is another pack than was asked for."""
        if self._hash.hexdigest() != self._digest:
            raise self._another()

    def _another(self) -> HostNotAble:
        return HostNotAble(
            f"{self._origin} sent another line pack than {self._digest[:12]}",
            cause="a proxy that answers in place of the server, or a transfer that was cut short",
            next_step=f"curl -s {self._origin} | sha256sum",
        )


# The index of a store: which packs may have a function, by the first bytes of its code hash and of its name's hash.
#
# 256 small files, by the first byte of the key; a row is a key of eight bytes and the sha256 of a pack. A client
# fetches the files of the keys that it looks for, then the packs themselves, whose names never change their contents.


MAGIC: Final = b"VDBGKEY1"

_ROW: Final = struct.Struct("<8s32s")
_SUM: Final = 16


def shard_name(key: bytes) -> str:
    """Return the name of the file that has a key."""
    return f"{key[0]:02x}"


def keys_of(pack: LinePack) -> set[bytes]:
    """Return every key of a pack."""
    return {key for code, name in pack.keys() for key in (code[:KEY_SIZE], name)}  # noqa: SIM118 - not a dict


def shards(keys: Iterable[bytes], digest: str) -> Mapping[str, set[tuple[bytes, bytes]]]:
    """Return the rows that a pack adds to each file."""
    found: dict[str, set[tuple[bytes, bytes]]] = defaultdict(set)
    for key in keys:
        found[shard_name(key)].add((key, bytes.fromhex(digest)))
    return found


def dump_shard(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a file of rows."""
    body = b"".join(_ROW.pack(*row) for row in sorted(rows))
    return MAGIC + checksum(body, _SUM) + body


def load_shard(data: bytes) -> set[tuple[bytes, bytes]]:
    """Return the rows of a file; raises UnreadableBinary when it is damaged, or is something else."""
    body = data[len(MAGIC) + _SUM :]
    if not data.startswith(MAGIC) or len(body) % _ROW.size or data[len(MAGIC) :][:_SUM] != checksum(body, _SUM):
        raise UnreadableBinary("not an index of line packs, or a damaged one")
    return set(_ROW.iter_unpack(body))


class Shelf:
    """A PackTarget over a folder of this machine; packs that are there already stay."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Write packs and return their paths; raises BadInput when that is not possible."""
        paths = {self._folder / f"{pack.digest}{SUFFIX}": pack.data for pack in packs}
        for path, data in paths.items():
            if not path.exists():
                write_whole(path, data)
        return tuple(map(str, paths))


# A folder that a web server hands out: immutable packs by their sha256, a list of them, and an index by keys.


LIST: Final = "packs.json"
PACKS: Final = "packs"
KEYS: Final = "keys"


class PublishedFolder:
    """A PackTarget over such a folder; a pack that is there already stays as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Add packs and return their paths; two that do so at once wait for each other.

        Raises BadInput when the folder cannot be written, and UnreadableBinary when its index is damaged.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return tuple(self._add(pack) for pack in packs)
        except OSError as error:
            raise BadInput(f"{self._folder} cannot be written: {error.strerror or error}") from error

    def _add(self, pack: CarriedPack) -> str:
        path = self._folder / PACKS / f"{pack.digest}{SUFFIX}"
        if not path.exists():
            write_whole(path, pack.data)
        for name, rows in shards(keys_of(LinePack(pack.data)), pack.digest).items():
            shard = self._folder / KEYS / name
            known = load_shard(shard.read_bytes()) if shard.exists() else set()
            if not rows <= known:
                write_whole(shard, dump_shard(known | rows))
        self._list(pack)
        return str(path)

    def _list(self, pack: CarriedPack) -> None:
        path = self._folder / LIST
        listed = read_list(path.read_bytes()) if path.exists() else {}
        entry = {"size": len(pack.data), "functions": pack.functions, "builds": pack.builds}
        if listed.get(pack.digest) != entry:
            write_whole(path, json.dumps({**listed, pack.digest: entry}, indent=1, sort_keys=True).encode())


def read_list(data: bytes) -> dict[str, dict[str, object]]:
    """Return the entries of a list of packs, by sha256; raises UnreadableBinary when it is something else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableBinary(f"the list of line packs is damaged: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise UnreadableBinary("the list of line packs is something else")
    return found


BOUND: Final = "VDBG_LINES_CACHE"

_BOUND: Final = 4 << 30


def cache() -> PackCache:
    """Return the cache of what was fetched; VDBG_LINES_CACHE says how large it may be, such as 8g."""
    bound = os.environ.get(BOUND)
    return PackCache(cache_folder(), parse_size(bound, BOUND) if bound else _BOUND)
