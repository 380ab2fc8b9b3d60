import errno
import json
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
from docker import errors

from vdbg_env.common.errors import EngineFailed, HostNotAble, VdbgError
from vdbg_env.engine.client import DEFAULT_HOST, Endpoint, connect, explain, find_endpoint

ENDPOINT = Endpoint(host="unix:///run/x.sock", source="DOCKER_HOST")


def with_context(folder: Path, name: str, meta: str) -> dict[str, str]:
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))
    place = folder / "contexts" / "meta" / "abc"
    place.mkdir(parents=True)
    (place / "meta.json").write_text(meta)
    return {"DOCKER_CONFIG": str(folder)}


def test_docker_host_wins_then_the_context_then_the_default_socket(tmp_path: Path) -> None:
    meta = json.dumps({"Name": "gpu-box", "Endpoints": {"docker": {"Host": "tcp://gpu-box:2376"}}})
    environ = with_context(tmp_path, "gpu-box", meta)
    found = find_endpoint(environ)
    assert (found.host, found.context, found.tls_folder) == ("tcp://gpu-box:2376", "gpu-box", None)
    assert find_endpoint(environ | {"DOCKER_HOST": "unix:///x"}).host == "unix:///x"
    assert find_endpoint(environ | {"DOCKER_CONTEXT": "default"}).host == DEFAULT_HOST
    assert find_endpoint({"DOCKER_CONFIG": str(tmp_path / "none")}).host == DEFAULT_HOST


@pytest.mark.parametrize("meta", ["", "[]", "{}", '{"Name": "gpu-box"}', '{"Name": "gpu-box", "Endpoints": []}'])
def test_a_context_that_cannot_be_read_is_named(tmp_path: Path, meta: str) -> None:
    with pytest.raises(HostNotAble, match="'gpu-box' cannot be read"):
        find_endpoint(with_context(tmp_path, "gpu-box", meta))


def test_a_spoilt_docker_configuration_means_the_default_as_it_does_to_docker(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{not json")
    assert find_endpoint({"DOCKER_CONFIG": str(tmp_path)}).host == DEFAULT_HOST


@pytest.mark.parametrize("listens", [None, "nobody"])
def test_no_engine_says_where_it_looked_and_what_to_type(tmp_path: Path, listens: str | None) -> None:
    path = tmp_path / "docker.sock"
    if listens:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    with pytest.raises(HostNotAble, match="cannot reach") as caught:
        connect({"DOCKER_HOST": f"unix://{path}"})
    assert str(path) in caught.value.what
    assert "--engine host" in (caught.value.next_step or "")


def api_error(status: int, text: str) -> errors.APIError:
    return errors.APIError(text, response=Mock(status_code=status), explanation=text)


@pytest.mark.parametrize(
    ("error", "kind", "what", "next_step"),
    [
        (errors.DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))"),
         HostNotAble, "no permission", "usermod -aG docker"),
        (api_error(400, "client version 1.24 is too old. Minimum supported API version is 1.44"),
         HostNotAble, "refuses this client", "pip install --upgrade docker"),
        (api_error(400, "client version 1.52 is too new. Maximum supported API version is 1.41"),
         HostNotAble, "refuses this client", "pip install --upgrade docker"),
        (errors.InvalidVersion("API versions below 1.24 are no longer supported"),
         HostNotAble, "too old", "20.10 or newer"),
        (api_error(500, "write /var/lib/docker/tmp/x: no space left on device"),
         EngineFailed, "is full", "docker system df"),
        (api_error(500, "/usr/bin/slirp4netns failed: open(/dev/net/tun): Permission denied"),
         HostNotAble, "cannot make a network", "chmod 666 /dev/net/tun"),
        (api_error(500, "could not find slirp4netns, the network namespace can't be configured"),
         HostNotAble, "cannot make a network", "apt-get install slirp4netns"),
        (api_error(500, "rootless netns: mount /run/user/1000/netns: invalid argument"),
         HostNotAble, "invalid argument", "podman run --rm IMAGE true, which fails the same way"),
        (api_error(500, "something\nelse"), EngineFailed, "refused: something else", ""),
        (OSError(errno.ENOSPC, "no room in /tmp to expand x.whl"), HostNotAble, "full: no room in /tmp", "TMPDIR"),
        (requests.exceptions.ReadTimeout("Read timed out"), EngineFailed, "in time", "docker version"),
        (requests.exceptions.ConnectionError("Connection reset by peer"), EngineFailed, "broke", "doctor"),
    ],
)  # fmt: skip
def test_what_the_client_library_raises_is_told_plainly(
    error: Exception, kind: type[VdbgError], what: str, next_step: str
) -> None:
    found = explain(error, ENDPOINT)
    assert type(found) is kind
    assert what in found.what
    assert next_step in (found.next_step or "")
    assert "\n" not in found.what


def test_an_address_that_cannot_be_parsed_is_named() -> None:
    with pytest.raises(HostNotAble, match=r"tcp://host:xx \(DOCKER_HOST\) is no address"):
        connect({"DOCKER_HOST": "tcp://host:xx"})
