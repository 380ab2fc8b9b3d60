"""What `run` and `shell` do: a program inside a debug image, with what a debugger and a crashing process need."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from vdbg_env.common.console import one_line, size_text
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.flags import flag
from vdbg_env.crash.dumps import DumpStore
from vdbg_env.image.settings import (
    Gpu,
    RunSettings,
    Seccomp,
    parse_dumps,
    parse_gpu,
    parse_mount,
    parse_size,
    start_folder,
    warnings,
)

# Starting containers from images that were built.


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """One image in the engine's store that this program built; `created` is in seconds since the epoch."""

    image_id: str
    names: tuple[str, ...]
    created: float
    size: int
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GpuAccess:
    """How a container gets at the GPUs of the engine's machine, and how that is known."""

    by: Literal["cdi", "runtime", "none"]
    why: str


class ContainerRunner(Protocol):
    """Starts debug containers and removes them whatever happens."""

    def images(self) -> tuple[StoredImage, ...]:
        """Return the images this program built, newest first."""
        ...

    def gpu_access(self) -> GpuAccess:
        """Find out how containers get at GPUs: a registered runtime alone is no proof that there is one."""
        ...

    def run(self, settings: RunSettings, tell: Callable[[str], None]) -> int:
        """Run a container on this program's own streams and return the exit status of its command.

        `tell` gets a line for every limit the engine may not give. On an interrupt the container is asked to stop, gets
        its grace, and the interrupt continues. Raises BadInput for a missing image, EngineFailed when it cannot start.
        """
        ...


Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One container as asked for.

    `image` None takes the newest image this program built; `gpu` None takes whatever way to the GPUs there is.
    `settings` holds everything else. `dump_quota` in bytes keeps the container from starting while the dump volume
    holds more than that.
    """

    settings: RunSettings
    image: str | None = None
    gpu: Gpu | None = None
    dump_quota: int | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerFlags:
    """The flags that say how a debug container is started."""

    image: str | None = flag(metavar="IMAGE", help="The debug image. [default: the newest built here]")
    gpu: str = flag(
        default="auto",
        metavar="HOW",
        help="How to pass GPUs: auto (the default), cdi[:DEVICES], runtime[:DEVICES] or none.",
    )
    dumps: str = flag(
        default="vdbg-dumps", metavar="PLACE",
        help="Mount this volume or folder (/x) at /dumps, or none. [default: the volume vdbg-dumps]",
    )  # fmt: skip
    dump_quota: str | None = flag(metavar="SIZE", help="Do not start if the dumps there exceed this, such as 50g.")
    mounts: tuple[str, ...] = flag(
        "--mount", default=(), metavar="SRC[:DST][:ro]",
        help="Mount a folder, such as --mount . or --mount /models:ro; repeatable.",
    )  # fmt: skip
    user: str | None = flag(metavar="USER", help="The user to run as. [default: the image's]")
    variables: tuple[str, ...] = flag(
        "-e", "--env", default=(), metavar="NAME[=VALUE]",
        help="Set a variable, or pass on one of this shell; repeatable.",
    )  # fmt: skip
    ports: tuple[int, ...] = flag(
        "-p", "--port", default=(), between=(1, 65535),
        help="Publish this port of the container on 127.0.0.1; repeatable.",
    )  # fmt: skip
    ipc: Literal["private", "host"] = flag(
        default="private", help="Share memory with the host, or keep it private to the container. [default: private]"
    )
    shm_size: str | None = flag(metavar="SIZE", help="Size of /dev/shm, with --ipc private. [default: 16g]")
    capabilities: tuple[str, ...] = flag(
        "--cap-add", default=(), metavar="CAP", help="Add a Linux capability, such as NET_ADMIN; repeatable."
    )
    seccomp: Seccomp = flag(default="ptrace", help="Seccomp profile; debuggers need ptrace. [default: ptrace]")
    stop_grace: int = flag(
        default=300, between=(0, 86400), metavar="S",
        help="Seconds for writing dumps after a stop. [default: 300]",
    )  # fmt: skip
    name: str | None = flag(metavar="NAME", help="Container name. [default: chosen by the engine]")


def read_flags(flags: ContainerFlags, argv: tuple[str, ...] = (), *, interactive: bool = False) -> RunRequest:
    """Turn the flags into a request for a container of this command; raises BadInput for a value that says nothing."""
    if interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("there is no terminal here for a shell", next_step="vdbg-env run -- COMMAND needs none")
    if flags.image is not None:
        from vdbg_env.image.profile import parse_reference  # for triage, too, which seldom starts a container

        parse_reference(flags.image, "--image")
    here = os.getcwd()  # noqa: PTH109 - as the shell names it
    mounts = tuple(parse_mount(text, here) for text in flags.mounts)
    settings = RunSettings(
        image=flags.image or "",
        command=argv,
        env=tuple(_variable(text) for text in flags.variables),
        capabilities=tuple(dict.fromkeys([*RunSettings.capabilities, *flags.capabilities])),
        seccomp=flags.seccomp,
        ipc=flags.ipc,
        shm_bytes=parse_size(flags.shm_size, "--shm-size") if flags.shm_size else RunSettings.shm_bytes,
        dumps=None if flags.dumps == "none" else parse_dumps(flags.dumps),
        stop_grace_s=flags.stop_grace,
        name=flags.name,
        ports=flags.ports,
        interactive=interactive,
        mounts=mounts,
        user=one_line(flags.user, "--user") if flags.user else None,
        folder=start_folder(mounts, here),
    )
    return RunRequest(
        settings=settings,
        image=flags.image,
        gpu=None if flags.gpu == "auto" else parse_gpu(flags.gpu),
        dump_quota=parse_size(flags.dump_quota, "--dump-quota") if flags.dump_quota else None,
    )


def _variable(text: str) -> tuple[str, str]:
    """Read `--env`; a name alone takes the value it has here, which keeps a secret off the command line."""
    name, equals, value = text.partition("=")
    if not name or not (equals or name in os.environ):
        what = f"--env {text!r} is not NAME=VALUE" if not name else f"--env {name}: there is no such variable here"
        raise BadInput(what, next_step="write it as in --env CUDA_LAUNCH_BLOCKING=1, or --env HF_TOKEN")
    return name, value if equals else os.environ[name]


def run_in_image(request: RunRequest, containers: ContainerRunner, dumps: DumpStore | None, tell: Tell) -> int:
    """Run the program and return its exit status; raises what `ContainerRunner.run` raises."""
    return containers.run(settled(request, containers, dumps, tell), tell)


def settled(
    request: RunRequest, containers: ContainerRunner, dumps: DumpStore | None, tell: Tell, *, record: bool = False
) -> RunSettings:
    """Return the settings with the image and the way to the GPUs found, where they were not given.

    With a `record`, what a crash leaves is kept there, and a dump volume is not missed.
    Raises BadInput where there is no image, HostNotAble where the dump volume holds more than it may.
    """
    settings = replace(request.settings, image=request.image or _newest(containers.images(), tell))
    settings = replace(settings, gpu=request.gpu or _gpu(containers, tell))
    if dumps is not None and request.dump_quota is not None:
        _hold_quota(dumps, request.dump_quota)
    for warning in warnings(settings, record=record):
        tell(f"warning: {warning}")
    return settings


def _newest(images: tuple[StoredImage, ...], tell: Tell) -> str:
    named = [image for image in images if image.names]
    if not named:
        raise BadInput(
            "no debug image was built on this engine yet",
            next_step="vdbg-env build --lineinfo, or name an image with --image",
        )
    # A label says so, which a pulled image may have too.
    tell(
        f"image: {named[0].names[0]}, the newest on this engine with the label of vdbg-env build; --image names another"
    )
    return named[0].names[0]


def _gpu(containers: ContainerRunner, tell: Tell) -> Gpu:
    access = containers.gpu_access()
    tell(f"GPUs: {access.by}, because {access.why}")
    return Gpu(by=access.by)


def _hold_quota(dumps: DumpStore, quota: int) -> None:
    """Refuse before the run, not when the disk is full in the middle of a dump."""
    held = sum(dump.size for dump in dumps.list())
    if held > quota:
        raise HostNotAble(
            f"{dumps.name} holds {size_text(held)}, more than the quota of {size_text(quota)}",
            cause="dumps of earlier crashes were kept",
            next_step=f"vdbg-env dumps prune --max-size {quota >> 30}g, or a larger --dump-quota",
        )
