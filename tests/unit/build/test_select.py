from collections.abc import Callable
from typing import cast

import docker
import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.build.builder import BuilderName
from vdbg_env.build.buildkit import Buildx, choose_builder
from vdbg_env.common.errors import EngineFailed, HostNotAble
from vdbg_env.engine.client import Endpoint, Engine

BUILDX = Buildx(argv=("docker", "buildx"), version="v0.24.0")


class Client:
    def close(self) -> None:
        """Nothing was opened."""

    def info(self) -> dict[str, object]:
        """Return what an engine with the older image store says of itself."""
        return {"DriverStatus": [["Backing Filesystem", "extfs"]]}


def docker_of(api: str) -> Callable[[], Engine]:
    endpoint = Endpoint(host="unix:///x", source="the default socket")
    version = {"Version": "1.2.3", "ApiVersion": api}
    return lambda: Engine(cast(docker.APIClient, Client()), endpoint, version)


def no_docker() -> Engine:
    raise HostNotAble("cannot reach unix:///x")


@pytest.mark.parametrize(
    ("wanted", "buildx", "taken", "reason"),
    [
        ("auto", BUILDX, "buildx", "installed"),
        ("docker", BUILDX, "buildx", "installed"),
        ("auto", None, "buildkit", "docker-buildx is not installed"),
        ("buildkit", BUILDX, "buildkit", "--engine buildkit"),
        ("host", BUILDX, "host", "--engine host"),
    ],
)
def test_the_best_engine_there_is_gets_taken_and_says_why(
    wanted: BuilderName, buildx: Buildx | None, taken: str, reason: str
) -> None:
    found = choose_builder(wanted, connect=docker_of("1.41"), find_buildx=lambda: buildx).describe()
    assert found.name == taken
    assert reason in found.why


@pytest.mark.parametrize("wanted", ["auto", "docker", "buildx", "buildkit"])
def test_without_docker_nothing_builds_here_unasked(wanted: BuilderName) -> None:
    with pytest.raises(HostNotAble, match="cannot reach") as caught:
        choose_builder(wanted, connect=no_docker, find_buildx=lambda: None)
    assert "--engine host" in (caught.value.next_step or "")


def test_a_docker_that_does_not_answer_in_time_names_the_host_too() -> None:
    def stopped() -> Engine:
        raise EngineFailed("Docker did not answer in time", next_step="docker version")

    with pytest.raises(EngineFailed) as caught:
        choose_builder("auto", connect=stopped, find_buildx=lambda: None)
    assert "docker version; or --engine host" in (caught.value.next_step or "")


def test_an_engine_without_its_own_buildkit_needs_buildx() -> None:
    with pytest.raises(HostNotAble, match="has no BuildKit") as caught:
        choose_builder("auto", connect=docker_of("1.38"), find_buildx=lambda: None)
    assert "apt-get install docker-buildx" in (caught.value.next_step or "")
    assert choose_builder("auto", connect=docker_of("1.38"), find_buildx=lambda: BUILDX).describe().name == "buildx"


@pytest.mark.parametrize("command", [["build"], ["bundle", "x.tar"]])
def test_the_classic_builder_is_refused_with_what_took_its_place(command: list[str]) -> None:
    ran = vdbg_env(*command, "--engine", "classic")
    assert ran.status == 2 and "apt-get install docker-buildx, or --engine buildkit" in ran.stderr


def test_buildx_asked_for_and_missing_says_how_to_get_it() -> None:
    with pytest.raises(HostNotAble, match="docker-buildx is not installed") as caught:
        choose_builder("buildx", connect=docker_of("1.41"), find_buildx=lambda: None)
    assert "apt-get install docker-buildx" in (caught.value.next_step or "")


def test_only_buildx_says_it_takes_secrets() -> None:
    def capabilities(wanted: BuilderName, buildx: Buildx | None) -> frozenset[str]:
        return choose_builder(wanted, connect=docker_of("1.41"), find_buildx=lambda: buildx).describe().capabilities

    assert "secrets" in capabilities("auto", BUILDX)
    assert "secrets" not in capabilities("buildkit", None)
    assert "containers" not in capabilities("host", None)


def test_podman_builds_nothing_and_the_way_that_works_is_named() -> None:
    version = {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}
    podman = Engine(cast(docker.APIClient, Client()), Endpoint(host="unix:///x", source="DOCKER_HOST"), version)
    with pytest.raises(HostNotAble, match="builds with Docker") as caught:
        choose_builder("auto", connect=lambda: podman, find_buildx=lambda: BUILDX)
    assert "podman build --tag NAME DIR && vdbg-env verify NAME" in (caught.value.next_step or "")
