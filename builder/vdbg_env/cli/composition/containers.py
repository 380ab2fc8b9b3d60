"""Containers, the dumps that are left in them, and the machine below them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vdbg_env.crash.dumps import DumpDestination, DumpStore
    from vdbg_env.engine.request import ContainerRunner
    from vdbg_env.image.settings import DumpVolume
    from vdbg_env.run.doctor import LocalHost


def container_runner() -> ContainerRunner:
    from vdbg_env.engine.client import connect
    from vdbg_env.engine.containers import DockerContainers

    return DockerContainers(connect())


def dump_store(place: DumpVolume) -> DumpStore:
    from vdbg_env.run import begin

    return begin.dump_store(place)


def dump_export(target: Path) -> DumpDestination:
    from vdbg_env.engine.dump_folder import DumpExport

    return DumpExport(target)


def host_inspector(tools: tuple[str, ...]) -> LocalHost:
    from vdbg_env.common.programs import Programs
    from vdbg_env.run.doctor import LocalHost

    return LocalHost(Programs(), tools)
