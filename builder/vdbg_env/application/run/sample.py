"""The bundled sample crash: what a runbook runs when it is given no workload at all.

Where steps run with a GPU and nvcc, the program itself is built and run. Elsewhere a recording is replayed, which says
where it was made. Either way the command proves that this machine, or this image, can lead from a crash to its line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vdbg_env.application.host.gpu import read_gpus
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.resources import data_dir
from vdbg_env.image.settings import Mount

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = "inlined_templates"
_BUILD_TIME_S = 300.0
_SOURCES = data_dir("images") / "samples"


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """The request to continue with, and one sentence that says what is run, None when the user named a workload."""

    request: RunbookRequest
    notice: str | None = None


def names_workload(request: RunbookRequest) -> bool:
    """Whether a request says itself what is run, without the project's settings."""
    return bool(request.argv or request.resume or request.replay or "argv" in request.inputs)


def with_sample_mounted(request: RunbookRequest, folder: Path) -> RunbookRequest:
    """Return the request with its containers given what building and running the sample in `folder` needs."""
    if request.container is None:
        return request
    place, source = str(folder), str(_SOURCES)
    mounts = (Mount(source=place, target=place), Mount(source=source, target=source, read_only=True))
    container = replace(request.container, mounts=(*request.container.mounts, *mounts))
    return replace(request, container=container)


def with_sample(request: RunbookRequest, recording: Path, programs: ProgramRunner, folder: Path) -> Bundled:
    """Return a request for the bundled sample, or for its `recording` where it cannot be built.

    `folder` is where the program is built, `programs` are those of where steps run. Raises HostNotAble when nvcc fails.
    """
    where = "in the image" if request.container else "here"
    nvcc = programs.which("nvcc")
    gpu = _has_gpu(programs)
    if nvcc and gpu:
        program = _build(programs, nvcc, folder)
        notice = f"no workload is given: the bundled sample {SAMPLE} was built {where} and crashes on this GPU"
        return Bundled(request=replace(request, argv=(program,)), notice=notice)
    why = f"there is no nvcc {where} to build it" if gpu else f"no GPU responds {where}"
    notice = f"no workload is given, and {why}: this is the replay of the bundled sample {SAMPLE}"
    replayed = replace(request, argv=(f"./{SAMPLE}",), replay=recording, batch=True, container=None)
    return Bundled(request=replayed, notice=notice)


def _has_gpu(programs: ProgramRunner) -> bool:
    try:
        return bool(read_gpus(programs, timeout_s=30).gpus)
    except HostNotAble:
        return False


def _build(programs: ProgramRunner, nvcc: str, folder: Path) -> str:
    source = _SOURCES / f"{SAMPLE}.cu"
    program = str(folder / SAMPLE)
    done = programs.run(
        [nvcc, "-std=c++17", "-lineinfo", "-arch=native", "-o", program, str(source)], timeout_s=_BUILD_TIME_S
    )
    if done.code != 0:
        raise HostNotAble(
            f"the bundled sample could not be built: nvcc exited with {done.code}",
            cause="nvcc does not support the host compiler",
            next_step=f"vdbg-env runbook NAME -- COMMAND ..., or try: nvcc {source}",
            details=tuple(done.stderr.splitlines()[-3:]),
        )
    return program
