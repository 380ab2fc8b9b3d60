"""The built-in steps of runbooks, each a function with its contract."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpucore.core import DecodedCore, Fault, Scope, WarpGroup, decode_core
from gpucore.core_layout import SectionType
from gpucore.core_reader import read_core
from gpucore.elf import Buffer, Elf
from gpucore.mangling import demangle, short_name
from gpucore.toolkit import own_frame
from vdbg_env.common.console import counted, size_text
from vdbg_env.common.errors import BAD_INPUT, HostNotAble, VdbgError
from vdbg_env.common.files import PACKED_ENDS
from vdbg_env.common.programs import Gpu, ProgramRunner, cuda_of_driver, read_gpus, toolkit_release
from vdbg_env.crash.core import Core, explained
from vdbg_env.crash.memory_files import maps_of_run, owner_of_fault
from vdbg_env.evidence.cuda_gdb import GdbTranscript, parse_cuda_gdb
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep
from vdbg_env.evidence.gpu_findings import gpu_core_findings, place_of
from vdbg_env.evidence.kernel_makers import kernel_makers
from vdbg_env.evidence.system import KernelLog, OwnerOf, Xid, kernel_log_findings, parse_kernel_log, split_at
from vdbg_env.report.model import REPORT_FILES
from vdbg_env.run.core_code import (
    FaultingCode,
    Holder,
    agrees,
    code_of,
    core_groups,
    faulting_code,
    holders,
    instruction_at,
    opinion,
    places_to_look,
)
from vdbg_env.run.library import BuiltinContext, BuiltinResult, builtin
from vdbg_env.run.stale import RUNTIMES, Versions, installed_versions, mismatches, shipped_tables, workload_python
from vdbg_env.runbook.state import ResultValue
from vdbg_env.runbook.workload import Settings, settings_of, stale_settings
from vdbg_env.supervisor.control_files import LOCK
from vdbg_env.supervisor.process_tree import listed

_PACKAGES = (
    "vllm", "torch", "triton", "flashinfer-python", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13", *RUNTIMES
)  # fmt: skip


@builtin(
    name="collect-env",
    version=1,
    role="step",
    does="Records the installed versions, the GPUs, and the variables that change behaviour.",
    by_hand=("vllm collect-env", "env | grep -E '^(CUDA|VLLM|NCCL|TORCH|PYTORCH|TRITON|FLASHINFER)_'"),
    results={
        "vllm": "string",
        "torch": "string",
        "cuda": "string",
        "driver": "string",
        "toolkit": "string",
        "mismatches": "list",
        "stale_variables": "list",
    },
)
def collect_env(context: BuiltinContext) -> BuiltinResult:
    """Ask the workload's own interpreter what is installed; a program without Python has no versions.

    What the workload's command line, the environment and the runbook's steps set is compared with that vLLM; driver,
    toolkit, torch and vLLM are compared with one another.
    """
    results: dict[str, ResultValue] = {}
    notes: list[str] = []
    versions = _versions(context, notes)
    results |= {name: versions[name] for name in ("vllm", "torch") if name in versions}
    known = {"driver": context.facts.driver, "cuda": context.facts.cuda}
    results |= {name: value for name, value in known.items() if value}
    given = Settings(argv=context.workload, environment=context.environment)
    stale = stale_settings(given, settings_of(context.steps), versions.get("vllm"))
    results |= {"stale_variables": [setting.name for setting in stale]} if stale else {}
    toolkit = toolkit_release(context.programs)
    unfit = mismatches(_in_play(context, versions, toolkit), shipped_tables())
    results |= {"toolkit": toolkit} if toolkit else {}
    results |= {"mismatches": [finding.message for finding in unfit]} if unfit else {}
    notes += [f"{name} {version}" for name, version in versions.items()] + ([f"nvcc {toolkit}"] if toolkit else [])
    notes += [f"{name}={value}" for name, value in sorted(context.environment.items()) if _changes_behaviour(name)]
    return BuiltinResult(results=results, findings=(*unfit, *(s.finding for s in stale)), notes=tuple(notes))


def _versions(context: BuiltinContext, notes: list[str]) -> dict[str, str]:
    python = workload_python(context.programs, context.workload, here=context.facts.on != "docker")
    try:
        return installed_versions(context.programs, python, _PACKAGES) if python else {}
    except HostNotAble as error:
        notes.append(error.what)
        return {}


def _in_play(context: BuiltinContext, versions: Mapping[str, str], toolkit: str | None) -> Versions:
    return Versions(
        vllm=versions.get("vllm"),
        torch=versions.get("torch"),
        runtime=next((versions[name] for name in RUNTIMES if name in versions), None),
        toolkit=toolkit,
        driver=context.facts.driver,
    )


def _changes_behaviour(name: str) -> bool:
    return name.startswith(("CUDA_", "VLLM_", "NCCL_", "TORCH_", "PYTORCH_", "TRITON_", "FLASHINFER_"))


# `builtin/core-lines@v1`: why a core has no source lines: which file has the faulting kernel, and its proof.


_CACHES = ("ccache", "sccache")
_KEPT_OUT = {"ccache": "CCACHE_DISABLE", "sccache": "VLLM_DISABLE_SCCACHE"}


@builtin(
    name="core-lines",
    version=1,
    role="step",
    does="Finds the file that has a core's faulting kernel, and proves whether that file has line info.",
    parameters={"core": "string", "binaries": "list"},
    by_hand=(
        "cuda-gdb -batch -ex 'target cudacore CORE' -ex bt        # the kernel, and its line if it has one",
        "cuobjdump -elf LIBRARY | grep -E 'Fatbin elf|identifier|[.]text[.]|PROGBITS.* [.]debug_line'",
    ),
    results={
        "kernel": "string",
        "has_lines": "bool",
        "source": "string",
        "maker": "string",
        "remedy": "string",
        "file": "string",
        "same": "bool",
        "file_has_lines": "bool",
        "located": "string",
        "verdict": "string",
        "missing": "int",
        "caches": "list",
    },
)
def core_lines(context: BuiltinContext) -> BuiltinResult:
    """Read the parameter `core`; where its faulting kernel has no lines, look for the file that holds that kernel.

    The last file found is judged only when none has the same code, so that no unused build is blamed.
    """
    path = str(context.parameters.get("core") or "")
    caches: dict[str, ResultValue] = {"caches": _caches(context)}
    if not path:
        return BuiltinResult(results=caches, notes=("no core was given: -i core=FILE",))
    notes: list[str] = []
    try:
        with context.cores.open(path) as core:
            read = decode_core(core.data, lines=context.packed_lines())
            places: tuple[Fault | WarpGroup, ...] = (*read.faults, *read.warp_groups)
            fault = next((place for place in places if place.location), None)
            wanted = faulting_code(fault) if fault else None
    except BAD_INPUT as error:
        return BuiltinResult(results=caches, notes=(f"{path}: {error.what}",))
    if fault is None or wanted is None:
        return BuiltinResult(results=caches, notes=(*read.notes, "nothing of the core lies inside a known kernel"))
    results = caches | _of_core(fault, wanted.kernel)
    if not results["has_lines"]:
        targets = places_to_look(context)
        found = list(holders(context, wanted, targets, notes, proof=True))
        notes.append(
            f"looked through {', '.join(targets) or 'no binary'}: the kernel is in {counted(len(found), 'file')}"
        )
        holder = next((h for h in found if h.same), found[-1]) if found else None
        results |= (_of_holder(holder) if holder else {}) | _maker(wanted.kernel, holder.file if holder else None)
    return BuiltinResult(results=results, notes=(*read.notes, *notes))


def _of_core(fault: Fault | WarpGroup, kernel: str) -> dict[str, ResultValue]:
    chain = fault.location.chain if fault.location else ()
    results: dict[str, ResultValue] = {"kernel": short_name(demangle(kernel)), "has_lines": bool(chain)}
    return results | ({"source": str(own_frame(chain))} if chain else {})


def _maker(kernel: str, file: str | None) -> dict[str, ResultValue]:
    """Return the one maker of a kernel that is not vLLM's and what gives it lines, by its library if that is known."""
    makers = kernel_makers()
    origin = makers.by_name(kernel)
    maker = (makers.by_library(file, origin) if file else origin).maker
    return {"maker": maker.name, "remedy": maker.remedy} if maker and maker.remedy else {}


def _of_holder(holder: Holder) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "file": holder.file,
        "same": holder.same,
        "file_has_lines": bool(holder.location.chain),
    }
    results |= {"located": str(own_frame(holder.location.chain))} if holder.same and holder.location.chain else {}
    if holder.report:
        results |= {"verdict": holder.report.verdict.value, "missing": len(holder.report.missing)}
    return results


def _caches(context: BuiltinContext) -> list[str]:
    """Return the compiler caches a rebuild would meet here; one that is switched off is none."""
    there = (name for name in _CACHES if context.programs.which(name))
    return [name for name in there if context.environment.get(_KEPT_OUT[name]) != "1"]


# `builtin/core-sizes@v1`: what makes a GPU core dump large, by the kinds of memory in it.


# The flag of CUDA_COREDUMP_GENERATION_FLAGS that leaves a kind out; registers, lanes and the relocated code have none.
_FLAGS = {
    SectionType.GLOBAL_MEMORY: "skip_global_memory",
    SectionType.MANAGED_MEMORY: "skip_global_memory",
    SectionType.SHARED_MEMORY: "skip_shared_memory",
    SectionType.LOCAL_MEMORY: "skip_local_memory",
    SectionType.CONSTANT_BANKS: "skip_constbank_memory",
    SectionType.IMAGE: "skip_nonrelocated_elf_images",
}


@builtin(
    name="core-sizes",
    version=1,
    role="step",
    does="Sums up what a GPU core dump holds by kind of memory, and names the flags that leave the most of it out.",
    parameters={"core": "string"},
    by_hand=("readelf -SW CORE        # LOUSER+2 is global memory, +3 local, +4 shared, +15 constant banks",),
    results={
        "size": "int",
        "text": "string",
        "largest": "string",
        "share": "float",
        "flags": "list",
        "saved": "string",
        "savings": "float",
        "whole": "bool",
    },
)
def core_sizes(context: BuiltinContext) -> BuiltinResult:
    """Sum up the sections of the parameter `core` by kind; a file that is not a GPU core has no sizes."""
    path = str(context.parameters.get("core") or "")
    if not path:
        return BuiltinResult(notes=("no core was given: -i core=FILE",))
    try:
        with context.cores.open(path) as core:
            size = len(core.data)
            truncated = read_core(core.data).truncated
            sizes = Counter() if truncated else _sizes(core.data)
    except BAD_INPUT as error:
        return BuiltinResult(notes=(f"{path}: {error.what}",))
    if truncated:
        return BuiltinResult(results={"size": size, "text": size_text(size), "whole": False})
    return BuiltinResult(results=_results(sizes, size), notes=tuple(_told(sizes)))


def _sizes(data: Buffer) -> Counter[SectionType]:
    """Return the bytes of each kind, as the section headers say."""
    sizes: Counter[SectionType] = Counter()
    elf = Elf(data)
    for kind in SectionType:
        sizes[kind] += sum(section.size for section in elf.sections_of(frozenset({kind})))
    elf.data.release()
    return sizes


def _results(sizes: Counter[SectionType], size: int) -> dict[str, ResultValue]:
    kind, most = max(sizes.items(), key=lambda item: item[1])
    promised = max(sum(sizes.values()), 1)
    left_out = {flag: sum(sizes[k] for k, f in _FLAGS.items() if f == flag) for flag in dict.fromkeys(_FLAGS.values())}
    return {
        "size": size,
        "text": size_text(size),
        "largest": _name(kind),
        "share": most / promised,
        "flags": [flag for flag, saved in left_out.items() if saved],
        "saved": size_text(sum(left_out.values())),
        "savings": sum(left_out.values()) / promised,
        "whole": True,
    }


def _told(sizes: Counter[SectionType]) -> list[str]:
    return [f"{_name(kind)}: {size_text(size)}" for kind, size in sizes.most_common(8) if size]


def _name(kind: SectionType) -> str:
    return kind.name.lower().replace("_", " ")


# `builtin/decode-gpu-core@v1`: what the GPU core dumps say, the earliest first; cuda-gdb's answer next to ours.


_GDB_TIME_S = 300.0
# Width 0 keeps cuda-gdb from wrapping long kernel names; -nx keeps the user's own settings out of the answer.
_GDB = ("-nx", "-batch", "-ex", "set width 0", "-ex")
_GDB_ASKS = (
    "info cuda devices",
    "info cuda kernels",
    "info cuda warps",
    "info cuda lanes",
    "bt",
    "print $errorpc",
    "info symbol $errorpc",
    "info line *$errorpc",
)


@builtin(
    name="decode-gpu-core",
    version=1,
    role="step",
    does="Reads GPU core dumps: exception, kernel, source line, inline chain; asks cuda-gdb too when present.",
    parameters={"cores": "list", "cuda_gdb": "bool"},
    by_hand=("cuda-gdb -batch -ex 'target cudacore FILE' -ex 'info cuda kernels' -ex bt -ex 'info line *$errorpc'",),
    results={
        "cores": "int",
        "exception": "string",
        "kernel": "string",
        "pc": "string",
        "source": "string",
        "chain": "list",
        "has_lines": "bool",
        "for_lines": "string",
        "warps": "int",
        "spinning": "bool",
    },
)
def decode_gpu_core(context: BuiltinContext) -> BuiltinResult:
    """Read every core; the first in time with a fault gives the results, for the others mostly wait for its rank."""
    readings: dict[str, Core] = {}
    notes: list[str] = []
    for path in context.paths("cores"):
        name = context.relative(path)
        try:
            readings[name] = _read(context, str(path), name)
        except BAD_INPUT as error:
            notes.append(f"{name}: {error.what}")
    if not readings:
        return BuiltinResult(notes=tuple(notes) or ("no core was given",))
    ordered = sorted(readings.items(), key=lambda item: (not item[1].faults, item[1].written))
    by_core = {name: _findings(read, name) for name, read in ordered}
    findings = tuple(finding for found in by_core.values() for finding in found)
    lead = ordered[0][1]
    notes += core_groups(by_core)
    notes += [f"{name}: {note}" for name, read in ordered for note in read.notes]
    notes += _disassembled(context, ordered[0][0])
    if context.parameters.get("cuda_gdb", True):
        notes += _second_opinion(context, *ordered[0], findings)
    results = _core_results(lead, findings[0]) if findings else {}
    return BuiltinResult(results={"cores": len(readings), **results}, findings=findings, notes=tuple(notes))


def _read(context: BuiltinContext, path: str, name: str) -> Core:
    with context.cores.open(path) as core:
        read = decode_core(core.data, file=name, modified=core.modified, lines=context.packed_lines())
        return explained(read, core.data, context.sources.text, core=path)


def _findings(read: Core, name: str) -> tuple[Finding, ...]:
    """Return a finding for each fault, with why its address was bad; without one, where a hang is and what it polls."""
    findings = gpu_core_findings(read.faults, read.warp_groups, name)
    if not read.faults:
        waits = {g.location.chain: w for g, w in zip(read.warp_groups, read.waits, strict=False) if w and g.location}
        return tuple(
            replace(found, why=wait.lines, waits=wait.document) if (wait := waits.get(found.chain)) else found
            for found in findings
        )
    if not any(read.addresses):
        return findings
    return tuple(
        replace(finding, why=address.lines, address=address.document) if address else finding
        for finding, address in zip(findings, read.addresses, strict=True)
    )


def _core_results(read: DecodedCore, finding: Finding) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "warps": read.warps,
        "has_lines": bool(finding.chain),
        "chain": [str(frame) for frame in finding.chain],
    }
    if not finding.chain and finding.next_step:
        results["for_lines"] = str(finding.next_step)
    pc = read.faults[0].pc if read.faults else read.warp_groups[0].pc
    if read.faults:
        results["exception"] = read.faults[0].exception.name
    else:
        results["spinning"] = any(group.state == "running" for group in read.warp_groups)
    results |= {"pc": f"{pc:#x}"} if pc is not None else {}
    results |= {"kernel": finding.kernel} if finding.kernel else {}
    results |= {"source": str(finding.location)} if finding.location else {}
    return results


def _disassembled(context: BuiltinContext, name: str) -> Iterator[str]:
    """Show the faulting instruction; the core is opened again because its code is read only while it is open."""
    with context.cores.open(str(context.run_directory / name)) as core:
        fault = next((f for f in decode_core(core.data).faults if f.location), None)
        code = code_of(fault) if fault else None
        if fault is None or fault.location is None or code is None:
            return
        notes: list[str] = []
        instruction = instruction_at(context, code, fault.location, "fault", notes)
        yield from notes
        if instruction:
            yield opinion(instruction, fault.location.chain)


def _second_opinion(
    context: BuiltinContext, name: str, read: DecodedCore, findings: tuple[Finding, ...]
) -> Iterator[str]:
    """Ask cuda-gdb about the first core and say whether it agrees; its transcript is kept."""
    program = context.programs.which("cuda-gdb")
    if program is None or not findings or name.endswith(PACKED_ENDS):
        return
    asks = [word for ask in _GDB_ASKS for word in ("-ex", ask)]
    command = [program, *_GDB, f"target cudacore {context.run_directory / name}", *asks]
    try:
        done = context.programs.run(command, timeout_s=_GDB_TIME_S)
    except VdbgError as error:
        yield f"cuda-gdb could not be asked: {error.what}"
        return
    kept = context.keep("cuda-gdb.txt", done.stdout + done.stderr)
    theirs = parse_cuda_gdb(done.stdout + done.stderr)
    shown = f"; it shows {theirs.thread}" if theirs.thread else ""
    yield f"{compare(read, findings[0], theirs)}{shown} ({kept})"


def compare(read: DecodedCore, ours: Finding, theirs: GdbTranscript) -> str:
    """Say in a sentence whether cuda-gdb names the same exception, line and kernel.

    It knows only one level of an inline chain and looks for a fault in warps alone (12.4), so it may know less.
    """
    if theirs.exception is None and theirs.error_pc is None:
        return f"cuda-gdb finds no exception{_beside_ours(read)}"
    exception = theirs.exception or "an exception it does not name"
    if theirs.error_place and ours.location:
        lines = {(place_of(frame)) for frame in ours.chain}
        if place_of(theirs.error_place) == place_of(ours.location):
            return f"cuda-gdb agrees: {exception} at {place_of(ours.location)}"
        if place_of(theirs.error_place) in lines:
            return f"cuda-gdb names {place_of(theirs.error_place)}, a caller in our chain"
        return f"cuda-gdb disagrees: it names {place_of(theirs.error_place)}, we {place_of(ours.location)}"
    if theirs.kernel and ours.kernel:
        kernel = short_name(demangle(theirs.kernel))
        return f"cuda-gdb {'agrees' if kernel == short_name(ours.kernel) else 'disagrees'}: {exception} in {kernel}"
    return f"cuda-gdb says {exception}, and names no place"


def _beside_ours(read: DecodedCore) -> str:
    if not read.faults:
        return ", nor do we"
    exited = all(fault.scope is Scope.SM for fault in read.faults)
    return " (it does not look at exited warps)" if exited else f", we find {read.faults[0].exception.name}"


# `builtin/gpu-health@v1`: driver, GPUs, ECC, MIG, Xid lines, ptrace and free disk, before anything is started.


_EVENTS_SINCE = 615  # the driver branch that has GPU operational events; never met by us
_CAP_SYS_PTRACE = 19
_SHOWN = 3  # the last of what went before
_INITIAL_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO: the process numbers of the kernel itself, which the driver prints
# Variables that change a crash's behaviour; left over from an earlier session they make every step a lie.
_TELLING = ("CUDA_LAUNCH_BLOCKING", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_DEVICE_WAITS_ON_EXCEPTION",
            "CUDA_COREDUMP_FILE", "PYTORCH_NO_CUDA_MEMORY_CACHING", "VLLM_TRACE_FUNCTION")  # fmt: skip


@builtin(
    name="gpu-health",
    version=1,
    role="step",
    does="Reads the driver, the GPUs, ECC, MIG and the kernel log's Xid lines before anything is started.",
    parameters={"events": "bool"},
    by_hand=("nvidia-smi", "dmesg | grep Xid", "cat /proc/sys/kernel/yama/ptrace_scope"),
    results={
        "gpus": "int",
        "driver": "string",
        "cuda": "string",
        "xids": "list",
        "ecc_errors": "int",
        "mig": "bool",
        "ptrace": "bool",
        "free_disk": "int",
        "memory_used": "int",
        "memory_total": "int",
    },
)
def gpu_health(context: BuiltinContext) -> BuiltinResult:
    """Look at the host; what cannot be looked at is left out of the results, with a note that says why."""
    results: dict[str, ResultValue] = {"free_disk": context.files.free_space()}
    notes: list[str] = []
    findings: list[Finding] = []
    results |= _gpus(context.programs, notes)
    maps = maps_of_run(context.run_directory)
    ours = _pids_of_run(context.run_directory)
    xids, from_log = _kernel_log(context.programs, context.began_s, notes, lambda xid: owner_of_fault(xid, maps), ours)
    results |= xids
    findings += from_log
    ptrace = may_trace()
    results |= {} if ptrace is None else {"ptrace": ptrace}
    findings += _leftovers(context)
    if context.parameters.get("events"):
        notes += _events(context, str(results.get("driver", "")))
    return BuiltinResult(results=results, findings=tuple(findings), notes=tuple(notes))


def may_trace(proc: Path = Path("/proc")) -> bool | None:
    """Say whether a debugger may attach to a process that is not its child; None where that is unknown."""
    try:
        effective = re.search(r"^CapEff:\s*([0-9a-f]+)", (proc / "self/status").read_text(), re.MULTILINE)
        if effective and int(effective[1], 16) >> _CAP_SYS_PTRACE & 1:
            return True
        return (proc / "sys/kernel/yama/ptrace_scope").read_text().strip() == "0"
    except OSError:
        return None


def _gpus(programs: ProgramRunner, notes: list[str]) -> dict[str, ResultValue]:
    try:
        reading = read_gpus(programs, timeout_s=60)
        cuda = cuda_of_driver(programs, timeout_s=60) if reading.gpus else None
    except HostNotAble as error:
        notes.append(f"{error.what}: a driver that does not answer is often a GPU that is gone (Xid 79)")
        return {}
    gpus = reading.gpus
    if not reading.is_installed:
        notes.append("nvidia-smi was not found: no NVIDIA driver, or it is not mounted into this container")
    elif reading.problem:
        notes.append(f"nvidia-smi: {reading.problem}")
    notes += [f"GPU {number}: {_described(gpu)}" for number, gpu in enumerate(gpus)]
    if not gpus:
        return {"gpus": 0}
    results: dict[str, ResultValue] = {
        "gpus": len(gpus),
        "ecc_errors": sum(gpu.ecc_errors or 0 for gpu in gpus),
        "mig": any(gpu.is_mig for gpu in gpus),
    }
    used, total = ([one for one in sizes if one is not None] for sizes in zip(*map(_memory, gpus), strict=True))
    results |= {"memory_used": max(used), "memory_total": min(total)} if used and total else {}
    results |= {"driver": gpus[0].driver}
    return results | ({"cuda": cuda} if cuda else {})


def _events(context: BuiltinContext, driver: str) -> Iterator[str]:
    """Keep the driver's list of operational events, where it has them; a preview whose text is kept, not read."""
    branch = driver.partition(".")[0]
    program = context.programs.which("nvidia-smi")
    if program is None or not branch.isdecimal() or int(branch) < _EVENTS_SINCE:
        return
    try:
        done = context.programs.run([program, "event-log"], timeout_s=20)
    except HostNotAble as error:
        yield f"nvidia-smi event-log: {error.what}"
        return
    if done.code == 0 and done.stdout.strip():
        yield f"nvidia-smi event-log: {context.keep('gpu-event-log.txt', done.stdout)}"
    else:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        yield f"nvidia-smi event-log said nothing (status {done.code}){f': {said}' if said else ''}"


def _memory(gpu: Gpu) -> tuple[int | None, int | None]:
    return gpu.memory_used, gpu.memory_total


def _described(gpu: Gpu) -> str:
    """Return a GPU's name, its architecture, and how much of its memory is in use already."""
    used, total = gpu.memory_used, gpu.memory_total
    if used is None or total is None or gpu.compute_capability is None:
        return gpu.name
    arch = gpu.compute_capability.replace(".", "")
    return f"{gpu.name} (sm_{arch}), {used / 2**30:.1f} of {total / 2**30:.1f} GiB in use"


def _kernel_log(
    programs: ProgramRunner, began_s: float, notes: list[str], owner: OwnerOf, ours: frozenset[int] | None
) -> tuple[dict[str, ResultValue], tuple[Finding, ...]]:
    """Read the kernel's ring buffer; inside a container it is usually closed, and that is no clean bill."""
    try:
        text = _ring_buffer(programs, timeout_s=30)
    except HostNotAble as error:
        notes.append(error.what)
        return {}, ()
    # Those of the step's own cgroup are known by its counters.
    earlier, log = (parse_kernel_log(part).of_the_machine for part in split_at(text, began_s))
    notes += _not_of_this_run(earlier)
    lasting = tuple(x for x in earlier.xids if not _of_a_program(x))
    foreign = [x for x in log.xids if ours is not None and _of_another(x, ours)]
    notes += dict.fromkeys(f"of no process that was seen in this run: {_short(xid)}" for xid in foreign)
    own = (x for x in log.xids if x not in foreign)
    whole = replace(log, xids=(*lasting, *own), driver_errors=(*earlier.driver_errors, *log.driver_errors))
    return {"xids": [xid.code for xid in (*earlier.xids, *log.xids)]}, kernel_log_findings(
        whole, owner, numbers_known=ours is not None, others=bool(foreign)
    )


def _ring_buffer(programs: ProgramRunner, timeout_s: float) -> str:
    """Return the kernel's log; raises HostNotAble, with the reason, where it cannot be read."""
    program = programs.which("dmesg")
    if program is None:
        raise HostNotAble("dmesg was not found: Xid lines were not looked for")
    done = programs.run([program], timeout_s=timeout_s)
    if done.code != 0:
        raise HostNotAble("the kernel log may not be read here: look for Xid lines on the host (dmesg | grep Xid)")
    return done.stdout


@builtin(
    name="own-xids",
    version=1,
    role="step",
    does="Reads the kernel log's Xid lines of the run's own processes, where it may be read and numbers them alike.",
    by_hand=("dmesg | grep Xid",),
    results={"xids": "list"},
)
def own_xids(context: BuiltinContext) -> BuiltinResult:
    """Look for what only the driver reports: a store that fails as its program ends leaves no core and no error."""
    ours = _pids_of_run(context.run_directory)
    if not ours:
        return BuiltinResult()
    try:
        text = _ring_buffer(context.programs, timeout_s=10)
    except HostNotAble:
        return BuiltinResult()
    log = parse_kernel_log(split_at(text, context.began_s)[1])
    own = tuple(xid for xid in log.xids if xid.pid in ours)
    maps = maps_of_run(context.run_directory)
    found = kernel_log_findings(KernelLog(xids=own), lambda xid: owner_of_fault(xid, maps))
    return BuiltinResult(results={"xids": [xid.code for xid in own]} if own else {}, findings=found)


def _not_of_this_run(earlier: KernelLog) -> Iterator[str]:
    """Tell what programs did before this run began: it was not its workload, and so is no finding."""
    for pid, name in earlier.killed_for_memory[-_SHOWN:]:
        yield f"before this run the kernel OOM-killed {name} ({pid})"
    for xid in [x for x in earlier.xids if _of_a_program(x)][-_SHOWN:]:
        yield f"before this run: {_short(xid)}"


def _short(xid: Xid) -> str:
    who = f" of {xid.process} ({xid.pid})" if xid.pid else ""
    return f"Xid {xid.code}{who} on {xid.bus}, {xid.meaning.name}"


def _pids_of_run(folder: Path) -> frozenset[int] | None:
    """Return the processes of a run by the numbers that the driver prints; None where theirs are others, or unknown."""
    locks = list(folder.glob(f"steps/*/*/*/{LOCK}"))
    if not locks or not all(_numbered_as_the_kernel_does(lock) for lock in locks):
        return None
    return frozenset(pid for lock in locks for pid, _ in listed(str(lock.parent)))


def _numbered_as_the_kernel_does(lock: Path) -> bool:
    try:
        said = [json.loads(line) for line in lock.read_text("utf-8", "replace").splitlines()]
    except (OSError, ValueError, RecursionError):
        return False
    return any(isinstance(one, dict) and one.get("pid_namespace") == _INITIAL_NAMESPACE for one in said)


def _of_another(xid: Xid, ours: frozenset[int]) -> bool:
    """Whether an Xid is about a program that the run did not start; MPS's server has the channels of its clients."""
    served = (xid.process or "").startswith("nvidia-cuda-mps")
    return _of_a_program(xid) and xid.pid is not None and xid.pid not in ours and not served


def _of_a_program(xid: Xid) -> bool:
    """Whether an Xid is about a program that has ended since. One about the GPU itself lasts."""
    return xid.meaning.severity in {"software", "follow-up"}


def _leftovers(context: BuiltinContext) -> Iterator[Finding]:
    """Tell variables that are set already and that steps mean to set themselves."""
    for name in _TELLING:
        if context.environment.get(name):
            yield Finding(
                rule="host-variable-left-over",
                level=Level.WARNING,
                message=f"{name}={context.environment[name]} is set already: the unchanged workload is not unchanged",
                how_known=HowKnown.HOST_CHECK,
                confidence=0.9,
                next_step=NextStep("unset it and begin again", f"unset {name}"),
            )


# `builtin/locate@v1`: the faulting instruction of a core, looked up in the libraries on disk.
#
# A core of a program without line info names kernel and offset only. Where the same code lies on disk with line info,
# as after a rebuild with -lineinfo, which does not change a single instruction, its line table answers.


@builtin(
    name="locate",
    version=1,
    role="step",
    does="Looks a PC up in the line tables of the binaries on disk, next to nvdisasm's listing.",
    parameters={"kernel": "string", "cores": "list", "binaries": "list"},
    by_hand=(
        "cuobjdump -lelf LIBRARY && cuobjdump -xelf NAME.cubin LIBRARY",
        "nvdisasm -ndf -c -gi NAME.cubin        # look for the kernel and the offset in it",
    ),
    results={"source": "string", "chain": "list", "agrees": "bool", "file": "string"},
)
def locate(context: BuiltinContext) -> BuiltinResult:
    """Ask the line packs, then the binaries given, else the workload's own, for the same code with lines."""
    packed = _by_packs(context)
    if packed:
        return packed
    wanted = _wanted(context)
    if wanted is None:
        return BuiltinResult(notes=("no core with a fault inside a known kernel, or inside the one named, was given",))
    targets = places_to_look(context)
    notes: list[str] = []
    found = next((h for h in holders(context, wanted, targets, notes) if _answers(h, notes)), None)
    if found is None:
        where = ", ".join(targets) or "no binary"
        return BuiltinResult(
            notes=(*notes, f"looked through {where}: none holds {short_name(demangle(wanted.kernel))} with lines")
        )
    chain = found.location.chain
    own = own_frame(chain) or chain[0]
    results: dict[str, ResultValue] = {
        "source": str(own),
        "chain": [str(frame) for frame in chain],
        "file": found.file,
    }
    listed = instruction_at(context, found.map, found.location, "located", notes)
    if listed:
        results["agrees"] = agrees(listed, chain)
        notes.append(opinion(listed, chain))
    finding = Finding(
        rule="gpu-core-located-on-disk",
        level=Level.ERROR,
        message=f"the faulting instruction is {place_of(own)} by the line table of {found.file}",
        how_known=HowKnown.GPU_CORE,
        confidence=0.85,
        location=own,
        chain=chain,
        kernel=found.location.kernel.demangled if found.location.kernel else None,
    )
    return BuiltinResult(results=results, findings=(finding,), notes=tuple(notes))


def _by_packs(context: BuiltinContext) -> BuiltinResult | None:
    """Return the lines of the first fault whose code has them in a line pack, of the kernel that was named."""
    named = context.parameters.get("kernel")
    for path in context.paths("cores") if context.packed_lines() else ():
        try:
            with context.cores.open(str(path)) as core:
                faults = decode_core(core.data, lines=context.packed_lines()).faults
        except BAD_INPUT:
            continue  # the look through the binaries notes it
        for fault in faults:
            location = fault.location
            if location is None or location.borrowed is None:
                continue
            if named and named not in {fault.kernel, demangle(fault.kernel or "")}:
                continue
            chain, borrowed = location.chain, location.borrowed
            own = own_frame(chain) or chain[0]
            finding = Finding(
                rule="gpu-core-located-in-pack",
                level=Level.ERROR,
                message=f"the faulting instruction is {place_of(own)} by the {borrowed.how_known} "
                f"({borrowed.build}){f'; {borrowed.headers}' if borrowed.headers else ''}",
                how_known=HowKnown.GPU_CORE,
                confidence=0.9,
                location=own,
                chain=chain,
                kernel=demangle(fault.kernel) if fault.kernel else None,
            )
            results: dict[str, ResultValue] = {
                "source": str(own), "chain": [str(frame) for frame in chain], "file": borrowed.pack,
            }  # fmt: skip
            return BuiltinResult(results=results, findings=(finding,))
    return None


def _answers(holder: Holder, notes: list[str]) -> bool:
    """Whether a file's line table can answer for the fault; why it cannot is noted."""
    kernel = holder.location.kernel
    name = short_name(kernel.demangled) if kernel else "the kernel"
    if not holder.same:
        notes.append(f"{holder.file}: {name} is another build of it")
    elif not holder.location.chain:
        notes.append(f"{holder.file}: {name} has no line info here either")
    return holder.same and bool(holder.location.chain)


def _wanted(context: BuiltinContext) -> FaultingCode | None:
    """Return the code at the first fault, of the kernel that was named where one was."""
    named = context.parameters.get("kernel")
    for path in context.paths("cores"):
        try:
            with context.cores.open(str(path)) as core:
                read = decode_core(core.data)
                codes = [code for fault in read.faults if (code := faulting_code(fault))]
        except BAD_INPUT:
            continue
        wanted = next((code for code in codes if not named or named in {code.kernel, demangle(code.kernel)}), None)
        if wanted:
            return wanted
    return None


# `builtin/shared-memory@v1`: the shared memory that a workload's processes can use, before any of them starts.
#
# A container gets 64 MiB of /dev/shm unless it is asked for more. vLLM's workers and NCCL pass data through it, and
# fail far from the cause when it is full: a bus error, or NCCL's `unhandled system error`.


_LEAST = 1 << 30  # bytes; NCCL takes some 10 MiB a channel and peer, vLLM a queue of 160 MiB a group of workers


@builtin(
    name="shared-memory",
    version=1,
    role="step",
    does="Measures /dev/shm where the workload will run, and warns where it is too small for several processes.",
    parameters={"least": "int"},
    by_hand=("df -h /dev/shm",),
    results={"size": "int", "free": "int", "enough": "bool"},
)
def shared_memory(context: BuiltinContext) -> BuiltinResult:
    """Ask `df` in the place of the workload; the parameter `least` is the number of bytes that must be free."""
    least = context.parameters.get("least")
    needed = least if isinstance(least, int) else _LEAST
    program = context.programs.which("df")
    if program is None:
        return BuiltinResult(notes=("df was not found: /dev/shm was not measured",))
    try:
        done = context.programs.run([program, "-P", "-k", "/dev/shm"], timeout_s=20)
    except HostNotAble as error:
        return BuiltinResult(notes=(error.what,))
    sizes = done.stdout.splitlines()[-1].split()[1:4] if done.code == 0 and done.stdout.strip() else []
    if not (len(sizes) == 3 and all(size.isdecimal() for size in sizes)):
        return BuiltinResult(notes=("/dev/shm does not exist, or df cannot measure it",))
    size, free = int(sizes[0]) << 10, int(sizes[2]) << 10
    text = f"/dev/shm has {size_text(free)} free of {size_text(size)}"
    if free >= needed:
        return BuiltinResult(results={"size": size, "free": free, "enough": True}, notes=(text,))
    finding = Finding(
        rule="shared-memory-small",
        level=Level.WARNING,
        message=f"{text}: workers and NCCL fail when it is full",
        how_known=HowKnown.HOST_CHECK,
        confidence=0.7,
        next_step=NextStep("give the container more: --shm-size 16g, or --ipc host"),
    )
    return BuiltinResult(results={"size": size, "free": free, "enough": False}, findings=(finding,))


# `builtin/report@v1`: write the report of all steps so far into the run directory.


@builtin(
    name="report",
    version=1,
    role="step",
    does="Writes the report of all steps so far.",
    parameters={"formats": "list"},
    results={"files": "list"},
)
def write_report(context: BuiltinContext) -> BuiltinResult:
    """Write the formats that were named, all of them when none is; note each unknown name."""
    asked = context.parameters.get("formats")
    names = [str(name) for name in asked] if isinstance(asked, list) and asked else list(REPORT_FILES)
    files = context.write_report([name for name in names if name in REPORT_FILES])
    known = ", ".join(REPORT_FILES)
    notes = tuple(f"{name} is not a format of a report; {known} are" for name in names if name not in REPORT_FILES)
    return BuiltinResult(results={"files": list(files)}, notes=notes)
