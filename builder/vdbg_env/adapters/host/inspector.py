"""Gathers what `doctor` judges: from /proc, the engine and the tools' output; changes nothing."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vdbg_env.adapters.builders.buildx import find_buildx
from vdbg_env.adapters.docker.client import Engine, connect, engine_errors
from vdbg_env.adapters.docker.containers import gpu_access, has_gpu
from vdbg_env.application.host.gpu import cuda_of_driver, read_gpus
from vdbg_env.application.ports.host_facts import UNLIMITED, EngineFacts, GpuFacts, HostFacts, Limit
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.common.errors import HostNotAble, VdbgError
from vdbg_env.evidence.tools.tool_version import tool_version
from vdbg_env.supervisor.processes import attempt_tree, cgroups, proc

_PROC = Path("/proc")
_CAP_SYS_RESOURCE = 1 << 24


class LocalHost:
    """Looks at the machine this program runs on."""

    def __init__(self, programs: ProgramRunner, tools: tuple[str, ...]) -> None:
        self._programs = programs
        self._tools = tools

    def gather(self, dump_place: str) -> HostFacts:
        """Return what can be found out, in a few seconds; what cannot is None. `dump_place` is where dumps will go."""
        with ThreadPoolExecutor(thread_name_prefix="doctor") as pool:
            engine = pool.submit(_engine)
            gpu = pool.submit(self._gpu)
            nvcc = pool.submit(self._tool, "nvcc")
            tools = {name: pool.submit(self._tool, name) for name in self._tools}
        # Made and removed at once: only an attempt shows whether that is allowed.
        cgroup = cgroups.make(f"{cgroups.PREFIX}doctor-{os.getpid()}")
        if cgroup:
            cgroup.remove()
        return HostFacts(
            python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
            engine=engine.result(),
            gpu=gpu.result(),
            toolkit=nvcc.result() or None,
            ptrace_scope=_number(_PROC / "sys/kernel/yama/ptrace_scope"),
            core=_limit(resource.RLIMIT_CORE),
            core_pattern=_text(_PROC / "sys/kernel/core_pattern"),
            memlock=_limit(resource.RLIMIT_MEMLOCK),
            dump_place=dump_place,
            dump_free=_free(dump_place),
            shm=_size("/dev/shm"),
            trees_held_by=cgroup.kind if cgroup else attempt_tree.LIST,
            cgroup=str(Path(cgroup.path).parent) if cgroup else None,
            tools={name: found.result() for name, found in tools.items()},
        )

    def _tool(self, name: str) -> str | None:
        """Return a tool's version, "" where it starts without telling one, None where it is not here."""
        path = self._programs.which(name)
        if path is None:
            return None
        said = self._said(path, "--version")
        return None if said is None else tool_version(said)

    def _said(self, *argv: str) -> str | None:
        try:
            ran = self._programs.run(argv, timeout_s=20)
        except HostNotAble:
            return None
        return ran.stdout + ran.stderr

    def _gpu(self) -> GpuFacts:
        try:
            reading = read_gpus(self._programs)
            cuda = cuda_of_driver(self._programs) if reading.gpus else None
        except HostNotAble as error:
            return GpuFacts(problem=error.what)
        if not reading.is_installed:
            return GpuFacts(problem="a GPU is present, but nvidia-smi is not here" if has_gpu() else None)
        return GpuFacts(
            names=tuple(gpu.name for gpu in reading.gpus),
            driver=reading.gpus[0].driver if reading.gpus else None,
            cuda=cuda,
            memory=sum(gpu.memory_total or 0 for gpu in reading.gpus),
            problem=reading.problem,
        )


def _engine() -> EngineFacts:
    try:
        engine = connect()
        with engine_errors(engine.endpoint):
            info = engine.client.info()
    except VdbgError as error:
        return EngineFacts(problem=error.what, next_step=error.next_step)
    access = gpu_access(info, has_gpu=has_gpu())
    buildx = find_buildx()
    root = info.get("DockerRootDir")
    return EngineFacts(
        version=engine.version,
        no_buildkit=engine.no_buildkit(),
        podman=engine.is_podman,
        buildx=buildx.version if buildx else None,
        gpu_by=access.by,
        gpu_why=access.why,
        memlock=_engine_memlock(engine),
        root=root,
        root_free=_free(root) if root and _is_local(engine) else None,
    )


def _is_local(engine: Engine) -> bool:
    return engine.endpoint.host.startswith("unix:")


def _engine_memlock(engine: Engine) -> int | None:
    """Return the most locked memory the engine can give: runc, its child, may raise nothing above the engine's own."""
    if not _is_local(engine):
        return None
    for process in [one for one in proc.processes() if one.name == "dockerd"]:
        folder = _PROC / str(process.pid)
        status, limits = _text(folder / "status") or "", _text(folder / "limits") or ""
        capabilities = re.search(r"CapEff:\s*([0-9a-f]+)", status)
        if capabilities and int(capabilities[1], 16) & _CAP_SYS_RESOURCE:
            return UNLIMITED
        found = re.search(r"Max locked memory\s+\S+\s+(\S+)", limits)
        if found:
            return UNLIMITED if found[1] == "unlimited" else int(found[1])
    return None


def _limit(which: int) -> Limit:
    soft, hard = (UNLIMITED if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return Limit(soft=soft, hard=hard)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdigit() else None


def _free(place: str) -> int | None:
    """Return the bytes free to this user at a place, or at its nearest parent that exists."""
    return _usage(place, lambda path: shutil.disk_usage(path).free)


def _size(place: str) -> int | None:
    return _usage(place, lambda path: shutil.disk_usage(path).total) if Path(place).is_dir() else None


def _usage(place: str, measure: Callable[[Path], int]) -> int | None:
    path = Path(os.path.abspath(place))  # noqa: PTH100 - links stay as they are
    while not path.exists():
        path = path.parent
    try:
        return measure(path)
    except OSError:
        return None
