"""`builtin/shared-memory@v1`: the shared memory that a workload's processes can use, before any of them starts.

A container gets 64 MiB of /dev/shm unless it is asked for more. vLLM's workers and NCCL pass data through it, and fail
far from the cause when it is full: a bus error, or NCCL's `unhandled system error`.
"""

from __future__ import annotations

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.size import size_text
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.runbook.catalogue import BuiltinContract

CONTRACT = BuiltinContract(
    name="shared-memory",
    version=1,
    role="step",
    does="Measures /dev/shm where the workload will run, and warns where it is too small for several processes.",
    parameters={"least": "int"},
    by_hand=("df -h /dev/shm",),
    results={"size": "int", "free": "int", "enough": "bool"},
)

_LEAST = 1 << 30  # bytes; NCCL takes some 10 MiB a channel and peer, vLLM a queue of 160 MiB a group of workers


def work(context: BuiltinContext) -> BuiltinResult:
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
        next_step="give the container more: --shm-size 16g, or --ipc host",
    )
    return BuiltinResult(results={"size": size, "free": free, "enough": False}, findings=(finding,))
