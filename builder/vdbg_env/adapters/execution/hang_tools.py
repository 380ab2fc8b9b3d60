"""What is run to look at a workload that hangs, and to see whether its GPUs are at work."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from vdbg_env.adapters.execution.job_builder import PACKAGES
from vdbg_env.runbook.model import HangAction
from vdbg_env.supervisor.job import HangCommand


class FindsPrograms(Protocol):
    """Says where a program is, in the place where steps run."""

    def which(self, program: str) -> str | None:
        """Return what starts the program, or None when it was not found."""
        ...


_DUMP_LIMIT_S = 600.0
_RAS_LIMIT_S = 30.0
PROBE_PERIOD_S = 2


def hang_tools(
    programs: FindsPrograms, *, python: str = sys.executable, packages: Path = PACKAGES
) -> dict[HangAction, HangCommand]:
    """Return the commands for the hang actions that can be done where steps run; `programs` are those available there.

    The core-dump pipes are fired by a separate process, because a supervisor outlives the engine that could.
    """
    place = f"import sys; sys.path.insert(0, {str(packages)!r})"
    fire = f"{place}; from vdbg_env.adapters.host.fire_pipes import main; sys.exit(main(int(sys.argv[1])))"
    ras = f"{place}; from vdbg_env.adapters.host.nccl_ras import main; sys.exit(main())"
    tools: dict[HangAction, HangCommand] = {
        "nccl-ras": HangCommand(name="nccl-ras", argv=(python, "-I", "-S", "-c", ras), timeout_s=_RAS_LIMIT_S),
        "gpu-coredump": HangCommand(
            name="gpu-coredump", argv=(python, "-I", "-S", "-c", fire, "{pid}"), timeout_s=_DUMP_LIMIT_S
        ),
    }
    spy = programs.which("py-spy")
    if spy:
        tools["py-spy"] = HangCommand(
            name="py-spy", argv=(spy, "dump", "--pid", "{pid}"), each="python", stopped=("--nonblocking",)
        )
    return tools


def gpu_probe(programs: FindsPrograms, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that prints the load of each GPU the workload may use, again and again; none without one."""
    program = programs.which("nvidia-smi")
    if program is None:
        return ()
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    only = (f"--id={visible}",) if visible and "-1" not in visible else ()
    query = "--query-gpu=index,utilization.gpu"
    return (program, *only, query, "--format=csv,noheader,nounits", f"--loop={PROBE_PERIOD_S}")
