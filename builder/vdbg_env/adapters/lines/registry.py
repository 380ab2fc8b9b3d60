"""Line packs as an OCI artifact: in the registry that the cluster has already, by digest.

OCI distribution specification 1.1. One manifest has one layer for each pack; its configuration is the empty one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode, urljoin, urlsplit

import requests

from gpucore.errors import UnreadableBinary
from vdbg_env.adapters.lines import fetch
from vdbg_env.adapters.lines.cache import DIGEST, PackCache
from vdbg_env.adapters.lines.remote_store import RemoteStore
from vdbg_env.application.ports.files import CarriedPack
from vdbg_env.common.errors import BadInput, HostNotAble

SCHEME: Final = "oci://"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT: Final = "application/vnd.vdbg-env.lines.v1"
LAYER: Final = "application/vnd.vdbg-env.lines.v1.pack"

_EMPTY: Final = b"{}"
_EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
_DESCRIPTION: Final = "org.opencontainers.image.description"
_LARGEST_MANIFEST: Final = 4 << 20
_REFERENCE: Final = re.compile(
    r"oci://(?P<host>[^/]+)/(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>\w[\w.-]{0,127}))?"
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
        plain = self.host.partition(":")[0] in ("localhost", "127.0.0.1", "[::1]")
        return f"http{'' if plain else 's'}://{self.host}/v2/{self.name}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse_reference(text: str) -> Reference:
    """Read `oci://HOST/NAME[:TAG][@DIGEST]`; raises BadInput when it is something else."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise BadInput(f"{text} is not of the form oci://HOST/NAME:TAG", next_step="oci://registry.example/lines:vllm")
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
        return self._all

    @cached_property
    def _all(self) -> Sequence[str]:
        return _layers(self._repository.manifest(self._reference.wanted), self.name)

    def _pack(self, digest: str) -> bytes:
        return self._repository.blob(digest)


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


def _layers(manifest: bytes, name: str) -> list[str]:
    """Return the digests of the packs that a manifest lists."""
    try:
        document = json.loads(manifest)
        layers = [layer["digest"] for layer in document["layers"] if layer["mediaType"] == LAYER]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableBinary(f"{name} is not an artifact of line packs: {error!r}") from error
    digests = [str(layer).removeprefix("sha256:") for layer in layers]
    if not digests or not all(DIGEST.fullmatch(digest) for digest in digests):
        raise UnreadableBinary(
            f"{name} has no line pack", cause="a container image, or an artifact of another program",
            next_step=f"vdbg-env lines push PACK {name}",
        )  # fmt: skip
    return digests


def _origin(address: str) -> tuple[str, str | None, int | None]:
    found = urlsplit(address)
    return found.scheme, found.hostname, found.port


class _Repository:
    """One repository of a registry, with the credentials that `docker login` kept."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference
        self._session: Final = requests.Session()
        self._authorization = ""

    def manifest(self, wanted: str) -> bytes:
        data = fetch.body(self._ask("GET", f"/manifests/{wanted}", headers={"Accept": MANIFEST}), _LARGEST_MANIFEST)
        if wanted.startswith("sha256:") and f"sha256:{hashlib.sha256(data).hexdigest()}" != wanted:
            raise HostNotAble(f"{self._reference} is another manifest than its digest says")
        return data

    def blob(self, digest: str) -> bytes:
        return fetch.body(self._ask("GET", f"/blobs/sha256:{digest}"))

    def upload(self, data: bytes) -> None:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        there = self._ask("HEAD", f"/blobs/{digest}")
        there.close()
        if there.status_code == requests.codes.ok:
            return
        begun = self._ask("POST", "/blobs/uploads/")
        begun.close()
        if begun.status_code != requests.codes.accepted or "Location" not in begun.headers:
            raise fetch.refused(begun)
        place = urljoin(begun.url, begun.headers["Location"])
        place += f"{'&' if '?' in place else '?'}digest={quote(digest)}"
        done = self._send("PUT", place, headers={"Content-Type": "application/octet-stream"}, data=data)
        done.close()
        if done.status_code != requests.codes.created:
            raise fetch.refused(done)

    def put_manifest(self, tag: str, data: bytes) -> str:
        answer = self._ask("PUT", f"/manifests/{tag}", headers={"Content-Type": MANIFEST}, data=data)
        answer.close()
        if answer.status_code != requests.codes.created:
            raise fetch.refused(answer)
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response:
        return self._send(method, self._reference.base + path, **more)

    def _send(
        self, method: str, address: str, *, headers: Mapping[str, str] | None = None, data: bytes | None = None
    ) -> requests.Response:
        """Send a request, once more with what the registry asks for when it refuses the first."""
        ours = _origin(address) == _origin(self._reference.base)
        if fetch.without_tls([self._reference.base, address]):
            raise HostNotAble(f"{self._reference.host} has its blobs sent to {address[:200]}, which has no TLS")
        if not ours:  # a registry may have another server take the blobs: it is not given our password
            return fetch.send(self._session, method, address, headers=headers, data=data)
        answer = fetch.send(self._session, method, address, headers=self._with(headers), data=data)
        if answer.status_code != requests.codes.unauthorized or _origin(answer.url) != _origin(self._reference.base):
            return answer
        challenge = answer.headers.get("WWW-Authenticate", "")
        answer.close()
        self._authorization = self._authorize(challenge)
        return fetch.send(self._session, method, address, headers=self._with(headers), data=data)

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
        if basic and fetch.without_tls([self._reference.base, realm]):
            raise HostNotAble(
                f"{self._reference.host} has its password sent to {realm[:200]}, which has no TLS",
                cause="a registry that is set up wrongly, or someone on the way",
                next_step=f"docker login {self._reference.host}, to see whether it does so too",
            )
        answer = fetch.send(
            self._session, "GET", f"{realm}?{urlencode(words)}", headers={"Authorization": basic} if basic else {}
        )
        try:
            found = json.loads(fetch.body(answer, _LARGEST_MANIFEST))
            return f"Bearer {found.get('token') or found['access_token']}"
        except (ValueError, KeyError, AttributeError) as error:
            raise HostNotAble(f"{realm} sends no token") from error
