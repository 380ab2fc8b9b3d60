"""The GPUs of this machine, asked of nvidia-smi."""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.evidence import tools
from vdbg_env.evidence.tools import Gpu
from vdbg_env.image.profile import HostGpu


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """The GPUs, or what nvidia-smi printed in place of them; `is_installed` is False where there is no nvidia-smi."""

    gpus: tuple[Gpu, ...] = ()
    is_installed: bool = True
    problem: str | None = None


def read_gpus(programs: ProgramRunner, *, timeout_s: float = 20) -> GpuReading:
    """Ask for the GPUs; raises HostNotAble when nvidia-smi does not respond."""
    program = programs.which(tools.NVIDIA_SMI)
    if program is None:
        return GpuReading(is_installed=False)
    for basic in (False, True):
        done = programs.run([program, *tools.query(basic=basic)], timeout_s=timeout_s)
        gpus = tools.parse_gpus(done.stdout) if done.code == 0 else ()
        if gpus or "not a valid field" not in done.stdout + done.stderr:
            break
    said = " ".join((done.stdout + done.stderr).split())[:200]
    return GpuReading(gpus=gpus, problem=None if gpus else said or "nvidia-smi prints nothing")


def cuda_of_driver(programs: ProgramRunner, *, timeout_s: float = 20) -> str | None:
    """Return the newest CUDA version of the driver, None where it is unknown; raises HostNotAble as `read_gpus`."""
    program = programs.which(tools.NVIDIA_SMI)
    return tools.cuda_version(programs.run([program], timeout_s=timeout_s).stdout) if program else None


def first_gpu(programs: ProgramRunner) -> HostGpu | None:
    """Return the GPU that a build is for, None where there is none or its driver does not respond."""
    try:
        gpus = read_gpus(programs).gpus
    except HostNotAble:  # doctor reports a driver that hangs; the build needs no GPU
        return None
    arch = gpus[0].compute_capability if gpus else None
    return HostGpu(driver=gpus[0].driver, arch=arch) if arch else None
