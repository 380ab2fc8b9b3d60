"""What is known of the place where a run's steps will run, before the first one starts."""

from __future__ import annotations

from collections.abc import Mapping

from gpucore.lineinfo import LineinfoReport, Verdict, verify
from vdbg_env.application.host.gpu import read_gpus
from vdbg_env.application.knowledge.installed_packages import (
    installed_versions,
    toolkit_release,
    workload_libraries,
    workload_python,
)
from vdbg_env.application.ports.places import StepPlace
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.application.run.target import with_image_facts
from vdbg_env.common.errors import BAD_INPUT, HostNotAble
from vdbg_env.crash.files import BinarySource
from vdbg_env.runbook.catalogue import TOOLS
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.state import Facts

# The CUDA runtime that PyTorch's wheels bring, by the names it has had, the newest first.
_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")


def gather_facts(
    request: RunbookRequest, place: StepPlace, runbook: Runbook, argv: tuple[str, ...], *, interactive: bool
) -> Facts:
    """Return what is known of a place and of what the workload `argv` will find there.

    Of a replay only this machine is looked at: the workload ran elsewhere. Whether its libraries carry lines is looked
    up where the runbook requires it, for that reads all of them; of an image its label tells. For a step that is to be
    started at once nothing is looked up.
    """
    if request.at_once:
        return Facts(data_dir=place.data_dir, python_path=place.environment.get("PYTHONPATH", ""))
    programs, here = place.programs, place.image is None
    gpus, driver = _gpus(programs)
    versions = {} if request.replay else _versions(programs, argv, here=here)
    wants_lines = runbook.requires.lineinfo and here and not request.replay
    facts = Facts(
        on="replay" if request.replay else place.on,
        nodes=place.nodes,
        tools=frozenset(tool for tool in TOOLS if programs.which(tool)),
        gpus=gpus,
        driver=driver,
        cuda=_cuda(programs, versions),
        vllm=versions.get("vllm"),
        torch=versions.get("torch"),
        lineinfo=_lines(programs, place.binaries, argv) if wants_lines else None,
        interactive=interactive,
        nameless=request.pseudonyms,
        python_path=place.environment.get("PYTHONPATH", ""),
        data_dir=place.data_dir,
    )
    return with_image_facts(facts, place.image)


def _versions(programs: ProgramRunner, argv: tuple[str, ...], *, here: bool) -> dict[str, str]:
    """Return what the workload's Python has installed; nothing where it cannot be asked, which its steps will tell."""
    python = workload_python(programs, argv, here=here)
    try:
        return installed_versions(programs, python, ("vllm", "torch", *_RUNTIMES)) if python else {}
    except HostNotAble:
        return {}


def _cuda(programs: ProgramRunner, versions: Mapping[str, str]) -> str | None:
    """Return the release of CUDA the workload runs with: of the runtime its Python brings, else of the toolkit here."""
    brought = next((versions[name] for name in _RUNTIMES if name in versions), None)
    if brought:
        return ".".join(brought.split(".")[:2])
    return toolkit_release(programs)


def _lines(programs: ProgramRunner, binaries: BinarySource, argv: tuple[str, ...]) -> bool | None:
    """Return whether all device code of the workload's own libraries carries lines; None where that cannot be told."""
    reports = []
    try:
        for target in workload_libraries(programs, argv):
            with binaries.open(target) as files:
                reports += [verify(file.data, file.name) for file in files]
    except (*BAD_INPUT, HostNotAble):  # a library that cannot be read is one too
        return None
    known = {Verdict.FULL: True, Verdict.PARTIAL: False, Verdict.NONE: False}
    return known.get(LineinfoReport(files=tuple(reports)).verdict)


def _gpus(programs: ProgramRunner) -> tuple[int | None, str | None]:
    """Return the number of GPUs and the driver's version; no nvidia-smi is no GPU, one that fails says nothing."""
    try:
        reading = read_gpus(programs)
    except HostNotAble:
        return None, None
    if not reading.is_installed:
        return 0, None
    return (len(reading.gpus), reading.gpus[0].driver) if reading.gpus else (None, None)
