"""How a container is started: with what a debugger and a crashing process need.

One value for the Docker Engine and for every writer: Compose, Kubernetes, Apptainer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.mount import Mount
from vdbg_env.image.text import one_line

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
