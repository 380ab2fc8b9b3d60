"""Turn run settings into the host side of a container, as the engine's API takes it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from docker import errors, types

from vdbg_env.adapters.docker.client import OUR_LABEL, Engine
from vdbg_env.adapters.files.dumps.folder import FolderDumps
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import data_dir
from vdbg_env.image.settings import DUMPS, SECCOMP_FILE, DumpVolume, Gpu, RunSettings
from vdbg_env.record.set_ids import disarm


def host_options(engine: Engine, settings: RunSettings) -> dict[str, Any]:
    """Return the arguments of the client's `create_host_config`; a missing dump volume is created."""
    options: dict[str, Any] = {
        "cap_drop": ["ALL"],
        "cap_add": list(settings.capabilities),
        "security_opt": _security(engine, settings),
        "ulimits": [types.Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in settings.ulimits],
        "pids_limit": settings.pids,
        # A mount of this form fails on a missing folder; the older `binds` would create it.
        "mounts": [
            types.Mount(type="bind", source=m.source, target=m.target, read_only=m.read_only) for m in settings.mounts
        ],
    }
    if settings.network == "none":
        options["network_mode"] = "none"
    elif engine.is_podman:  # what `podman run` takes; over the socket the default is a bridge, which needs root
        options["network_mode"] = "private"
    if settings.ipc == "host":
        options["ipc_mode"] = "host"
    else:
        options["shm_size"] = settings.shm_bytes
    if settings.memory is not None:
        options |= {"mem_limit": settings.memory, "memswap_limit": settings.memory}
    if settings.ports:
        options["port_bindings"] = {port: ("127.0.0.1", port) for port in settings.ports}
    if request := gpu_request(settings.gpu):
        options["device_requests"] = [request]
    if settings.dumps:
        options["mounts"].insert(0, _dump_mount(engine, settings.dumps))
    return options


def gpu_request(gpu: Gpu) -> types.DeviceRequest | None:
    """Return the engine's request for these GPUs."""
    match gpu.by:
        case "cdi":
            return types.DeviceRequest(driver="cdi", count=0, device_ids=list(gpu.names))
        case "runtime" if gpu.devices:
            return types.DeviceRequest(device_ids=list(gpu.devices), capabilities=[["gpu"]])
        case "runtime":
            return types.DeviceRequest(count=-1, capabilities=[["gpu"]])
        case _:
            return None


@contextmanager
def without_set_ids(dumps: DumpVolume | None) -> Iterator[None]:
    """Disarm the files of a dump folder that changed within the block; no container gets CAP_MKNOD unless asked to."""
    since = time.time_ns()
    try:
        yield
    finally:
        if dumps is not None and dumps.kind == "bind":
            disarm(Path(dumps.source), since_ns=since)


def _security(engine: Engine, settings: RunSettings) -> list[str]:
    # Folders of the user are closed to containers under SELinux, and must not be relabelled.
    labels = ["label=disable"] if settings.mounts else []
    options = ["no-new-privileges", *labels]
    match settings.seccomp:
        case "ptrace":
            return [f"seccomp={_seccomp_profile(engine)}", *options]
        case "unconfined":
            return ["seccomp=unconfined", *options]
        case "default":
            return options


def _seccomp_profile(engine: Engine) -> str:
    """Return the profile as the engine takes it: Docker takes its text, Podman the path of a file on its machine."""
    file = data_dir("templates") / SECCOMP_FILE
    return str(file) if engine.is_podman else json.dumps(json.loads(file.read_bytes()))


def _dump_mount(engine: Engine, dumps: DumpVolume) -> types.Mount:
    if dumps.kind == "bind":
        try:
            # Closed to others: root of a container may leave anything here.
            missing = not Path(dumps.source).exists()
            Path(dumps.source).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot create the dump folder {dumps.source}: {error.strerror}",
                next_step="name a folder that you may write to",
            ) from error
        if missing:
            FolderDumps(Path(dumps.source)).adopt()
    else:
        with suppress(errors.APIError):  # it exists already
            engine.client.create_volume(dumps.source, labels={f"{OUR_LABEL}.purpose": "dumps"})
    return types.Mount(target=DUMPS, source=dumps.source, type=dumps.kind)
