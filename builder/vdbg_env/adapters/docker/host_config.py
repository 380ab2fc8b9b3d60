"""Turns run settings into what the engine's API takes, and the engine's refusals into errors that say what to type."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from docker import errors, types

from vdbg_env.adapters.docker.client import OUR_LABEL, Engine
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.image.container.run_settings import DUMPS, Gpu, RunSettings, Ulimit

# setrlimit(2)'s numbers, by which runc names a limit it could not set.
_RLIMITS = {"3": "stack", "4": "core", "8": "memlock"}
_RLIMIT_REFUSED = re.compile(r"error setting rlimit(?:s for ready process: error setting rlimit)? type (\d+)")


class HostOptions:
    """The host side of a container; `seccomp_profile` is the text of the profile that allows ptrace."""

    def __init__(self, engine: Engine, *, seccomp_profile: str) -> None:
        self._engine = engine
        self._seccomp_profile = json.dumps(json.loads(seccomp_profile))

    def of(self, settings: RunSettings) -> dict[str, Any]:
        """Return the arguments of the client's `create_host_config`; a dump volume that is missing is made."""
        options: dict[str, Any] = {
            "cap_add": list(settings.capabilities),
            "security_opt": self._security(settings),
            "ulimits": [types.Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in settings.ulimits],
            "init": True,  # reaps what a crashing server leaves, and passes signals on
        }
        if settings.ipc == "host":
            options["ipc_mode"] = "host"
        else:
            options["shm_size"] = settings.shm_bytes
        if settings.ports:
            options["port_bindings"] = {port: ("127.0.0.1", port) for port in settings.ports}
        if request := gpu_request(settings.gpu):
            options["device_requests"] = [request]
        if settings.dumps:
            options["mounts"] = [self._dump_mount(settings)]
        return options

    def _security(self, settings: RunSettings) -> list[str]:
        match settings.seccomp:
            case "ptrace":  # the engine takes the profile's text: a path would be one of the engine's machine
                return [f"seccomp={self._seccomp_profile}"]
            case "unconfined":
                return ["seccomp=unconfined"]
            case "default":
                return []

    def _dump_mount(self, settings: RunSettings) -> types.Mount:
        assert settings.dumps is not None
        source = settings.dumps.source
        if settings.dumps.kind == "bind":
            try:
                Path(source).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInput(
                    f"cannot make the dump folder {source}: {error.strerror}", next_step="name a folder of yours"
                ) from error
            return types.Mount(target=DUMPS, source=source, type="bind")
        with suppress(errors.APIError):  # it exists already
            self._engine.client.create_volume(source, labels={f"{OUR_LABEL}.purpose": "dumps"})
        return types.Mount(target=DUMPS, source=source, type="volume")


def start_error(error: Exception, settings: RunSettings) -> EngineFailed | None:
    """Return the error of ours for a container that could not be started, when its message is known."""
    text = str(error)
    if "could not select device driver" in text or "unresolvable CDI devices" in text:
        other = "runtime" if settings.gpu.by == "cdi" else "cdi"
        return EngineFailed(
            f"the engine cannot give the container GPUs by {settings.gpu.by}",
            cause="the NVIDIA container toolkit is not installed, or not configured for this engine",
            next_step=f"vdbg-env doctor; or --gpu {other}, or --gpu none for work that needs no GPU",
        )
    if "port is already allocated" in text or "address already in use" in text:
        return EngineFailed("a port asked for is in use on this machine", next_step="take another with --port")
    return None


def refused_limit(text: str, limits: Sequence[Ulimit]) -> Ulimit | None:
    """Return the limit that the engine names as the one it may not set."""
    found = _RLIMIT_REFUSED.search(text)
    name = _RLIMITS.get(found[1]) if found else None
    return next((limit for limit in limits if limit.name == name), None)


def gpu_request(gpu: Gpu) -> types.DeviceRequest | None:
    """Return what is asked of the engine for these GPUs."""
    match gpu.by:
        case "cdi":
            return types.DeviceRequest(driver="cdi", count=0, device_ids=list(gpu.names))
        case "runtime" if gpu.devices:
            return types.DeviceRequest(device_ids=list(gpu.devices), capabilities=[["gpu"]])
        case "runtime":
            return types.DeviceRequest(count=-1, capabilities=[["gpu"]])
        case _:
            return None
