"""Open the places where steps are started: this machine, containers of an image, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from vdbg_env.common import plug_ins
from vdbg_env.common.errors import BadInput
from vdbg_env.common.programs import ProgramRunner, Programs
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash.files import SourceFiles
from vdbg_env.engine.targets import Targets
from vdbg_env.image.settings import DATA, PACKAGES, StepContainer
from vdbg_env.record.redactor import Pseudonyms
from vdbg_env.run.guarded import Guarded
from vdbg_env.run.job import StepSettings, gpu_probe, hang_tools
from vdbg_env.run.placement import DISK_FLOOR, PlacementRequest, StepPlace, StepPlacement
from vdbg_env.runbook.model import TOOLS

if TYPE_CHECKING:
    from vdbg_env.run.begin import RunbookRequest


@dataclass(frozen=True, kw_only=True)
class Places:
    """Opens places for a process with this `environment`.

    Commands start in `other_folder`, or in the current one where that is None. A step is ended while `disk_floor` bytes
    of the disk are still free. `guarded` is given by `vdbg-env guard` alone.
    """

    environment: Mapping[str, str]
    guarded: Guarded | None = None
    other_folder: Path | None = None
    disk_floor: int = DISK_FLOOR

    @property
    def folder(self) -> Path:
        """The folder of this machine that commands start in."""
        return self.other_folder or Path.cwd()

    @property
    def programs(self) -> Programs:
        """The helper programs of this machine."""
        return Programs(self.other_folder)

    def settings(self, programs: ProgramRunner, **fields: Any) -> StepSettings:
        """Return what the steps of a run have in common where these programs are; `fields` are those of the place."""
        environment = {**fields.get("inherited", {}), **fields["env"]}
        return StepSettings(
            **{
                "cwd": self.folder,
                "hang_tools": hang_tools(programs),
                "gpu_probe": gpu_probe(programs, environment),
                "disk_floor": self.disk_floor,
                **fields,
            }
        )

    def here(self, *, ranks: int | None = None) -> StepPlace:
        """Return this machine; an attempt has `ranks` of them, or as many as its step asks for where that is None."""
        from vdbg_env.run.local import LocalProcesses
        from vdbg_env.run.ranks import LocalRanks

        programs = self.programs

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            settings = self.settings(
                programs,
                env=self.environment,
                mark=str(run),
                sensitive=sensitive,
                pseudonyms=names,
                guarded=self.guarded,
            )
            return LocalRanks(LocalProcesses(settings), ranks)

        return StepPlace(
            programs=programs,
            reading=lambda _: programs,
            binaries=Targets(),
            environment=self.environment,
            data_dir=str(SHIPPED_DATA / "runbooks"),
            sources=self._sources(),
            placement=placement,
            close=lambda: None,
            folder=str(self.folder),
        )

    def containers(self, container: StepContainer, *, name: str | None, notice: Callable[[str], None]) -> StepPlace:
        """Return containers of an image, once a first one has run; `name` is what the user calls the image.

        Raises BadInput, HostNotAble and EngineFailed when steps could not be started there.
        """
        from vdbg_env.engine.client import connect
        from vdbg_env.run.attempt import OneRank
        from vdbg_env.run.container import (
            ContainerBinaries,
            ContainerPrograms,
            ContainerSources,
            ContainerSteps,
            StepContainers,
            look,
        )

        steps = StepContainers(connect, container, runbooks=SHIPPED_DATA / "runbooks", tell=notice)
        image = look(steps, TOOLS, name=name)
        given = dict(container.settings.env)
        inside = ContainerPrograms(steps, image, asked=TOOLS, machine=self.programs)
        packages = Path(PACKAGES)

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            settings = self.settings(
                inside,
                env=given,
                cwd=Path(image.folder),
                mark=str(run),
                inherits=True,
                inherited=dict(image.env),
                python=image.python,
                packages=packages,
                libraries=(),
                hang_tools=hang_tools(inside, python=image.python, packages=packages),
                sensitive=sensitive,
                pseudonyms=names,
            )
            return OneRank(ContainerSteps(steps, image, settings, here=self.folder))

        return StepPlace(
            programs=inside,
            reading=inside.reading,
            binaries=ContainerBinaries(steps, image, Targets()),
            environment={**dict(image.env), **given},
            data_dir=DATA,
            sources=ContainerSources(steps, image, self._sources()),
            placement=placement,
            close=steps.close,
            folder=str(self.folder),
            container=container,
            image=image,
            in_words={"steps run in": f"containers of {image.name}", "image": image.digest or image.image_id},
        )

    def ranks(self, asked: PlacementRequest | None) -> StepPlace:
        """Return the place of the ranks asked for: this machine, or that of a plug-in; raises BadInput."""
        if asked is None or asked.on == "local":
            return self.here(ranks=asked.ranks if asked else None)
        return plug_in(asked.on).place(self, asked)

    def _sources(self) -> SourceFiles:
        return SourceFiles((str(self.folder), str(SHIPPED_DATA / "images" / "samples")), ())


class PlugIn(Protocol):
    """What a plug-in's module has: a place for ranks on other machines, and the ways to get a run there."""

    def place(self, places: Places, asked: PlacementRequest) -> StepPlace:
        """Return the place where the ranks asked for are started; raises BadInput outside of one."""
        ...

    def needs_allocation(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment has to get machines before it can start ranks on them."""
        ...

    def allocate(self, request: RunbookRequest, words: tuple[str, ...], say: Callable[[str], None]) -> int:
        """Get the machines and run the command line of these words on them, in place of this process."""
        ...

    def queue(
        self,
        request: RunbookRequest,
        *,
        setup: str,
        arguments: tuple[str, ...],
        show_only: bool,
        say: Callable[[str], None],
    ) -> str:
        """Queue the whole run as a job and return what to print, or with `show_only` the text of the job alone."""
        ...  # fmt: skip


def plug_in(name: str) -> PlugIn:
    """Return the module of the plug-in for `--on NAME`; raises BadInput where none is installed."""
    if module := plug_ins.plug_in(plug_ins.PLACEMENTS, name):
        return cast(PlugIn, module)
    raise BadInput(f"no placement {name!r} is installed", next_step="--on local, docker or slurm")
