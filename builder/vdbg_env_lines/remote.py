"""Line packs on a server: behind an HTTP address, or in an OCI registry, with time limits and within a size."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urljoin

import requests

from gpucore.errors import UnreadableBinary
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.crash.line_packs import SUFFIX, LineStore, PackFile
from vdbg_env_lines import stores
from vdbg_env_lines.client import (
    LARGEST,
    Client,
    Take,
    bare,
    is_loopback,
    keeps_passwords,
    origin,
    parse_host,
    refused,
    without_password,
    without_tls,
)
from vdbg_env_lines.stores import DIGEST, KEYS, LIST, PACKS, CarriedPack, PackCache, PackTarget, read_list

# A place of line packs on a server: what it has by digest, each pack fetched through the cache.


class RemoteStore(ABC):
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
                yield self._cache.get(digest, self.name, partial(self._pack, digest))
        except (HostNotAble, UnreadableBinary) as error:
            self._failed = error
            raise

    @abstractmethod
    def _digests(self, keys: Collection[bytes], release: str | None) -> Sequence[str]:
        """Return the packs to yield: those with one of the keys, or all where the server cannot say."""

    @abstractmethod
    def _pack(self, digest: str, take: Take) -> None:
        """Fetch a pack, piece by piece."""


# Line packs behind an HTTP(S) address: what `vdbg-env lines push FOLDER` writes, handed out by any web server.


_LARGEST_INDEX: Final = 64 << 20
_MISSING: Final = (404, 410)


class HttpStore(RemoteStore):
    """A LineStore over an address."""

    def __init__(self, address: str, cache: PackCache) -> None:
        super().__init__(bare(address).rstrip("/"), cache)
        self._client: Final = Client(address)
        self._sizes: Final[dict[str, int]] = {}
        self._shards: Final[dict[str, set[tuple[bytes, bytes]]]] = {}
        self._is_one = False

    def _digests(self, keys: Collection[bytes], release: str | None) -> Sequence[str]:
        return sorted({d for key in keys for d in self._with(key)}) if keys else self._listed(release)

    def _with(self, key: bytes) -> set[str]:
        name = stores.shard_name(key)
        if name not in self._shards:
            data = self._get(f"{KEYS}/{name}", _LARGEST_INDEX)
            if data is None:
                self._refuse_another_address()
            self._is_one = True
            self._shards[name] = set() if data is None else stores.load_shard(data)
        return {digest.hex() for found, digest in self._shards[name] if found == key}

    def _listed(self, release: str | None) -> list[str]:
        """Return the packs of the list, those of a release first."""
        data = self._get(LIST, _LARGEST_INDEX)
        if data is None:
            raise self._no_list()
        found = read_list(data)
        if not all(DIGEST.fullmatch(digest) for digest in found):
            raise UnreadableBinary(f"{self.name}/{LIST} names packs by something else than their sha256")
        for digest, entry in found.items():
            if isinstance(size := entry.get("size"), int):
                self._sizes[digest] = size
        return sorted(
            found, key=lambda digest: (not release or release not in str(found[digest].get("builds")), digest)
        )

    def _refuse_another_address(self) -> None:
        """Raise HostNotAble where there is no list either: no key there is the answer of any wrong address."""
        if self._is_one:
            return
        answer = self._client.send("GET", f"{self.name}/{LIST}")
        answer.close()
        if answer.status_code in _MISSING:
            raise self._no_list()

    def _no_list(self) -> HostNotAble:
        return HostNotAble(
            f"{self.name} has no {LIST}: it is not an address of line packs",
            cause="the address of another folder, or one that `vdbg-env lines push` did not write",
            next_step=f"curl -sI {self.name}/{LIST}",
        )

    def _pack(self, digest: str, take: Take) -> None:
        answer = self._ask(f"{PACKS}/{digest}{SUFFIX}")
        if answer is None:
            raise HostNotAble(
                f"{self.name} lists the line pack {digest[:12]} and does not have it",
                next_step="push it again: vdbg-env lines push PACK FOLDER",
            )
        self._client.receive(answer, take, min(LARGEST, self._sizes.get(digest, LARGEST)))

    def _get(self, path: str, most: int) -> bytes | None:
        """Return a file; None where there is none."""
        answer = self._ask(path)
        return None if answer is None else self._client.body(answer, most)

    def _ask(self, path: str) -> requests.Response | None:
        answer = self._client.send("GET", f"{self.name}/{path}")
        if answer.status_code in _MISSING:
            answer.close()
            return None
        return answer


# Line packs as an OCI artifact: in the registry that the cluster has already, by digest.
#
# OCI distribution specification 1.1. One manifest has one layer for each pack; its configuration is the empty one.


SCHEME: Final = "oci://"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT: Final = "application/vnd.vdbg-env.lines.v1"
LAYER: Final = "application/vnd.vdbg-env.lines.v1.pack"

_EMPTY: Final = b"{}"
_EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
_DESCRIPTION: Final = "org.opencontainers.image.description"
_LARGEST_MANIFEST: Final = 4 << 20
_REFERENCE: Final = re.compile(
    r"oci://(?P<host>[^/@]+)/(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>\w[\w.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A place in a registry; without tag and digest the tag is `latest`."""

    host: str
    name: str
    tag: str
    digest: str | None

    @property
    def wanted(self) -> str:
        """What the manifest is asked for by."""
        return self.digest or self.tag

    @property
    def base(self) -> str:
        """The address of the repository; a loopback address speaks plain HTTP, as for container engines."""
        plain = is_loopback(parse_host(self.host))
        return f"http{'' if plain else 's'}://{self.host}/v2/{self.name}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse_reference(text: str) -> Reference:
    """Read `oci://HOST/NAME[:TAG][@DIGEST]`; raises BadInput when it is something else."""
    found = _REFERENCE.fullmatch(text)
    if found is None or parse_host(found["host"]) is None:
        raise BadInput(
            f"{without_password(text)} is not of the form oci://HOST/NAME:TAG",
            cause="a user or a password in the address: those of a registry are what `docker login` keeps"
            if "@" in text.partition("://")[2].partition("/")[0]
            else None,
            next_step="oci://registry.example/lines:vllm",
        )
    return Reference(host=found["host"], name=found["name"], tag=found["tag"] or "latest", digest=found["digest"])


class RegistryStore(RemoteStore):
    """A LineStore over one artifact."""

    def __init__(self, reference: Reference, cache: PackCache) -> None:
        super().__init__(str(reference), cache)
        self._reference: Final = reference
        self._repository: Final = _Repository(reference)

    def _digests(self, keys: Collection[bytes], release: str | None) -> Sequence[str]:
        """Return every pack of the artifact: it cannot say which keys they have."""
        del keys, release
        return tuple(self._all)

    @cached_property
    def _all(self) -> Mapping[str, int]:
        return _layers(self._repository.manifest(self._reference.wanted), self.name)

    def _pack(self, digest: str, take: Take) -> None:
        self._repository.blob(digest, take, self._all[digest])


class RegistryTarget:
    """A PackTarget that writes packs as one artifact; the same packs give the same digest."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference

    def put(self, packs: Sequence[CarriedPack]) -> tuple[str, ...]:
        """Write the artifact and return its reference by digest; raises HostNotAble when the registry refuses it."""
        repository = _Repository(self._reference)
        blobs = [bytes(pack.data) for pack in sorted(packs, key=lambda pack: pack.digest)]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": _descriptor(_EMPTY_TYPE, _EMPTY),
            "layers": [_descriptor(LAYER, blob) for blob in blobs],
            "annotations": {_DESCRIPTION: " and ".join(dict.fromkeys(pack.builds for pack in packs))[:1024]},
        }
        for blob in (_EMPTY, *blobs):
            repository.upload(blob)
        data = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        return (str(replace(self._reference, digest=repository.put_manifest(self._reference.tag, data))),)


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _layers(manifest: bytes, name: str) -> dict[str, int]:
    """Return the digests of the packs that a manifest lists, and their sizes."""
    try:
        document = json.loads(manifest)
        layers = [(layer["digest"], layer["size"]) for layer in document["layers"] if layer["mediaType"] == LAYER]
        digests = {str(digest).removeprefix("sha256:"): min(LARGEST, int(size)) for digest, size in layers}
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise UnreadableBinary(f"{name} is not an artifact of line packs: {error!r:.200}") from error
    if not digests or not all(DIGEST.fullmatch(digest) for digest in digests):
        raise UnreadableBinary(
            f"{name} has no line pack", cause="a container image, or an artifact of another program",
            next_step=f"vdbg-env lines push PACK {name}",
        )  # fmt: skip
    return digests


class _Repository:
    """One repository of a registry, with the credentials that `docker login` kept."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference
        self._client: Final = Client(reference.base)
        self._authorization = ""

    def manifest(self, wanted: str) -> bytes:
        answer = self._ask("GET", f"/manifests/{wanted}", headers={"Accept": MANIFEST})
        data = self._client.body(answer, _LARGEST_MANIFEST)
        if wanted.startswith("sha256:") and f"sha256:{hashlib.sha256(data).hexdigest()}" != wanted:
            raise HostNotAble(f"{self._reference} is another manifest than its digest says")
        return data

    def blob(self, digest: str, take: Take, most: int) -> None:
        self._client.receive(self._ask("GET", f"/blobs/sha256:{digest}"), take, most)

    def upload(self, data: bytes) -> None:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        there = self._ask("HEAD", f"/blobs/{digest}")
        there.close()
        if there.status_code == requests.codes.ok:
            return
        begun = self._ask("POST", "/blobs/uploads/")
        begun.close()
        if begun.status_code != requests.codes.accepted or "Location" not in begun.headers:
            raise refused(begun)
        try:
            place = urljoin(begun.url, begun.headers["Location"])
        except ValueError:
            place = begun.headers["Location"]
        place += f"{'&' if '?' in place else '?'}digest={quote(digest)}"
        done = self._send("PUT", place, headers={"Content-Type": "application/octet-stream"}, data=data)
        done.close()
        if done.status_code != requests.codes.created:
            raise refused(done)

    def put_manifest(self, tag: str, data: bytes) -> str:
        answer = self._ask("PUT", f"/manifests/{tag}", headers={"Content-Type": MANIFEST}, data=data)
        answer.close()
        if answer.status_code != requests.codes.created:
            raise refused(answer)
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response:
        return self._send(method, self._reference.base + path, **more)

    def _send(
        self, method: str, address: str, *, headers: Mapping[str, str] | None = None, data: bytes | None = None
    ) -> requests.Response:
        """Send a request, once more with what the registry asks for when it refuses the first."""
        try:
            ours = origin(address) == origin(self._reference.base)
        except ValueError as error:
            raise HostNotAble(f"{self._reference.host} has its blobs sent to no address: {error}") from error
        if without_tls([self._reference.base, address]):
            raise HostNotAble(
                f"{self._reference.host} has its blobs sent to {without_password(address)}, which has no TLS"
            )
        if not ours:  # a registry may have another server take the blobs: it is not given our password
            return self._client.send(method, address, headers=headers, data=data)
        answer = self._client.send(method, address, headers=self._with(headers), data=data)
        if answer.status_code != requests.codes.unauthorized or origin(answer.url) != origin(self._reference.base):
            return answer
        challenge = answer.headers.get("WWW-Authenticate", "")
        answer.close()
        self._authorization = self._authorize(challenge)
        return self._client.send(method, address, headers=self._with(headers), data=data)

    def _with(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        own = {"Authorization": self._authorization} if self._authorization else {}
        return {**(headers or {}), **own}

    def _authorize(self, challenge: str) -> str:
        """Return the header by which the registry knows us: Basic, or a token of the service that it names."""
        from docker.auth import load_config  # loads most of the Docker SDK: only where a registry asks

        known = load_config().resolve_authconfig(self._reference.host) or {}
        user, password = known.get("username"), known.get("password")
        basic = requests.auth._basic_auth_str(user, password) if user and password else ""
        if not challenge.lower().startswith("bearer"):
            if not basic:
                raise HostNotAble(
                    f"{self._reference.host} asks for a password", next_step=f"docker login {self._reference.host}"
                )
            return basic
        words = dict(_CHALLENGE.findall(challenge))
        realm = words.pop("realm", "")
        if (basic and not keeps_passwords(realm)) or without_tls([self._reference.base, realm]):
            raise HostNotAble(
                f"{self._reference.host} has its password sent to {without_password(realm)}, which has no TLS",
                cause="a registry that is set up wrongly, or someone on the way",
                next_step=f"docker login {self._reference.host}, to see whether it does so too",
            )
        asked = f"{realm}{'&' if '?' in realm else '?'}{urlencode(words)}"
        answer = self._client.send("GET", asked, headers={"Authorization": basic} if basic else {})
        try:
            found = json.loads(self._client.body(answer, _LARGEST_MANIFEST))
            return f"Bearer {found.get('token') or found['access_token']}"
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise HostNotAble(f"{without_password(realm)} sends no token") from error


def open_store(address: str) -> LineStore:
    """Return the store at an address; raises BadInput for one of another form."""
    if address.startswith(SCHEME):
        return RegistryStore(parse_reference(address), stores.cache())
    return HttpStore(address, stores.cache())


def open_target(name: str) -> PackTarget:
    """Return the place that a name means to put packs into; raises BadInput for one that only gives them."""
    if name.startswith(("http://", "https://")):
        raise BadInput(
            f"{name} only gives line packs",
            next_step="vdbg-env lines push PACK FOLDER, where FOLDER is what the web server hands out at that address",
        )
    if name.startswith(SCHEME):
        return RegistryTarget(parse_reference(name))
    return stores.PublishedFolder(Path(name).expanduser())
