"""What builds, proves and lays out images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.common.programs import Programs

if TYPE_CHECKING:
    from vdbg_env.application.ports.unit_builds import UnitBuilds
    from vdbg_env.build.builder import BuilderName, BuildEvent, BundleFiles, ImageBuilder, ImageSwaps, SourceTrees
    from vdbg_env.build.render import LayOut
    from vdbg_env.crash.files import ScratchFiles
    from vdbg_env.image.plan import Machine
    from vdbg_env.image.profile import OwnPackage


def programs() -> Programs:
    return Programs()


def source_trees() -> SourceTrees:
    from vdbg_env.build.trees import SourceTreesOnDisk

    return SourceTreesOnDisk(programs())


def scratch_files() -> ScratchFiles:
    from vdbg_env.crash.files import Scratch

    return Scratch()


def machine() -> Machine:
    from vdbg_env.adapters.host.this_host import build_machine

    return build_machine()


def lay_out_context() -> LayOut:
    from vdbg_env.engine.context_tar import replace_folder

    return replace_folder


def bundle_files() -> BundleFiles:
    from vdbg_env.build.bundle import BundleTar

    return BundleTar()


def own_package() -> OwnPackage:
    from vdbg_env.build import trees

    return trees.own_package()


def image_builder(wanted: BuilderName) -> ImageBuilder:
    from vdbg_env.build.buildkit import choose_builder

    return choose_builder(wanted)


def image_swaps() -> ImageSwaps:
    from vdbg_env.build.swap import DockerSwaps
    from vdbg_env.engine.client import connect

    return DockerSwaps(connect())


def unit_builds(tell: Callable[[BuildEvent], None], work: Path | None, installed: Path | None = None) -> UnitBuilds:
    from vdbg_env.build.unit_sources import LocalUnitBuilds

    return LocalUnitBuilds(tell, work, installed)


def installed_compiler(folder: Path) -> str:
    from vdbg_env.build.units import installed_release

    return installed_release(folder)
