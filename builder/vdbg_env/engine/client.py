"""Find and connect to the Docker Engine; every failure becomes an error with what to type.

The engine is that of the docker command: DOCKER_HOST, else the current docker context, else the default
socket. The API version is negotiated: Engine 29 refuses the versions Engine 20.10 speaks, and vice versa.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
import urllib3
from docker import errors, tls, utils

from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError
from vdbg_env.common.stop import waiting

_WITHOUT = "without an engine: build --engine host, dumps list --dumps FOLDER"

DEFAULT_HOST = "unix:///var/run/docker.sock"
OUR_LABEL = "dev.vdbg-env"  # every label this program writes begins so; what lacks it is never listed or removed

# What requests, urllib3 and the socket raise when the engine goes away.
GONE = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address of the engine, and its `source`; `context` is the docker context, if that was the source."""

    host: str
    source: str
    context: str | None = None
    tls_folder: Path | None = None


class _Client(docker.APIClient):
    """The client library, whose calls end when this program is told to stop."""

    def send(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        """Send a request and wait for its answer; see `requests.Session.send`."""
        with waiting():
            return super().send(request, **settings)


class Engine:
    """A connection to an engine, with its version; it is closed when it is no longer referenced."""

    def __init__(self, client: docker.APIClient, endpoint: Endpoint, version: Mapping[str, Any]) -> None:
        self.client = client
        self.endpoint = endpoint
        self.looked_for_abandoned = False  # containers of killed programs are looked for once
        self.version = str(version.get("Version", "unknown"))
        self.api_version = str(version.get("ApiVersion", "0"))
        self.is_podman = any("Podman" in str(part.get("Name")) for part in version.get("Components") or ())
        weakref.finalize(self, client.close)

    def no_buildkit(self) -> str | None:
        """Return why a build cannot be sent to the engine's own BuildKit, or None where it can."""
        if self.is_podman:
            return "Podman has no BuildKit"
        if not utils.version_gte(self.api_version, "1.39"):
            return f"Docker {self.version} is older than 18.09 and has no BuildKit"
        if self._loses_contexts():
            return f"Docker {self.version} with the containerd image store loses what is sent to its BuildKit"
        return None

    def _loses_contexts(self) -> bool:
        """Return whether the engine has the fault that 27.5 ended (moby/moby#47717)."""
        release = re.match(r"(\d+)\.(\d+)", self.version)
        if not release or (int(release[1]), int(release[2])) >= (27, 5):
            return False
        with engine_errors(self.endpoint):
            status = self.client.info().get("DriverStatus") or ()
        return ["driver-type", "io.containerd.snapshotter.v1"] in status


def find_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of the docker command; raises HostNotAble when its context cannot be read."""
    if host := environ.get("DOCKER_HOST"):
        folder = environ.get("DOCKER_CERT_PATH") if environ.get("DOCKER_TLS_VERIFY") else None
        return Endpoint(host=host, source="DOCKER_HOST", tls_folder=Path(folder) if folder else None)
    config = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "/root")) / ".docker")
    name = environ.get("DOCKER_CONTEXT") or _current_context(config)
    if name and name != "default":
        return _context_endpoint(config, name)
    return Endpoint(host=DEFAULT_HOST, source="the default socket")


def connect(environ: Mapping[str, str] | None = None) -> Engine:
    """Connect to the engine; raises HostNotAble when none answers, and says why as far as it can be known."""
    endpoint = find_endpoint(os.environ if environ is None else environ)
    with engine_errors(endpoint):
        _knock(endpoint.host)
        try:
            client = _Client(base_url=endpoint.host, tls=_tls(endpoint), timeout=60)
        except ValueError as error:  # the client library lets urllib's complaint about the address through
            raise HostNotAble(
                f"{endpoint.host} ({endpoint.source}) is no address of a Docker engine: {error}",
                next_step="export DOCKER_HOST=unix:///var/run/docker.sock",
            ) from error
        return Engine(client, endpoint, client.version())


def _knock(host: str) -> None:
    """Raise the plain OSError when nothing listens on a unix socket: the client library would leave one open."""
    path = host.removeprefix("unix://")
    if path != host:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)


def printed(client: docker.APIClient, container: str) -> tuple[str, str]:
    """Return what a container printed: its output and its errors."""
    streams = [client.logs(container, stdout=out, stderr=not out) for out in (True, False)]
    out, err = (data.decode("utf-8", "replace") for data in streams)
    return out, err


def raise_for_status(response: requests.Response) -> None:
    """Raise the client library's error for a response of the engine that reports one."""
    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        raise errors.create_api_error_from_http_exception(error) from error


@contextmanager
def engine_errors(endpoint: Endpoint) -> Iterator[None]:
    """Turn errors of the client library into ours."""
    try:
        yield
    except (errors.DockerException, *GONE) as error:
        raise explain(error, endpoint) from error


def inspect_image(engine: Engine, image: str, *, name: str | None = None) -> dict[str, Any]:
    """Return what an engine knows of an image; raises BadInput, with the `name` that the user gave it, without one."""
    with engine_errors(engine.endpoint):
        try:
            found: dict[str, Any] = engine.client.inspect_image(image)  # type: ignore[no-untyped-call]
        except errors.NotFound as error:
            raise no_such_image(name or image) from error
    return found


def no_such_image(name: str) -> BadInput:
    """Return the error for an image that the engine does not have."""
    return BadInput(
        f"the engine has no image {name!r}",
        cause="it was not pulled, was built under another name or on another engine, or was removed since",
        next_step=f"docker images, to see what it has; docker pull {name}, or vdbg-env build --lineinfo",
    )


def explain(error: Exception, endpoint: Endpoint) -> VdbgError:
    """Return our error for one of the client library, with its usual cause and what to type."""
    text = str(error)
    where = f"the Docker engine at {endpoint.host} ({endpoint.source})"
    match error:
        case OSError(errno=errno.ENOSPC):
            return HostNotAble(
                f"a disk of this machine is full: {error.strerror}",
                cause=f"what is read of an image is copied to {tempfile.gettempdir()}",
                next_step="df -h, and export TMPDIR=FOLDER, one on a disk with more room",
            )
        case errors.ImageNotFound() | errors.NotFound():
            return EngineFailed(
                f"the engine does not have it: {_said(error)}", next_step="docker images, to see what it has"
            )
        case errors.APIError() if "client version" in text:
            return HostNotAble(
                f"{where} refuses this client: {_said(error)}",
                cause="an engine newer than the installed Python package docker, or one from before Docker 1.13",
                next_step="pip install --upgrade docker",
            )
        case errors.APIError() if "no space left on device" in text.lower():
            return EngineFailed(
                f"the disk of {where} is full", next_step="docker system df, and free some space on that disk"
            )
        case errors.APIError() if "slirp4netns" in text or "pasta" in text or "rootless netns" in text:
            cause, next_step = _no_network(text)
            return HostNotAble(
                f"{where} cannot make a network for a container: {_said(error)}", cause=cause, next_step=next_step
            )
        case errors.APIError():
            return EngineFailed(f"{where} refused: {_said(error)}")
        case errors.InvalidVersion():
            return HostNotAble(f"{where} is too old: {text}", next_step="install Docker Engine 20.10 or newer")
    if "Permission denied" in text or "PermissionError" in text:
        return HostNotAble(
            f"no permission to speak to {where}",
            cause="the socket belongs to root and the group docker, and you are not in that group",
            next_step=f"sudo usermod -aG docker $USER, log in again; {_WITHOUT}",
        )
    if any(mark in text for mark in ("FileNotFoundError", "No such file", "Connection refused", "ConnectionRefused")):
        return HostNotAble(
            f"cannot reach {where}",
            cause="Docker is not installed, not started, or DOCKER_HOST names another machine",
            next_step=f"systemctl start docker (as root); {_WITHOUT}",
        )
    if isinstance(error, requests.exceptions.ReadTimeout) or "timed out" in text:
        return EngineFailed(f"{where} did not answer in time", next_step="docker version, to see whether it still does")
    return EngineFailed(f"the connection to {where} broke: {_one_line(text)}", next_step="vdbg-env doctor")


def _no_network(text: str) -> tuple[str, str]:
    """Return why rootless Podman gives a container no network, and what to type."""
    if "/dev/net/tun" in text:
        return (
            "the user of rootless Podman may not open /dev/net/tun",
            "sudo modprobe tun && sudo chmod 666 /dev/net/tun, then podman run --rm IMAGE true",
        )
    if "not found" in text or "could not find" in text or "no such file" in text.lower():
        return "rootless Podman needs slirp4netns, or from 4.4 on passt", "sudo apt-get install slirp4netns"
    return (
        "rootless Podman's own network does not start, for the reason above",
        "podman run --rm IMAGE true, which fails the same way until that is repaired",
    )


def _said(error: Exception) -> str:
    said = getattr(error, "explanation", None) or error
    return _one_line(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


def _current_context(config: Path) -> str | None:
    try:
        found = json.loads((config / "config.json").read_text())
    except (OSError, ValueError):
        return None  # the docker command, too, takes the default context then
    name = found.get("currentContext") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def _context_endpoint(config: Path, name: str) -> Endpoint:
    for meta in sorted((config / "contexts" / "meta").glob("*/meta.json")):
        try:
            found = json.loads(meta.read_text())
            if found["Name"] == name:
                host = found["Endpoints"]["docker"]["Host"]
                folder = config / "contexts" / "tls" / meta.parent.name / "docker"
                return Endpoint(
                    host=host,
                    source=f"docker context {name}",
                    context=name,
                    tls_folder=folder if folder.is_dir() else None,
                )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    raise HostNotAble(
        f"the docker context {name!r} cannot be read in {config}",
        cause="it was removed, or DOCKER_CONFIG names another folder",
        next_step="docker context ls, then docker context use default",
    )


def _tls(endpoint: Endpoint) -> tls.TLSConfig | bool:
    if endpoint.tls_folder is None:
        return False
    folder = endpoint.tls_folder
    pair = (str(folder / "cert.pem"), str(folder / "key.pem"))
    return tls.TLSConfig(client_cert=pair, ca_cert=str(folder / "ca.pem"), verify=True)
