"""What a runbook runs when it is given no workload at all: the bundled sample crash.

On a machine with a GPU and nvcc that is the program itself, built and run here. Elsewhere it is the replay of a
recording, which says of itself where it was made. Either way the command proves that this machine, or this image, is
able to go from a crash to its line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env.application.ports import ProgramRunner
from vdbg_env.application.runbook_request import PROJECT_FILE, RunbookRequest
from vdbg_env.errors import HostNotAble
from vdbg_env.resources import data_dir

SAMPLE = "inlined_templates"
_BUILD_TIME_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """The request to go on with, and one sentence that says what is run, None when the user named a workload."""

    request: RunbookRequest
    said: str | None = None


def with_bundled_sample(request: RunbookRequest, programs: ProgramRunner, folder: Path) -> Bundled:
    """Return the request as it is when it names a workload, else one for the bundled sample.

    `folder` is where the program is built. Raises HostNotAble when it cannot be.
    """
    named = request.argv or request.resume or request.replay or request.container or "argv" in request.inputs
    if named or Path(PROJECT_FILE).exists():
        return Bundled(request=request)
    recording = data_dir("runbooks") / "recordings" / request.runbook
    if not recording.is_dir():
        return Bundled(request=request)
    nvcc = programs.which("nvcc")
    if nvcc and _has_gpu(programs):
        program = _built(programs, nvcc, folder)
        said = f"no workload is given: the bundled sample {SAMPLE} was built here and crashes on this GPU"
        return Bundled(request=replace(request, argv=(str(program),)), said=said)
    why = "no nvcc is at hand to build it" if _has_gpu(programs) else "no GPU answers here"
    said = f"no workload is given, and {why}: this is the replay of the bundled sample {SAMPLE}"
    return Bundled(request=replace(request, argv=(f"./{SAMPLE}",), replay=recording, batch=True), said=said)


def _has_gpu(programs: ProgramRunner) -> bool:
    program = programs.which("nvidia-smi")
    if program is None:
        return False
    try:
        done = programs.run([program, "-L"], timeout_s=30)
    except HostNotAble:
        return False
    return done.code == 0 and "GPU 0" in done.stdout


def _built(programs: ProgramRunner, nvcc: str, folder: Path) -> Path:
    source = data_dir("images") / "samples" / f"{SAMPLE}.cu"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / SAMPLE
    done = programs.run(
        [nvcc, "-std=c++17", "-lineinfo", "-arch=native", "-o", str(program), str(source)], timeout_s=_BUILD_TIME_S
    )
    if done.code != 0:
        raise HostNotAble(
            f"the bundled sample could not be built: nvcc ended with {done.code}",
            cause="nvcc needs a host compiler that it knows",
            next_step=f"vdbg-env runbook NAME -- COMMAND ..., or try: nvcc {source}",
            details=tuple(done.stderr.splitlines()[-3:]),
        )
    return program
