"""Makes the real engines; nothing else imports them, so every test may bring its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.common.resources import data_dir

if TYPE_CHECKING:  # every engine is imported by the function that makes it, so that a command loads its own alone
    from vdbg_env.adapters.execution.replay import RecordingHead
    from vdbg_env.adapters.host.clock import SignalInterrupts
    from vdbg_env.application.ports import (
        BinarySource,
        Clock,
        ContainerRunner,
        CoreFiles,
        CorePipes,
        DumpStore,
        EngineName,
        ImageEngine,
        IsolatedWorker,
        LogSource,
        ProgramRunner,
        ScratchFiles,
        SourceText,
        SourceTrees,
        StepRunner,
    )
    from vdbg_env.application.ports.host_facts import HostInspector
    from vdbg_env.application.run.begin import Begun
    from vdbg_env.application.run.target import ContainerRequest, StepPlace
    from vdbg_env.image.container.run_settings import DumpVolume
    from vdbg_env.image.container.step_container import StepContainer
    from vdbg_env.image.context import BuildContext
    from vdbg_env.image.plan.parallelism import Machine
    from vdbg_env.image.profile.request import HostGpu
    from vdbg_env.record.redaction.redaction import Pseudonyms, Redactor

DISK_FLOOR = 1 << 30  # bytes left free: below, a step is ended while its record can still be written


def binary_source() -> BinarySource:
    """Return the source of binaries: files, folders and wheels, then images."""
    from vdbg_env.adapters.docker.binary_targets import Targets

    return Targets()


def programs() -> ProgramRunner:
    """Return the runner of this machine's helper programs."""
    from vdbg_env.adapters.host.programs import Programs

    return Programs()


def log_source() -> LogSource:
    """Return what finds and reads logs."""
    from vdbg_env.adapters.files.log_files import LogFiles

    return LogFiles()


def core_files() -> CoreFiles:
    """Return the opener of GPU core dumps."""
    from vdbg_env.adapters.files.core_files import CoreFilesOnDisk

    return CoreFilesOnDisk()


def source_text(roots: Sequence[str], mappings: Sequence[tuple[str, str]]) -> SourceText:
    """Return the finder of source lines below `roots`, with path prefixes rewritten by `mappings`."""
    from vdbg_env.adapters.files.source_lines import SourceFiles

    return SourceFiles(roots, mappings)


def source_trees() -> SourceTrees:
    """Return what looks into source trees of this machine."""
    from vdbg_env.adapters.files.source_trees import SourceTreesOnDisk

    return SourceTreesOnDisk(programs())


def core_pipes() -> CorePipes:
    """Return what finds and fires core-dump pipes on this machine."""
    from vdbg_env.adapters.host.dump_pipes import CorePipesOfLinux

    return CorePipesOfLinux()


def clock() -> Clock:
    """Return this machine's clocks."""
    from vdbg_env.adapters.host.clock import SystemClock

    return SystemClock()


def lay_out_context(context: BuildContext, folder: Path) -> None:
    """Write a build context as files below a folder that does not exist yet."""
    from vdbg_env.adapters.files.context_tar import extract

    extract(context, folder)


def image_engine(wanted: EngineName) -> ImageEngine:
    """Return what builds images: the best there is for `auto`, else the engine named."""
    from vdbg_env.adapters.builders.select import choose_engine

    return choose_engine(wanted)


def containers() -> ContainerRunner:
    """Return what starts debug containers; raises HostNotAble when no engine answers."""
    from vdbg_env.adapters.docker.client import connect
    from vdbg_env.adapters.docker.containers import DockerContainers

    return DockerContainers(connect())


def dump_store(place: DumpVolume) -> DumpStore:
    """Return the dumps of a folder, which needs no engine, or of a named volume."""
    from vdbg_env.adapters.docker.client import connect
    from vdbg_env.adapters.docker.dump_volumes import FolderDumps, open_dumps

    if place.kind == "bind":
        return FolderDumps(Path(place.source))
    return open_dumps(connect(), containers(), place.source)


def machine() -> Machine:
    """Return what a build may use of this machine: the cores it is allowed, the memory that is free."""
    import os

    import psutil

    from vdbg_env.image.plan.parallelism import Machine

    return Machine(cores=len(os.sched_getaffinity(0)), free_memory=psutil.virtual_memory().available)


def gpu() -> HostGpu | None:
    """Return this machine's first GPU, None where there is none."""
    from vdbg_env.common.errors import HostNotAble
    from vdbg_env.image.profile.request import HostGpu

    runner = programs()
    if runner.which("nvidia-smi") is None:
        return None
    try:
        ran = runner.run(
            ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"], timeout_s=20
        )
    except HostNotAble:  # a driver that hangs is doctor's business; the build needs no GPU
        return None
    first = re.match(r"([0-9.]+), ([0-9]+\.[0-9])$", ran.stdout, re.MULTILINE) if ran.code == 0 else None
    return HostGpu(driver=first[1], arch=first[2]) if first else None


def isolated_worker() -> IsolatedWorker:
    """Return what does built-in steps in a process that can be ended."""
    from vdbg_env.adapters.execution.forked_worker import ForkedWorker

    return ForkedWorker()


def interrupts() -> SignalInterrupts:
    """Return what takes note of Ctrl-C and SIGTERM while it is entered."""
    from vdbg_env.adapters.host.clock import SignalInterrupts

    return SignalInterrupts()


def replay(folder: Path) -> StepRunner:
    """Return what plays a recording in place of running steps."""
    from vdbg_env.adapters.execution.replay import Replay

    return Replay(folder.absolute())


def with_stand_ins(runner: StepRunner, redactor: Redactor) -> StepRunner:
    """Return a runner whose text artifacts have stand-ins for hosts and addresses."""
    from vdbg_env.adapters.execution.pseudonymized import PseudonymousSteps

    return PseudonymousSteps(runner, redactor)


def local_place(environment: Mapping[str, str]) -> StepPlace:
    """Return this machine as the place where steps are started."""
    from vdbg_env.adapters.execution.hang_tools import gpu_probe, hang_tools
    from vdbg_env.adapters.execution.job_builder import StepSettings
    from vdbg_env.adapters.execution.local import LocalProcesses
    from vdbg_env.application.run.target import StepPlace

    here = programs()

    def runner(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepRunner:
        return LocalProcesses(
            StepSettings(
                env=environment,
                cwd=Path.cwd(),
                mark=str(run),
                hang_tools=hang_tools(here),
                gpu_probe=gpu_probe(here, environment),
                disk_floor=DISK_FLOOR,
                sensitive=sensitive,
                pseudonyms=names,
            )
        )

    return StepPlace(
        programs=here,
        reading=lambda _: here,
        binaries=binary_source(),
        environment=environment,
        data_dir=str(data_dir("runbooks")),
        sources=_sources_here(),
        runner=runner,
        close=lambda: None,
    )


def _sources_here() -> SourceText:
    return source_text((str(Path.cwd()), str(data_dir("images") / "samples")), ())


def step_container(request: ContainerRequest, tell: Callable[[str], None]) -> StepContainer:
    """Return what a run's containers have in common, its image and its way to the GPUs found where they are not named.

    Raises BadInput where there is no image, HostNotAble where no engine answers or the dump volume is too full.
    """
    from vdbg_env.application.image.run import settled
    from vdbg_env.image.container.step_container import StepContainer

    watched = request.run.settings.dumps if request.run.dump_quota is not None else None
    return StepContainer(
        settings=settled(request.run, containers(), dump_store(watched) if watched else None, tell, record=True),
        mounts=request.mounts,
        user=request.user,
        memory=request.memory,
        folder=request.folder,
    )


def container_place(container: StepContainer, *, name: str | None, tell: Callable[[str], None]) -> StepPlace:
    """Return containers as the place where steps are started, once a first one of them has run.

    `name` is what the user calls the image, where `container` names it by its id. Raises BadInput, HostNotAble and
    EngineFailed when steps could not be started there.
    """
    from vdbg_env.adapters.docker.client import connect
    from vdbg_env.adapters.execution.container.containers import StepContainers
    from vdbg_env.adapters.execution.container.image_probe import look
    from vdbg_env.adapters.execution.container.programs import ContainerBinaries, ContainerPrograms
    from vdbg_env.adapters.execution.container.runner import ContainerSteps
    from vdbg_env.adapters.execution.container.sources import ContainerSources
    from vdbg_env.adapters.execution.hang_tools import gpu_probe, hang_tools
    from vdbg_env.adapters.execution.job_builder import StepSettings
    from vdbg_env.application.run.target import StepPlace
    from vdbg_env.image.container.step_container import DATA, PACKAGES
    from vdbg_env.runbook.catalogue import TOOLS

    steps = StepContainers(connect, container, runbooks=data_dir("runbooks"), tell=tell)
    image = look(steps, TOOLS, name=name)
    own = {**dict(image.env), **dict(container.settings.env)}
    inside = ContainerPrograms(steps, image, asked=TOOLS, machine=programs())

    def runner(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepRunner:
        settings = StepSettings(
            env=dict(container.settings.env),
            cwd=Path(image.folder),
            mark=str(run),
            inherits=True,
            inherited=dict(image.env),
            python=image.python,
            packages=Path(PACKAGES),
            hang_tools=hang_tools(inside, python=image.python, packages=Path(PACKAGES)),
            gpu_probe=gpu_probe(inside, own),
            disk_floor=DISK_FLOOR,
            sensitive=sensitive,
            pseudonyms=names,
        )
        return ContainerSteps(steps, image, settings, here=Path.cwd())

    return StepPlace(
        programs=inside,
        reading=inside.reading,
        binaries=ContainerBinaries(steps, image, binary_source()),
        environment=own,
        data_dir=DATA,
        sources=ContainerSources(steps, image, _sources_here()),
        runner=runner,
        close=steps.close,
        container=container,
        image=image,
    )


def read_recording(folder: Path) -> RecordingHead:
    """Return what a recording says of itself; raises BadInput for a folder that is none."""
    from vdbg_env.adapters.execution.replay import read_recording as read

    return read(folder)


def check_recording_place(target: Path) -> None:
    """Raise BadInput unless a recording can be written there."""
    from vdbg_env.adapters.execution.replay import check_recording_place

    check_recording_place(target)


def write_recording(begun: Begun, target: Path, at: datetime) -> None:
    """Write a run's recording; raises BadInput when the folder is there already."""
    from vdbg_env.adapters.execution.replay import RecordingHead, write_recording

    head = begun.order.head
    write_recording(
        begun.order.directory.path,
        target,
        RecordingHead(
            runbook=head.runbook,
            recorded_on=head.recorded_on or head.host,
            recorded_at=at.isoformat(timespec="seconds"),
            synthetic=head.synthetic,
        ),
    )


def host_inspector(tools: tuple[str, ...]) -> HostInspector:
    """Return what looks at this machine for `doctor`."""
    from vdbg_env.adapters.host.inspector import LocalHost

    return LocalHost(programs(), tools)


def scratch_files() -> ScratchFiles:
    """Return the lender of scratch files."""
    from vdbg_env.adapters.files.temp_files import Scratch

    return Scratch()
