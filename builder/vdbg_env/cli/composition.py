"""Connect the ports of the application to their adapters; nothing else makes an adapter, so tests can give others.

Each adapter is imported by the function that makes it: a command loads the adapters that it uses, and no others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.common.errors import HostNotAble

if TYPE_CHECKING:
    from vdbg_env.adapters.capture.proxy import CaptureProxy
    from vdbg_env.application.host.capture import CaptureSettings
    from vdbg_env.application.image.render import LayOut
    from vdbg_env.application.line_packs.lookup import PackedLines
    from vdbg_env.application.ports import (
        BinarySource,
        BuilderName,
        BundleFiles,
        Clock,
        ContainerRunner,
        CoreFiles,
        CorePipes,
        DumpDestination,
        DumpStore,
        ImageBuilder,
        LogSource,
        ProgramRunner,
        ScratchFiles,
        SourceText,
        SourceTrees,
    )
    from vdbg_env.application.ports.build_events import BuildEvent
    from vdbg_env.application.ports.files import LineStore, PackShelf, PackTarget
    from vdbg_env.application.ports.host_facts import HostInspector
    from vdbg_env.application.ports.images import ImageSwaps
    from vdbg_env.application.ports.places import BatchQueue, GuardSettings, StepPlaces
    from vdbg_env.application.ports.this_host import Announcer, GuardedCommand, ThisHost
    from vdbg_env.application.ports.unit_builds import UnitBuilds
    from vdbg_env.application.run.library import RunbookLibrary
    from vdbg_env.application.session import RunPorts
    from vdbg_env.image.container.run_settings import DumpVolume
    from vdbg_env.image.plan.parallelism import Machine


def binary_source() -> BinarySource:
    from vdbg_env.adapters.docker.binary_targets import Targets

    return Targets()


def programs() -> ProgramRunner:
    from vdbg_env.adapters.host.programs import Programs

    return Programs()


def log_source() -> LogSource:
    from vdbg_env.adapters.files.log_files import LogFiles

    return LogFiles()


def core_files() -> CoreFiles:
    from vdbg_env.adapters.files.core_files import CoreFilesOnDisk

    return CoreFilesOnDisk()


def source_text(roots: Sequence[str], mappings: Sequence[tuple[str, str]]) -> SourceText:
    from vdbg_env.adapters.files.source_lines import SourceFiles

    return SourceFiles(roots, mappings)


def source_trees() -> SourceTrees:
    from vdbg_env.adapters.files.source_trees import SourceTreesOnDisk

    return SourceTreesOnDisk(programs())


def packed_lines(named: Sequence[str] = ()) -> PackedLines:
    from vdbg_env.adapters.lines.stores import open_stores
    from vdbg_env.application.line_packs.lookup import PackedLines

    return PackedLines(open_stores(named, os.environ))


def line_store(name: str) -> LineStore:
    from vdbg_env.adapters.lines.stores import open_store

    return open_store(name, os.environ)


def line_stores() -> tuple[LineStore, ...]:
    from vdbg_env.adapters.lines.stores import open_stores

    return open_stores((), os.environ)


def pack_target(name: str) -> PackTarget:
    from vdbg_env.adapters.lines.stores import open_target

    return open_target(name)


def pack_folder(folder: Path | None, *, fetched: bool = False) -> PackShelf:
    from vdbg_env.adapters.lines.shelf import Shelf
    from vdbg_env.adapters.lines.stores import cache_folder, default_folder

    return Shelf(folder or (cache_folder() if fetched else default_folder()))


def default_pack(name: str) -> Path:
    from vdbg_env.adapters.lines.stores import default_folder

    return default_folder() / name


def write_file(path: Path, data: bytes) -> None:
    from vdbg_env.adapters.lines.folder import write_whole

    write_whole(path, data)


def scratch_files() -> ScratchFiles:
    from vdbg_env.adapters.files.temp_files import Scratch

    return Scratch()


def lay_out_context() -> LayOut:
    from vdbg_env.adapters.files.context_tar import replace_folder

    return replace_folder


def bundle_files() -> BundleFiles:
    from vdbg_env.adapters.builders.bundles import BundleTar

    return BundleTar()


def core_pipes() -> CorePipes:
    from vdbg_env.adapters.host.dump_pipes import CorePipesOfLinux

    return CorePipesOfLinux()


def batch_queue() -> BatchQueue:
    from vdbg_env.adapters.placement.slurm.batch import SlurmQueue

    return SlurmQueue(programs())


def clock() -> Clock:
    from vdbg_env.adapters.host.clock import SystemClock

    return SystemClock()


def this_host() -> ThisHost:
    from vdbg_env.adapters.host.this_host import LocalMachine

    return LocalMachine()


def machine() -> Machine:
    from vdbg_env.adapters.host.build_machine import build_machine

    return build_machine()


def host_inspector(tools: tuple[str, ...]) -> HostInspector:
    from vdbg_env.adapters.host.inspector import LocalHost

    return LocalHost(programs(), tools)


def image_builder(wanted: BuilderName) -> ImageBuilder:
    from vdbg_env.adapters.builders.select import choose_builder

    return choose_builder(wanted)


def unit_builds(tell: Callable[[BuildEvent], None], work: Path | None) -> UnitBuilds:
    from vdbg_env.adapters.builders.units.unit_builds import LocalUnitBuilds

    return LocalUnitBuilds(tell, work)


def image_swaps() -> ImageSwaps:
    from vdbg_env.adapters.builders.swap import DockerSwaps
    from vdbg_env.adapters.docker.client import connect

    return DockerSwaps(connect())


def containers() -> ContainerRunner:
    from vdbg_env.adapters.docker.client import connect
    from vdbg_env.adapters.docker.containers import DockerContainers

    return DockerContainers(connect())


def dump_store(place: DumpVolume) -> DumpStore:
    from vdbg_env.adapters.docker.client import connect
    from vdbg_env.adapters.docker.dump_volumes import open_dumps
    from vdbg_env.adapters.files.dumps.folder import FolderDumps

    if place.kind == "bind":
        return FolderDumps(Path(place.source))
    return open_dumps(connect(), containers(), place.source)


def dump_export(target: Path) -> DumpDestination:
    from vdbg_env.adapters.files.dumps.export import DumpExport

    return DumpExport(target)


def runbook_library(files: Sequence[Path] = ()) -> RunbookLibrary:
    from vdbg_env.adapters.files.runbook_files import RunbookFilesOnDisk
    from vdbg_env.application.builtins.registry import catalogue
    from vdbg_env.application.run.library import RunbookLibrary

    return RunbookLibrary(RunbookFilesOnDisk(files), catalogue)


def runbook_names() -> frozenset[str]:
    from vdbg_env.adapters.files.runbook_files import RunbookFilesOnDisk

    return frozenset(entry.name for entry in RunbookFilesOnDisk().runbooks())


def capture_proxy(settings: CaptureSettings) -> CaptureProxy:
    try:
        from vdbg_env.adapters.capture.proxy import CaptureProxy
    except ModuleNotFoundError as error:
        raise HostNotAble(
            f"capture needs {error.name}, which is not installed", next_step="pip install 'vdbg-env[capture]'"
        ) from error

    return CaptureProxy(settings)


def step_places() -> StepPlaces:
    from vdbg_env.adapters.places import Places

    return Places(os.environ, binary_source())


def announcer() -> Announcer:
    from vdbg_env.adapters.host.announce import LocalAnnouncer

    return LocalAnnouncer()


def guard_ports(settings: GuardSettings, runs: Path | None, keep: int) -> tuple[GuardedCommand, RunPorts]:
    """Return the ports of a run that guards one command in this process's place.

    Its record goes below `runs`, where the newest `keep` of earlier ones stay.
    """
    from vdbg_env.adapters.host.guarded import Guarded, forget_old_runs
    from vdbg_env.adapters.places import Places
    from vdbg_env.record.runs import RUNS_VARIABLE, runs_home

    command = Guarded(settings)
    environment = {**os.environ, **({RUNS_VARIABLE: str(runs)} if runs else {})}
    forget_old_runs(runs_home(environment), keep)
    places = Places(os.environ, binary_source(), command)
    ports = replace(run_ports(()), environment=environment, places=places, interrupts=lambda: command)
    return command, ports


def run_ports(files: Sequence[Path]) -> RunPorts:
    from vdbg_env.adapters.execution.forked_worker import ForkedWorker
    from vdbg_env.adapters.files.runbook_files import RunbookFilesOnDisk
    from vdbg_env.adapters.host.clock import SignalInterrupts
    from vdbg_env.adapters.placement.recordings import RecordingFolders
    from vdbg_env.application.session import RunPorts
    from vdbg_env.report.run.files import write_report

    return RunPorts(
        environment=os.environ,
        files=RunbookFilesOnDisk(files),
        places=step_places(),
        recordings=RecordingFolders(),
        containers=containers,
        dump_store=dump_store,
        cores=core_files(),
        worker=ForkedWorker(),
        clock=clock(),
        interrupts=SignalInterrupts,
        host=this_host(),
        write_report=write_report,
        lines=packed_lines(),
    )
