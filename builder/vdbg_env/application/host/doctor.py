"""What `doctor` does: judge a machine's facts, one small rule for each thing that debugging needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from vdbg_env.application.ports.host_facts import UNLIMITED, EngineFacts, HostFacts
from vdbg_env.common.size import size_text

Status = Literal["ok", "warn", "fail"]
GIB = 1 << 30
TOOLS = ("cuda-gdb", "compute-sanitizer", "cuobjdump", "nvdisasm", "py-spy")

_FOR = {
    "cuda-gdb": "reads GPU core dumps and breaks in kernels",
    "compute-sanitizer": "finds the first bad access of a kernel",
    "cuobjdump": "is the second witness of the proof of line info",
    "nvdisasm": "shows the instructions around a faulting address",
    "py-spy": "shows the stacks of a hung Python process",
}
_COMES_FROM = {
    "cuobjdump": "pip install nvidia-cuda-cuobjdump",
    "nvdisasm": "pip install nvidia-cuda-nvdisasm",
    "compute-sanitizer": "pip install nvidia-cuda-sanitizer-api",
    "py-spy": "pip install py-spy",
}


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
        fix = "LimitMEMLOCK=infinity for the engine's service, then restart it; vdbg-env run does without"
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
        fix = _COMES_FROM.get(name, "vdbg-env shell: the debug image has it") if version is None else None
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
