"""What runs a runbook, guards a command or captures requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.cli.composition.containers import container_runner, dump_store
from vdbg_env.cli.composition.files import binary_source
from vdbg_env.cli.composition.lines import packed_lines
from vdbg_env.common.clock import SignalInterrupts, SystemClock
from vdbg_env.common.errors import HostNotAble
from vdbg_env.crash.files import CoreFiles
from vdbg_env.run.host import LocalMachine
from vdbg_env.run.library import RunbookFilesOnDisk

if TYPE_CHECKING:
    from vdbg_env.common.clock import Clock
    from vdbg_env.run.capture import CaptureSettings
    from vdbg_env.run.capture_proxy import CaptureProxy
    from vdbg_env.run.host import Announcer, GuardedCommand, Room, ThisHost
    from vdbg_env.run.library import RunbookLibrary
    from vdbg_env.run.placement import GuardSettings
    from vdbg_env.run.session import RunPorts
    from vdbg_env.run.slurm import SlurmQueue


def clock() -> Clock:
    return SystemClock()


def this_host() -> ThisHost:
    return LocalMachine()


def runbook_names() -> frozenset[str]:
    return frozenset(entry.name for entry in RunbookFilesOnDisk().runbooks())


def runbook_library(files: Sequence[Path] = ()) -> RunbookLibrary:
    from vdbg_env.run.builtins import catalogue
    from vdbg_env.run.library import RunbookLibrary

    return RunbookLibrary(RunbookFilesOnDisk(files), catalogue)


def batch_queue() -> SlurmQueue:
    from vdbg_env.common.programs import Programs
    from vdbg_env.run.slurm import SlurmQueue

    return SlurmQueue(Programs())


def capture_proxy(settings: CaptureSettings) -> CaptureProxy:
    try:
        from vdbg_env.run.capture_proxy import CaptureProxy
    except ModuleNotFoundError as error:
        raise HostNotAble(
            f"capture needs {error.name}, which is not installed", next_step="pip install 'vdbg-env[capture]'"
        ) from error

    return CaptureProxy(settings)


def announcer() -> Announcer:
    from vdbg_env.run.guarded import LocalAnnouncer

    return LocalAnnouncer()


def guard_ports(settings: GuardSettings, runs: Path | None, keep: int) -> tuple[GuardedCommand, RunPorts]:
    """Return the ports of a run that guards one command in this process's place.

    Its record goes below `runs`, where the newest `keep` of earlier ones stay.
    """
    from vdbg_env.record.runs import RUNS_VARIABLE, runs_home
    from vdbg_env.run.guarded import Guarded, forget_old_runs
    from vdbg_env.run.places import Places

    command = Guarded(settings)
    environment = {**os.environ, **({RUNS_VARIABLE: str(runs)} if runs else {})}
    forget_old_runs(runs_home(environment), keep)
    places = Places(os.environ, binary_source(), command)
    ports = replace(run_ports(()), environment=environment, places=places, interrupts=lambda: command)
    return command, ports


def core_room(folder: Path, floor: int, *, whole: bool) -> Room:
    """Return the room that cores have in a folder; see the adapter."""
    from vdbg_env.run import guarded

    return guarded.core_room(folder, floor, whole=whole)


def run_ports(files: Sequence[Path]) -> RunPorts:
    from vdbg_env.report.run.files import write_report
    from vdbg_env.run.places import Places
    from vdbg_env.run.recordings import RecordingFolders
    from vdbg_env.run.session import RunPorts
    from vdbg_env.run.worker import ForkedWorker

    return RunPorts(
        environment=os.environ,
        files=RunbookFilesOnDisk(files),
        places=Places(os.environ, binary_source()),
        recordings=RecordingFolders(),
        containers=container_runner,
        dump_store=dump_store,
        cores=CoreFiles(),
        worker=ForkedWorker(),
        clock=clock(),
        interrupts=SignalInterrupts,
        host=this_host(),
        write_report=write_report,
        lines=packed_lines(),
    )
