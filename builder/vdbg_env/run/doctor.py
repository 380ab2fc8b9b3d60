"""What this machine can do: look at it, judge it, and write the verdicts."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vdbg_env.build.buildkit import find_buildx
from vdbg_env.common.console import json_text, size_text
from vdbg_env.common.errors import HostNotAble, VdbgError
from vdbg_env.common.programs import ProgramRunner, cuda_of_driver, read_gpus, tool_version
from vdbg_env.engine.client import Engine, connect, engine_errors
from vdbg_env.engine.containers import gpu_access, has_gpu
from vdbg_env.supervisor import proc, process_tree

UNLIMITED = -1


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A resource limit in bytes, `UNLIMITED` for none."""

    soft: int
    hard: int


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The container engine: either what it says about itself, or why it does not answer.

    `no_buildkit` is why no build can be sent to its own BuildKit, `memlock` the hard limit in bytes that it can give a
    container, `root_free` the free bytes where it keeps images.
    """

    version: str | None = None
    no_buildkit: str | None = None
    podman: bool = False
    buildx: str | None = None
    gpu_by: Literal["cdi", "runtime", "none"] = "none"
    gpu_why: str = ""
    memlock: int | None = None
    root: str | None = None
    root_free: int | None = None
    problem: str | None = None
    next_step: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """The GPUs as nvidia-smi names them; `cuda` is the newest CUDA the driver knows, `memory` their sum in bytes."""

    names: tuple[str, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    memory: int = 0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One machine; sizes in bytes. `tools` holds each tool's version, "" where it starts and prints none.

    `trees_held_by` says what would hold the processes of a step whose supervisor is killed; `cgroup` is where.
    """

    python: tuple[int, int, int]
    engine: EngineFacts = field(default_factory=EngineFacts)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    toolkit: str | None = None
    ptrace_scope: int | None = None
    core: Limit = Limit(soft=0, hard=UNLIMITED)
    core_pattern: str | None = None
    memlock: Limit = Limit(soft=0, hard=0)
    dump_place: str = "/"
    dump_free: int | None = None
    shm: int | None = None
    trees_held_by: str | None = None
    cgroup: str | None = None
    tools: Mapping[str, str | None] = field(default_factory=dict)


# What `doctor` does: judge a machine's facts, one small rule for each thing that debugging needs.


Status = Literal["ok", "warn", "fail"]
GIB = 1 << 30
TOOLS = ("cuda-gdb", "compute-sanitizer", "cuobjdump", "nvdisasm", "py-spy")

_FOR = {
    "cuda-gdb": "reads GPU core dumps and breaks in kernels",
    "compute-sanitizer": "finds the first bad access of a kernel",
    "cuobjdump": "cross-checks the line-info proof",
    "nvdisasm": "shows the instructions around a faulting address",
    "py-spy": "shows the stacks of a hung Python process",
}
_COMES_FROM = {
    "cuobjdump": "pip install nvidia-cuda-cuobjdump",
    "nvdisasm": "pip install nvidia-cuda-nvdisasm",
    "compute-sanitizer": "pip install nvidia-cuda-sanitizer-api",
    "py-spy": "pip install py-spy",
}
_OF_THE_IMAGE = "vdbg-env build --lineinfo, then vdbg-env shell: the debug image has it"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at: what was found, what it matters for, and what to type where it is not ok."""

    id: str
    title: str
    status: Status
    found: str
    why: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """All checks, in the order a person would fix them."""

    checks: tuple[Check, ...]

    @property
    def status(self) -> Status:
        """The worst of all checks."""
        found = {check.status for check in self.checks}
        return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def judge(facts: HostFacts) -> DoctorReport:
    """Return every check over facts already gathered."""
    return DoctorReport(checks=tuple(check for rule in _RULES for check in rule(facts)))


def python(facts: HostFacts) -> Iterator[Check]:
    version = ".".join(map(str, facts.python))
    status: Status = "ok" if facts.python >= (3, 11) else "fail"
    yield _check("python", "Python", status, version, "vdbg-env needs Python 3.11", "install Python 3.11 or newer")


def engine(facts: HostFacts) -> Iterator[Check]:
    found, why = facts.engine, "images are built and run on it; without it the plan runs on this bare machine"
    if found.version is None:
        yield _check("engine", "container engine", "warn", found.problem or "none answers", why, found.next_step)
        return
    yield _check("engine", "container engine", "ok", f"{'Podman' if found.podman else 'Docker'} {found.version}", why)
    if not found.podman:  # its own command builds
        yield from _builder(found)
    if found.root_free is not None:
        status = _enough(found.root_free, fail_below=10 * GIB, warn_below=60 * GIB)
        text = f"{size_text(found.root_free)} free in {found.root}"
        why = "a vLLM debug image takes some 30 GiB while it is built"
        yield _check("engine-disk", "disk of the engine", status, text, why, "docker system df, and make room there")


def _builder(found: EngineFacts) -> Iterator[Check]:
    why = "buildx builds with secrets; the engine's own BuildKit builds all else"
    if found.buildx:
        yield _check("buildx", "builder", "ok", f"buildx {found.buildx}", why)
        return
    fix = "apt-get install docker-buildx, or docker-buildx-plugin from Docker's own packages"
    text = f"no buildx: {found.no_buildkit}" if found.no_buildkit else "the engine's BuildKit, without buildx"
    yield _check("buildx", "builder", "fail" if found.no_buildkit else "warn", text, why, fix)


def gpu(facts: HostFacts) -> Iterator[Check]:
    found, why = facts.gpu, "a crash is reproduced on a GPU; reading dumps, building and proving need none"
    if not found.names:
        text = found.problem or "none"
        absent = "lspci | grep -i nvidia, to see whether the machine has one; a container gets it by --gpus all"
        fix = "nvidia-smi, to see the driver's own message" if found.problem else absent
        yield _check("gpu", "GPU", "fail" if found.problem else "warn", text, why, fix)
        return
    text = f"{len(found.names)} x {found.names[0]}, driver {found.driver}"
    yield _check("gpu", "GPU", "ok", text, why)
    yield from _container_gpu(facts)
    yield from _driver(facts)


def _container_gpu(facts: HostFacts) -> Iterator[Check]:
    if facts.engine.version is None:
        return
    status: Status = "fail" if facts.engine.gpu_by == "none" else "ok"
    text = facts.engine.gpu_why if status == "fail" else f"by {facts.engine.gpu_by}: {facts.engine.gpu_why}"
    fix = "install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=docker, restart the engine"
    yield _check("container-gpu", "GPU in containers", status, text, "a container without it sees no GPU at all", fix)


def _driver(facts: HostFacts) -> Iterator[Check]:
    driver, toolkit = facts.gpu.cuda, facts.toolkit
    if driver is None or toolkit is None:
        return
    ours, theirs = _version(toolkit), _version(driver)
    status: Status = "ok" if ours <= theirs else "warn" if ours[0] == theirs[0] else "fail"
    why = (
        "PTX of a newer CUDA is refused by the driver (the provided PTX was compiled with an unsupported toolchain)"
        if status == "warn"
        else "a program of a newer CUDA does not start on an older driver"
    )
    fix = f"build with CUDA {driver} or older, or install a driver for CUDA {toolkit}"
    text = f"toolkit {toolkit}, driver for CUDA {driver}"
    yield _check("driver", "driver and toolkit", status, text, why, fix)


def ptrace(facts: HostFacts) -> Iterator[Check]:
    scope, why = facts.ptrace_scope, "cuda-gdb and py-spy attach to a running process through ptrace"
    fix = "sudo sysctl kernel.yama.ptrace_scope=0; or vdbg-env shell, whose container may trace"
    match scope:
        case None:
            yield _check("ptrace", "ptrace", "ok", "not restricted by Yama", why)
        case 0:
            yield _check("ptrace", "ptrace", "ok", "scope 0: own processes", why)
        case 3:
            text = "scope 3: no one, until the next boot"
            yield _check("ptrace", "ptrace", "fail", text, why, "set kernel.yama.ptrace_scope to 0 or 1 and boot again")
        case _:
            text = f"scope {scope}: {'children only' if scope == 1 else 'root only'}"
            yield _check("ptrace", "ptrace", "warn", text, why, fix)


def cores(facts: HostFacts) -> Iterator[Check]:
    why = "the host side of a crash is read from its core; a limit cuts it short or leaves none"
    status: Status = "ok" if facts.core.soft == UNLIMITED else "warn"
    hard = facts.core.hard != UNLIMITED
    fix = "raise core in /etc/security/limits.conf, log in again" if hard else "ulimit -c unlimited"
    yield _check("core-limit", "core limit", status, _limit(facts.core.soft), why, fix)
    pattern = facts.core_pattern
    if pattern is None:
        return
    piped = pattern.startswith("|")
    why = "a core piped to a handler of the host never reaches the container's dump volume"
    fix = "sudo sysctl kernel.core_pattern=/dumps/core.%h.%P.%t (it holds for every container of the host)"
    yield _check("core-pattern", "core pattern", "warn" if piped else "ok", pattern, why, fix)


def memlock(facts: HostFacts) -> Iterator[Check]:
    why = "pinned host memory and RDMA are locked memory; NCCL fails or falls back without it"
    fix = "raise memlock in /etc/security/limits.conf, log in again"
    yield _check("memlock", "locked memory", _lockable(facts.memlock.hard), _limit(facts.memlock.hard), why, fix)
    if facts.engine.memlock is not None:
        limit = facts.engine.memlock
        fix = "LimitMEMLOCK=infinity for the engine's service, then restart it; vdbg-env run works anyway"
        text = f"at most {_limit(limit)}"
        yield _check("engine-memlock", "locked memory in containers", _lockable(limit), text, why, fix)


def disk(facts: HostFacts) -> Iterator[Check]:
    if facts.dump_free is None:
        return
    wanted = max(20 * GIB, facts.gpu.memory)
    status = _enough(facts.dump_free, fail_below=2 * GIB, warn_below=wanted)
    text = f"{size_text(facts.dump_free)} free in {facts.dump_place}"
    why = f"a full GPU core is as large as the memory in use, up to {size_text(wanted)}; a truncated one says little"
    fix = "vdbg-env dumps prune --keep 3, or --dumps on a larger disk"
    yield _check("dump-disk", "disk for dumps", status, text, why, fix)


def shared_memory(facts: HostFacts) -> Iterator[Check]:
    if facts.shm is None:
        return
    status: Status = "ok" if facts.shm >= GIB else "warn"
    why = "NCCL and the workers of vLLM talk through /dev/shm; a small one ends them with SIGBUS"
    fix = "mount -o remount,size=16g /dev/shm; vdbg-env run gives its containers 16 GiB"
    yield _check("shm", "shared memory", status, size_text(facts.shm), why, fix)


def process_trees(facts: HostFacts) -> Iterator[Check]:
    if facts.trees_held_by is None:
        return
    why = "what a step started is ended even when its supervisor is killed; without a cgroup, what was seen to start is"
    text = f"{facts.trees_held_by}{f' below {facts.cgroup}' if facts.cgroup else ': no cgroup can be made here'}"
    yield _check("process-trees", "processes of a step", "ok", text, why)


def tools(facts: HostFacts) -> Iterator[Check]:
    for name in TOOLS:
        version = facts.tools.get(name)
        status: Status = "warn" if version is None else "ok"
        fix = _COMES_FROM.get(name, _OF_THE_IMAGE) if version is None else None
        yield _check(name, name, status, version or ("not here" if version is None else "here"), _FOR[name], fix)


def _check(id: str, title: str, status: Status, found: str, why: str, fix: str | None = None) -> Check:
    return Check(id=id, title=title, status=status, found=found, why=why, fix=None if status == "ok" else fix)


def _enough(free: int, *, fail_below: int, warn_below: int) -> Status:
    return "fail" if free < fail_below else "warn" if free < warn_below else "ok"


def _lockable(limit: int) -> Status:
    return "ok" if limit == UNLIMITED or limit >= 64 * GIB else "warn"


def _limit(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else size_text(limit)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


_RULES: tuple[Callable[[HostFacts], Iterator[Check]], ...] = (
    python, engine, gpu, ptrace, cores, memlock, disk, shared_memory, process_trees, tools,
)  # fmt: skip


# Gathers what `doctor` judges: from /proc, the engine and the tools' output; changes nothing.


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
        cgroup = process_tree.make_cgroup(f"{process_tree.PREFIX}doctor-{os.getpid()}")
        if cgroup:
            cgroup.remove()
        return HostFacts(
            python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
            engine=engine.result(),
            gpu=gpu.result(),
            toolkit=nvcc.result() or None,
            ptrace_scope=_number(_PROC / "sys/kernel/yama/ptrace_scope"),
            core=_limit_of(resource.RLIMIT_CORE),
            core_pattern=_text(_PROC / "sys/kernel/core_pattern"),
            memlock=_limit_of(resource.RLIMIT_MEMLOCK),
            dump_place=dump_place,
            dump_free=_free(dump_place),
            shm=_size("/dev/shm"),
            trees_held_by=cgroup.kind if cgroup else process_tree.LIST,
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


def _limit_of(which: int) -> Limit:
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


# Write whether a machine is able to debug: each check with what was found, why it matters and what to type.


_MARKS: dict[Status, str] = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def as_json(report: DoctorReport) -> str:
    """Return the report as docs/schemas/doctor-v1.schema.json describes it."""
    checks = [vars(check) for check in report.checks]
    return json_text({"schema": "vdbg-env/doctor/v1", "status": report.status, "checks": checks})


def as_text(report: DoctorReport, *, colour: bool = False) -> str:
    """Return one line a check; what is not ok also says why it matters and what to type, then how to try it all."""
    width = max((len(check.title) for check in report.checks), default=0)
    lines = [line for check in report.checks for line in _lines(check, width, colour)]
    counts = {status: sum(check.status == status for check in report.checks) for status in _MARKS}
    summary = f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures"
    trial = [] if counts["fail"] else ["next: vdbg-env demo"]
    return "\n".join([*lines, "", summary, *trial, ""])


def _lines(check: Check, width: int, colour: bool) -> Iterator[str]:
    mark = _MARKS[check.status]
    if colour:
        mark = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}[check.status] + mark + "\x1b[0m"
    yield f"{mark}  {check.title:<{width}}  {check.found}"
    if check.status != "ok":
        yield f"      why: {check.why}"
        if check.fix:
            yield f"      try: {check.fix}"
