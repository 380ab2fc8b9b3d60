"""A place of line packs on a server: what it has by digest, each pack fetched through the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpucore.errors import UnreadableBinary
from vdbg_env.adapters.lines.cache import PackCache
from vdbg_env.common.errors import HostNotAble
from vdbg_env.crash.line_packs import PackFile


class RemoteStore:
    """A LineStore. What its server could not say once it is not asked again."""

    local: Final = False

    def __init__(self, name: str, cache: PackCache) -> None:
        self.name: Final = name
        self._cache: Final = cache
        self._failed: HostNotAble | UnreadableBinary | None = None

    def packs(self, keys: Collection[bytes] = (), *, release: str | None = None) -> Iterator[PackFile]:
        """Yield the packs that may have one of the keys, fetched where they are not in the cache."""
        if self._failed:
            raise self._failed
        try:
            for digest in self._digests(keys, release):
                yield self._cache.get(digest, self.name, lambda digest=digest: self._pack(digest))  # type: ignore[misc]
        except (HostNotAble, UnreadableBinary) as error:
            self._failed = error
            raise

    def _digests(self, keys: Collection[bytes], release: str | None) -> Sequence[str]:
        """Return the packs to yield: those with one of the keys, or all where the server cannot say."""
        raise NotImplementedError

    def _pack(self, digest: str) -> bytes:
        """Fetch a pack."""
        raise NotImplementedError
