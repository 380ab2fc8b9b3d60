"""Line packs behind an HTTP(S) address: what `vdbg-env lines push FOLDER` writes, handed out by any web server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import requests

from gpucore.errors import UnreadableBinary
from vdbg_env.adapters.lines import fetch, key_shards
from vdbg_env.adapters.lines.cache import DIGEST, PackCache
from vdbg_env.adapters.lines.published import KEYS, LIST, PACKS, read_list
from vdbg_env.adapters.lines.remote_store import RemoteStore
from vdbg_env.common.errors import HostNotAble
from vdbg_env.crash.line_packs import SUFFIX

_LARGEST_INDEX: Final = 64 << 20
_MISSING: Final = (404, 410)


class HttpStore(RemoteStore):
    """A LineStore over an address."""

    def __init__(self, address: str, cache: PackCache) -> None:
        super().__init__(address.rstrip("/"), cache)
        self._session: Final = requests.Session()
        self._shards: Final[dict[str, set[tuple[bytes, bytes]]]] = {}
        self._is_one = False

    def _digests(self, keys: Collection[bytes], release: str | None) -> Sequence[str]:
        return sorted({d for key in keys for d in self._with(key)}) if keys else self._listed(release)

    def _with(self, key: bytes) -> set[str]:
        name = key_shards.shard_name(key)
        if name not in self._shards:
            data = self._get(f"{KEYS}/{name}", _LARGEST_INDEX)
            if data is None:
                self._refuse_another_address()
            self._is_one = True
            self._shards[name] = set() if data is None else key_shards.load(data)
        return {digest.hex() for found, digest in self._shards[name] if found == key}

    def _listed(self, release: str | None) -> list[str]:
        """Return the packs of the list, those of a release first."""
        data = self._get(LIST, _LARGEST_INDEX)
        if data is None:
            raise self._no_list()
        found = read_list(data)
        if not all(DIGEST.fullmatch(digest) for digest in found):
            raise UnreadableBinary(f"{self.name}/{LIST} names packs by something else than their sha256")
        return sorted(
            found, key=lambda digest: (not release or release not in str(found[digest].get("builds")), digest)
        )

    def _refuse_another_address(self) -> None:
        """Raise HostNotAble where there is no list either: no key there is the answer of any wrong address."""
        if self._is_one:
            return
        answer = fetch.send(self._session, "GET", f"{self.name}/{LIST}")
        answer.close()
        if answer.status_code in _MISSING:
            raise self._no_list()

    def _no_list(self) -> HostNotAble:
        return HostNotAble(
            f"{self.name} has no {LIST}: it is not an address of line packs",
            cause="the address of another folder, or one that `vdbg-env lines push` did not write",
            next_step=f"curl -sI {self.name}/{LIST}",
        )

    def _pack(self, digest: str) -> bytes:
        data = self._get(f"{PACKS}/{digest}{SUFFIX}", fetch.LARGEST)
        if data is None:
            raise HostNotAble(
                f"{self.name} lists the line pack {digest[:12]} and does not have it",
                next_step="push it again: vdbg-env lines push PACK FOLDER",
            )
        return data

    def _get(self, path: str, most: int) -> bytes | None:
        """Return a file; None where there is none."""
        answer = fetch.send(self._session, "GET", f"{self.name}/{path}")
        if answer.status_code in _MISSING:
            answer.close()
            return None
        return fetch.body(answer, most)
