"""`builtin/gpu-health@v1`: driver, GPUs, ECC, MIG, Xid lines, ptrace and free disk, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.host.gpu import cuda_of_driver, read_gpus
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.system.kernel_log import KernelLog, Xid, kernel_log_findings, parse_kernel_log, split_at
from vdbg_env.evidence.tools.nvidia_smi import Gpu
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_EVENTS_SINCE = 615  # the driver branch that has GPU operational events; never met by us
_SHOWN = 3  # the last of what went before
# Variables that change a crash's behaviour; left over from an earlier session they make every step a lie.
_TELLING = ("CUDA_LAUNCH_BLOCKING", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_DEVICE_WAITS_ON_EXCEPTION",
            "CUDA_COREDUMP_FILE", "PYTORCH_NO_CUDA_MEMORY_CACHING", "VLLM_TRACE_FUNCTION")  # fmt: skip

CONTRACT = BuiltinContract(
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


def work(context: BuiltinContext) -> BuiltinResult:
    """Look at the host; what cannot be looked at is left out of the results, with a note that says why."""
    results: dict[str, ResultValue] = {"free_disk": context.files.free_space()}
    notes: list[str] = []
    findings: list[Finding] = []
    results |= _gpus(context.programs, notes)
    xids, from_log = _kernel_log(context.programs, context.began_s, notes)
    results |= xids
    findings += from_log
    ptrace = context.host.may_trace()
    results |= {} if ptrace is None else {"ptrace": ptrace}
    findings += _leftovers(context)
    if context.parameters.get("events"):
        notes += _events(context, str(results.get("driver", "")))
    return BuiltinResult(results=results, findings=tuple(findings), notes=tuple(notes))


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
    """Keep what the driver says of operational events, where it has them; a preview whose text is kept, not read."""
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
    programs: ProgramRunner, began_s: float, notes: list[str]
) -> tuple[dict[str, ResultValue], tuple[Finding, ...]]:
    """Read the kernel's ring buffer; inside a container it is usually closed, and that is no clean bill."""
    program = programs.which("dmesg")
    if program is None:
        notes.append("dmesg was not found: Xid lines were not looked for")
        return {}, ()
    try:
        done = programs.run([program], timeout_s=30)
    except HostNotAble as error:
        notes.append(error.what)
        return {}, ()
    if done.code != 0:
        notes.append("the kernel log may not be read here: look for Xid lines on the host (dmesg | grep Xid)")
        return {}, ()
    # Those of the step's own cgroup are known by its counters.
    earlier, log = (parse_kernel_log(text).of_the_machine for text in split_at(done.stdout, began_s))
    notes += _not_of_this_run(earlier)
    lasting = tuple(x for x in earlier.xids if not _of_a_program(x))
    counted = replace(log, xids=(*lasting, *log.xids), driver_errors=(*earlier.driver_errors, *log.driver_errors))
    return {"xids": [xid.code for xid in (*earlier.xids, *log.xids)]}, kernel_log_findings(counted)


def _not_of_this_run(earlier: KernelLog) -> Iterator[str]:
    """Tell what programs did before this run began: it was not its workload, and so is no finding."""
    for pid, name in earlier.killed_for_memory[-_SHOWN:]:
        yield f"before this run the kernel ended {name} ({pid}) for lack of memory"
    for xid in [x for x in earlier.xids if _of_a_program(x)][-_SHOWN:]:
        who = f" of {xid.process} ({xid.pid})" if xid.pid else ""
        yield f"before this run: Xid {xid.code}{who} on {xid.bus}, {xid.meaning.name}"


def _of_a_program(xid: Xid) -> bool:
    """Whether an Xid tells of a program that has ended since; what it tells of the GPU itself lasts."""
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
                next_step=f"unset it and begin again: unset {name}",
            )
