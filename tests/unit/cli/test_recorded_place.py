"""`--from RUN` runs where RUN ran: each option of its place counts unless it is given."""

from pathlib import Path
from typing import Any

import click
import pytest

from vdbg_env.cli.places import ALL, PlaceFlags
from vdbg_env.cli.runbook import container_request, placement_request, take_over
from vdbg_env.common.flags import takes_some
from vdbg_env.image.settings import CAPABILITIES, DumpVolume, Gpu, Mount
from vdbg_env.record.run_directory import RunHead
from vdbg_env.run.begin import ContainerRequest
from vdbg_env.run.placement import PlacementRequest, Scratch

IMAGE = f"sha256:{'a' * 64}"
CONTAINER = {
    "settings": {
        "image": "debug:1",
        "env": [["A", "1"], ["B", "2"]],
        "gpu": {"by": "cdi", "devices": ["nvidia.com/gpu=0"]},
        "dumps": {"source": "/var/dumps", "kind": "bind"},
        "capabilities": [*CAPABILITIES, "SYS_NICE"],
        "shm_bytes": 1 << 30,
        "stop_grace_s": 7,
    },
    "mounts": [{"source": "/models", "target": "/m", "read_only": True}],
    "user": "0",
    "memory": 2 << 30,
}
IN_CONTAINERS = RunHead(run="r", runbook="x", image={"name": "debug:1", "id": IMAGE}, container=CONTAINER)
SLURM = PlacementRequest(
    on="slurm", ranks=4, nodes=2, arguments=("--partition=gpu",), scratch=Scratch(folder="/local", limit=5)
)
ON_SLURM = RunHead(run="r", runbook="x", placement=SLURM.document())
SEEN: list[tuple[ContainerRequest | None, PlacementRequest | None]] = []


@click.command()
@takes_some(PlaceFlags, ALL)
@click.pass_context
def command(context: click.Context, /, **flags: Any) -> None:
    place = take_over(context, context.obj, PlaceFlags(**flags))
    SEEN.append((container_request(context, place), placement_request(context, place)))


def asked(head: RunHead, *words: str) -> tuple[ContainerRequest | None, PlacementRequest | None]:
    command.main(args=list(words), standalone_mode=False, obj=head)
    return SEEN.pop()


def in_containers(*words: str) -> ContainerRequest:
    container, placement = asked(IN_CONTAINERS, *words)
    assert container and placement is None
    return container


def test_the_containers_of_the_run_are_taken_as_they_were() -> None:
    container = in_containers()
    settings = container.run.settings
    assert (container.run.image, settings.env) == (IMAGE, (("A", "1"), ("B", "2")))
    assert container.run.gpu == Gpu(by="cdi", devices=("nvidia.com/gpu=0",))
    assert container.mounts == (Mount(source="/models", target="/m", read_only=True),)
    assert (container.user, container.memory) == ("0", 2 << 30)
    assert settings.dumps == DumpVolume(source="/var/dumps", kind="bind")
    assert (settings.capabilities, settings.shm_bytes) == ((*CAPABILITIES, "SYS_NICE"), 1 << 30)
    assert settings.stop_grace_s == 7


def test_what_is_given_is_stronger_and_the_rest_stays() -> None:
    container = in_containers("--image", "lines:1", "-e", "B=3", "--memory", "1g")
    assert (container.run.image, container.memory, container.user) == ("lines:1", 1 << 30, "0")
    assert dict(container.run.settings.env) == {"A": "1", "B": "3"}


def test_ranks_and_their_launcher_are_taken() -> None:
    assert asked(ON_SLURM) == (None, SLURM)
    container, fewer = asked(ON_SLURM, "--ranks", "1")
    assert container is None and fewer and (fewer.on, fewer.ranks, fewer.nodes) == ("slurm", 1, 2)
    here = RunHead(run="r", runbook="x", placement=PlacementRequest(ranks=3).document())
    assert asked(here) == (None, PlacementRequest(ranks=3))


@pytest.mark.parametrize("head", [IN_CONTAINERS, ON_SLURM], ids=["docker", "slurm"])
def test_another_place_takes_nothing_of_the_old_one(head: RunHead, tmp_path: Path) -> None:
    assert asked(head, "--on", "local") == (None, None)
    container, placement = asked(ON_SLURM, "--image", "debug:2")
    assert container and container.run.image == "debug:2" and placement is None
