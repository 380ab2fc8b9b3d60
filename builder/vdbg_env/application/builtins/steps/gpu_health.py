"""`builtin/gpu-health@v1`: driver, GPUs, ECC, MIG, Xid lines, ptrace and free disk, before anything is started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.ports import ProgramRunner
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.system.kernel_log import KernelLog, Xid, kernel_log_findings, parse_kernel_log, split_at
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_QUERY = (
    "name,driver_version,ecc.errors.uncorrected.volatile.total,mig.mode.current,compute_cap,memory.used,memory.total"
)
_ASKED = 4  # columns that every nvidia-smi tells; compute_cap came later
_CUDA = re.compile(r"CUDA(?: UMD)? Version\s*:\s*([\d.]+)")
_SHOWN = 3  # the last of what went before
# Variables that change a crash's behaviour; left over from an earlier session they make every step a lie.
_TELLING = ("CUDA_LAUNCH_BLOCKING", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_DEVICE_WAITS_ON_EXCEPTION",
            "CUDA_COREDUMP_FILE", "PYTORCH_NO_CUDA_MEMORY_CACHING", "VLLM_TRACE_FUNCTION")  # fmt: skip

CONTRACT = BuiltinContract(
    name="gpu-health",
    version=1,
    role="step",
    does="Reads the driver, the GPUs, ECC, MIG and the kernel log's Xid lines before anything is started.",
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
    return BuiltinResult(results=results, findings=tuple(findings), notes=tuple(notes))


def _gpus(programs: ProgramRunner, notes: list[str]) -> dict[str, ResultValue]:
    program = programs.which("nvidia-smi")
    if program is None:
        notes.append("nvidia-smi is not at hand: no NVIDIA driver, or it is not mounted into this container")
        return {"gpus": 0}
    try:
        query = programs.run([program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], timeout_s=60)
        table = programs.run([program], timeout_s=60)
    except HostNotAble as error:
        notes.append(f"{error.what}: a driver that does not answer is often a GPU that is gone (Xid 79)")
        return {}
    if query.code != 0:
        notes.append(f"nvidia-smi: {(query.stdout + query.stderr).strip().splitlines()[-1:]}")
        return {"gpus": 0}
    rows = [[cell.strip() for cell in line.split(",")] for line in query.stdout.splitlines() if line.strip()]
    whole = [row for row in rows if len(row) >= _ASKED]
    results: dict[str, ResultValue] = {
        "gpus": len(rows),
        "ecc_errors": sum(int(row[2]) for row in whole if row[2].isdecimal()),
        "mig": any(row[3].lower() == "enabled" for row in whole),
    }
    notes += [f"GPU {number}: {_told(row)}" for number, row in enumerate(whole)]
    results |= _memory(whole)
    results |= {"driver": whole[0][1]} if whole else {}
    cuda = _CUDA.search(table.stdout)
    return results | ({"cuda": cuda[1]} if cuda else {})


def _memory(rows: list[list[str]]) -> dict[str, ResultValue]:
    """Return the bytes in use on the fullest GPU, and the bytes of the smallest, where nvidia-smi tells them."""
    sizes = [(int(row[5]) << 20, int(row[6]) << 20) for row in rows if all(x.isdecimal() for x in row[5:7]) and row[6:]]
    if not sizes:
        return {}
    return {"memory_used": max(used for used, _ in sizes), "memory_total": min(total for _, total in sizes)}


def _told(row: list[str]) -> str:
    """Say what a GPU is: its name, its architecture, and how much of its memory is in use already."""
    if not row[6:] or not all(cell.isdecimal() for cell in row[5:7]):
        return row[0]
    used, total = (int(cell) / 1024 for cell in row[5:7])
    return f"{row[0]} (sm_{row[4].replace('.', '')}), {used:.1f} of {total:.1f} GiB in use"


def _kernel_log(
    programs: ProgramRunner, began_s: float, notes: list[str]
) -> tuple[dict[str, ResultValue], tuple[Finding, ...]]:
    """Read the kernel's ring buffer; inside a container it is usually closed, and that is no clean bill."""
    program = programs.which("dmesg")
    if program is None:
        notes.append("dmesg is not at hand: Xid lines were not looked for")
        return {}, ()
    try:
        done = programs.run([program], timeout_s=30)
    except HostNotAble as error:
        notes.append(error.what)
        return {}, ()
    if done.code != 0:
        notes.append("the kernel log may not be read here: look for Xid lines on the host (dmesg | grep Xid)")
        return {}, ()
    earlier, log = (parse_kernel_log(text) for text in split_at(done.stdout, began_s))
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
