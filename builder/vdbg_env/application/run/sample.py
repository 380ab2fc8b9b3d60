"""What a runbook runs when it is given no workload at all: the bundled sample crash.

Where steps run with a GPU and nvcc at hand, that is the program itself, built and run there. Elsewhere it is the replay
of a recording, which says of itself where it was made. Either way the command proves that this machine, or this image,
is able to go from a crash to its line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env.application.ports import ProgramRunner
from vdbg_env.application.run.request import PROJECT_FILE, RunbookRequest
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.resources import data_dir
from vdbg_env.image.container.mount import Mount

SAMPLE = "inlined_templates"
_BUILD_TIME_S = 300.0
_SOURCES = data_dir("images") / "samples"


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """The request to go on with, and one sentence that says what is run, None when the user named a workload."""

    request: RunbookRequest
    said: str | None = None


def with_sample_in_sight(request: RunbookRequest, folder: Path) -> RunbookRequest:
    """Return the request with its containers given what building and running the sample in them needs, if it is wanted.

    `folder` is where the program is built; it is made, because what is not there cannot be mounted.
    """
    if request.container is None or _recording(request) is None:
        return request
    folder.mkdir(parents=True, exist_ok=True)
    place, source = str(folder.resolve()), str(_SOURCES)
    mounts = (Mount(source=place, target=place), Mount(source=source, target=source, read_only=True))
    container = replace(request.container, mounts=(*request.container.mounts, *mounts))
    return replace(request, container=container)


def with_bundled_sample(request: RunbookRequest, programs: ProgramRunner, folder: Path) -> Bundled:
    """Return the request as it is when it names a workload, else one for the bundled sample.

    `folder` is where the program is built, `programs` are those of where steps run. Raises HostNotAble when it cannot
    be built.
    """
    recording = _recording(request)
    if recording is None:
        return Bundled(request=request)
    there = "in the image" if request.container else "here"
    nvcc = programs.which("nvcc")
    if nvcc and _has_gpu(programs):
        program = _built(programs, nvcc, folder.resolve())
        said = f"no workload is given: the bundled sample {SAMPLE} was built {there} and crashes on this GPU"
        return Bundled(request=replace(request, argv=(str(program),)), said=said)
    why = f"no nvcc is at hand {there} to build it" if _has_gpu(programs) else f"no GPU answers {there}"
    said = f"no workload is given, and {why}: this is the replay of the bundled sample {SAMPLE}"
    replayed = replace(request, argv=(f"./{SAMPLE}",), replay=recording, batch=True, container=None)
    return Bundled(request=replayed, said=said)


def _recording(request: RunbookRequest) -> Path | None:
    """Return the recording of the sample for a request that names no workload; None for any other request."""
    named = request.argv or request.resume or request.replay or "argv" in request.inputs or Path(PROJECT_FILE).exists()
    recording = data_dir("runbooks") / "recordings" / request.runbook
    return None if named or not recording.is_dir() else recording


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
    source = _SOURCES / f"{SAMPLE}.cu"
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
