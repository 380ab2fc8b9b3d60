"""How a container is started, by `run` or for the steps of a runbook: with what a debugger and a crash need.

One value for the Docker Engine and for every writer: Compose, Kubernetes, Apptainer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput

# Folders of the machine that a container sees.


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file or folder of the Docker Engine's machine, mounted into a container."""

    source: str
    target: str
    read_only: bool = False

    def inside(self, path: str) -> str | None:
        """Return the path in the container of a path of the machine; None outside this mount."""
        return _moved(path, self.source, self.target)

    def outside(self, path: str) -> str | None:
        """Return the path on the machine of a path in the container; None outside this mount."""
        return _moved(path, self.target, self.source)


def parse_mount(text: str, here: str) -> Mount:
    """Read `--mount SOURCE[:TARGET][:ro]`; a relative source is below `here`, and the target defaults to the source.

    Raises BadInput for any other form.
    """
    one_line(text, "--mount")
    words = text.split(":")
    read_only = len(words) > 1 and words[-1] in {"ro", "rw"} and words.pop() == "ro"
    source = words[0] if words[0].startswith("/") else f"{here.rstrip('/')}/{words[0].removeprefix('./')}"
    source = source.removesuffix("/.").rstrip("/") or "/"
    target = words[1] if len(words) == 2 else source
    if not words[0] or len(words) > 2 or not target.startswith("/") or target == "/":
        raise BadInput(
            f"--mount {text!r} does not name a folder", next_step="write it as in --mount /models, or /src:/target:ro"
        )
    return Mount(source=source, target=target, read_only=read_only)


def start_folder(mounts: tuple[Mount, ...], here: str) -> str | None:
    """Return the working directory: the current folder if it is mounted, else None for the image's default."""
    return next((folder for mount in mounts if (folder := mount.inside(here))), None)


def _moved(path: str, old: str, new: str) -> str | None:
    """Return a path at or below `old` with `new` in place of `old`; both may be the root."""
    above = old.rstrip("/")
    if path != old and not path.startswith(f"{above}/"):
        return None
    return (new.rstrip("/") + path[len(above) :].rstrip("/")) or "/"


GIB = 1 << 30
UNLIMITED = -1
DUMPS = "/dumps"
SECCOMP_FILE = "seccomp-ptrace.json"

# Of the fourteen that Docker grants: those by which root works with the files and processes of other users. Without
# MKNOD no device node reaches a folder of the host; NET_RAW and the rest serve no workload. --cap-add grants more.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_PTRACE")


Seccomp = Literal["ptrace", "default", "unconfined"]


@dataclass(frozen=True, kw_only=True)
class Ulimit:
    """One resource limit in the units of setrlimit(2), -1 for none.

    `fallback` names the loss when the engine may not raise it: dockerd cannot exceed its own hard limit without
    CAP_SYS_RESOURCE, and then refuses to start the container ("error setting rlimit type 8").
    """

    name: Literal["core", "stack", "memlock", "nofile", "nproc"]
    soft: int
    hard: int
    fallback: str


CORE = Ulimit(
    name="core", soft=UNLIMITED, hard=UNLIMITED,
    fallback="a crash leaves no host core file unless `ulimit -c unlimited` works in the container; images of "
    "vdbg-env build try it",
)  # fmt: skip
STACK = Ulimit(name="stack", soft=64 << 20, hard=64 << 20, fallback="deep recursion ends at the engine's own limit")
MEMLOCK = Ulimit(name="memlock", soft=UNLIMITED, hard=UNLIMITED, fallback="pinned memory and RDMA may fail to register")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """How the container gets its GPUs: by CDI device names, through NVIDIA's runtime, or not at all.

    `devices` are CDI names ("nvidia.com/gpu=0") or, for the runtime, indices and UUIDs; empty means all.
    """

    by: Literal["cdi", "runtime", "none"]
    devices: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The devices by the names that the request takes."""
        match self.by:
            case "cdi":
                return self.devices or ("nvidia.com/gpu=all",)
            case "runtime":
                return self.devices or ("all",)
            case "none":
                return ()


@dataclass(frozen=True, kw_only=True)
class DumpVolume:
    """Where dumps outlive the container: a named volume, or a folder of the host."""

    source: str
    kind: Literal["volume", "bind"] = "volume"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """One container to start.

    `capabilities` are all that it has. `seccomp` "ptrace" is the profile templates/seccomp-ptrace.json. `shm_bytes` has
    no effect with the host's IPC namespace, which has the host's /dev/shm. `stop_grace_s` outlasts the writing of a GPU
    core dump. `user` (as docker takes it) and `folder` (the working directory) default to the image's, `memory` in
    bytes to no limit; `pids` bounds processes and threads together.
    """

    image: str
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    capabilities: tuple[str, ...] = CAPABILITIES
    seccomp: Seccomp = "ptrace"
    ulimits: tuple[Ulimit, ...] = (CORE, STACK, MEMLOCK)
    ipc: Literal["private", "host"] = "private"
    shm_bytes: int = 16 * GIB
    gpu: Gpu = field(default_factory=lambda: Gpu(by="runtime"))
    dumps: DumpVolume | None = field(default_factory=lambda: DumpVolume(source="vdbg-dumps"))
    stop_grace_s: int = 300
    name: str | None = None
    ports: tuple[int, ...] = ()
    interactive: bool = False
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    folder: str | None = None
    memory: int | None = None
    pids: int = 32768
    network: Literal["default", "none"] = "default"


def parse_gpu(text: str) -> Gpu:
    """Read `--gpu`: `none`, `cdi`, `runtime`, or one of the last two with devices, as in `cdi:nvidia.com/gpu=0`.

    Raises BadInput when the text is none of these.
    """
    way, colon, devices = one_line(text, "--gpu").partition(":")
    names = tuple(devices.split(",")) if colon else ()
    pattern = r"[\w.-]+/[\w.-]+=[\w.:-]+" if way == "cdi" else r"[\w-]+"
    if not all(re.fullmatch(pattern, name, re.ASCII) for name in names):
        form = "nvidia.com/gpu=0" if way == "cdi" else "0 or GPU-UUID"
        raise BadInput(f"--gpu {text!r}: {devices!r} does not name devices", next_step=f"write them as {form}")
    match way:
        case "cdi":
            return Gpu(by="cdi", devices=names)
        case "runtime":
            return Gpu(by="runtime", devices=names)
        case "none" if not colon:
            return Gpu(by="none")
        case _:
            raise BadInput(f"--gpu {text!r} is not a way to ask for GPUs", next_step="--gpu cdi, runtime or none")


def parse_dumps(text: str) -> DumpVolume:
    """Read `--dumps`: a path is a folder of the host, a plain name a volume; raises BadInput for anything else."""
    one_line(text, "--dumps")
    if text.startswith("/"):
        if ":" in text:
            raise BadInput(f"--dumps {text!r}: a folder with a colon in its name cannot be mounted")
        return DumpVolume(source=text, kind="bind")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]+", text):
        raise BadInput(
            f"--dumps {text!r} is neither a volume nor a folder",
            next_step="give a volume's name, or a path from the root",
        )
    return DumpVolume(source=text)


def parse_size(text: str, what: str) -> int:
    """Read a size in bytes, with an optional k, m, g or t for powers of 1024; raises BadInput for anything else."""
    found = re.fullmatch(r"([0-9]{1,15})([kmgt]?)(?:i?b)?", text.strip().lower())
    if not found:
        raise BadInput(f"{what} {text!r} is not a size", next_step=f"write it as in {what} 16g")
    return int(found[1]) << (10 * " kmgt".index(found[2] or " "))


def warnings(settings: RunSettings, *, record: bool = False) -> tuple[str, ...]:
    """Return warnings of settings that conflict; with a `record`, dumps are kept there."""
    found = []
    if settings.ipc == "host" and settings.shm_bytes != RunSettings.shm_bytes:
        found.append("the size of /dev/shm is the host's with --ipc host; --shm-size has no effect")
    if settings.seccomp == "unconfined":
        found.append("without any seccomp profile the container may ask the kernel for anything")
    if settings.dumps is None and not record:
        found.append("without a dump volume what a crash leaves is lost with the container")
    return tuple(found)


# The containers that a run's steps run in: the image, how each is started, and what it sees.
#
# Each attempt has one container, all alike. What differs between attempts (command, variables) goes to the supervisor
# in the container and never into its configuration, which every user of the Docker Engine can read.


PACKAGES = "/run/vdbg-env"  # our package and the shipped runbooks, read-only, in every container
DATA = f"{PACKAGES}/runbooks"


@dataclass(frozen=True, kw_only=True)
class StepContainer:
    """What all containers of a run have in common.

    `settings` are those of `vdbg-env run`, with image and GPU decided; the supervisor adds its `env` to the image's.
    `user`, `memory` and `folder` are as in RunSettings.
    """

    settings: RunSettings
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    memory: int | None = None
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepImage:
    """An image as the Docker Engine and a first container of it report it.

    `name` as given, `image_id` its permanent id, `digest` its name in a registry if it has one. `python` is the path
    and `python_version` the version of its python3, `user` the numeric user and group of its processes, `folder` their
    working directory, `tools` the path of each tool of the catalogue that is on its PATH.
    """

    name: str
    image_id: str
    digest: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    python: str = "python3"
    python_version: tuple[int, int, int] = (0, 0, 0)
    user: tuple[int, int] = (0, 0)
    folder: str = "/"
    tools: tuple[tuple[str, str], ...] = field(default_factory=tuple)
