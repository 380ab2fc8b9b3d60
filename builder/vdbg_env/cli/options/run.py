"""The flags that say how a debug container is started, shared by `run` and `shell`."""

from __future__ import annotations

import os
import sys
from typing import Literal, TypedDict, Unpack

import click

from vdbg_env.cli.composition.containers import container_runner, dump_store
from vdbg_env.cli.options.given import with_options
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.engine.request import RunRequest, run_in_image
from vdbg_env.image.context import one_line
from vdbg_env.image.profile import parse_reference
from vdbg_env.image.settings import RunSettings, parse_dumps, parse_gpu, parse_mount, parse_size, start_folder
from vdbg_env.run.stale import Settings, stale_settings

OPTIONS = {
    "image": click.option("--image", metavar="IMAGE", help="The debug image; the newest one built here if not given."),
    "gpu": click.option(
        "--gpu", default="auto", metavar="HOW", help="auto (the default), cdi[:DEVICES], runtime[:DEVICES] or none."
    ),
    "dumps": click.option(
        "--dumps",
        default="vdbg-dumps",
        metavar="PLACE",
        help="A volume (vdbg-dumps if not given), a folder (/x), or none; at /dumps.",
    ),
    "dump_quota": click.option(
        "--dump-quota", metavar="SIZE", help="Do not start while PLACE holds more than this, as in 50g."
    ),
    "mounts": click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="SRC[:DST][:ro]",
        help="A folder to see in the container, as in --mount . or --mount /models:ro; repeatable.",
    ),
    "user": click.option("--user", metavar="USER", help="The user that processes run as; the image's if not given."),
    "variables": click.option(
        "-e",
        "--env",
        "variables",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set a variable, or pass one of this shell; repeatable.",
    ),
    "ports": click.option(
        "-p",
        "--port",
        "ports",
        multiple=True,
        type=click.IntRange(1, 65535),
        help="Publish this port of the container on 127.0.0.1; repeatable.",
    ),
    "ipc": click.option(
        "--ipc",
        type=click.Choice(["private", "host"]),
        default="private",
        help="Whose shared memory processes see; the container's (private) if not given.",
    ),
    "shm_size": click.option(
        "--shm-size", metavar="SIZE", help="The size of /dev/shm, with --ipc private; 16g if not given."
    ),
    "capabilities": click.option(
        "--cap-add",
        "capabilities",
        multiple=True,
        metavar="CAP",
        help="One more Linux capability, as in NET_ADMIN; repeatable.",
    ),
    "seccomp": click.option(
        "--seccomp",
        type=click.Choice(["ptrace", "default", "unconfined"]),
        default="ptrace",
        help="System calls allowed; ptrace, if not given, is what debuggers need.",
    ),
    "stop_grace": click.option(
        "--stop-grace",
        type=click.IntRange(0, 86400),
        default=300,
        metavar="S",
        help="Seconds that it gets to write dumps when it is stopped; 300 if not given.",
    ),
    "name": click.option(
        "--name", metavar="NAME", help="The name of the container; the engine gives one if not given."
    ),
}


run_options = with_options(*OPTIONS.values())


class PlaceInContainers(TypedDict):
    """What the flags give that say how any container is started."""

    image: str | None
    gpu: str
    dumps: str
    dump_quota: str | None
    mounts: tuple[str, ...]
    user: str | None
    variables: tuple[str, ...]
    ipc: Literal["private", "host"]
    shm_size: str | None
    capabilities: tuple[str, ...]
    seccomp: Literal["ptrace", "default", "unconfined"]
    stop_grace: int


class RunFlags(PlaceInContainers):
    """What the flags of `run` and `shell` give."""

    ports: tuple[int, ...]
    name: str | None


def run_container(argv: tuple[str, ...], *, interactive: bool, **flags: Unpack[RunFlags]) -> int:
    """Start the container the flags describe and return its exit status."""
    request = read_request(argv, flags, interactive=interactive, ports=flags["ports"], name=flags["name"])
    for stale in stale_settings(Settings(argv=argv, environment=dict(request.settings.env)), {}, None):
        console.note(f"stale: {stale.text}")
    containers = container_runner()
    watched = request.settings.dumps if request.dump_quota is not None else None
    dumps = dump_store(watched) if watched else None
    return run_in_image(request, containers, dumps, console.note)


def read_request(
    argv: tuple[str, ...],
    flags: PlaceInContainers,
    *,
    interactive: bool = False,
    ports: tuple[int, ...] = (),
    name: str | None = None,
) -> RunRequest:
    """Turn the flags into a request; raises BadInput for a value that says nothing."""
    if interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("there is no terminal here for a shell", next_step="vdbg-env run -- COMMAND needs none")
    if flags["image"] is not None:
        parse_reference(flags["image"], "--image")
    here = os.getcwd()  # noqa: PTH109 - as the shell names it
    mounts = tuple(parse_mount(text, here) for text in flags["mounts"])
    settings = RunSettings(
        image=flags["image"] or "",
        command=argv,
        env=tuple(_variable(text) for text in flags["variables"]),
        capabilities=tuple(dict.fromkeys([*RunSettings.capabilities, *flags["capabilities"]])),
        seccomp=flags["seccomp"],
        ipc=flags["ipc"],
        shm_bytes=parse_size(flags["shm_size"], "--shm-size") if flags["shm_size"] else RunSettings.shm_bytes,
        dumps=None if flags["dumps"] == "none" else parse_dumps(flags["dumps"]),
        stop_grace_s=flags["stop_grace"],
        name=name,
        ports=ports,
        interactive=interactive,
        mounts=mounts,
        user=one_line(flags["user"], "--user") if flags["user"] else None,
        folder=start_folder(mounts, here),
    )
    return RunRequest(
        settings=settings,
        image=flags["image"],
        gpu=None if flags["gpu"] == "auto" else parse_gpu(flags["gpu"]),
        dump_quota=parse_size(flags["dump_quota"], "--dump-quota") if flags["dump_quota"] else None,
    )


def _variable(text: str) -> tuple[str, str]:
    """Read `--env`; a name alone takes the value it has here, which keeps a secret off the command line."""
    name, equals, value = text.partition("=")
    if not name or not (equals or name in os.environ):
        what = f"--env {text!r} is not NAME=VALUE" if not name else f"--env {name}: there is no such variable here"
        raise BadInput(what, next_step="write it as in --env CUDA_LAUNCH_BLOCKING=1, or --env HF_TOKEN")
    return name, value if equals else os.environ[name]
