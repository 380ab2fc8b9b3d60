"""The places where steps are started: this machine, and containers of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from vdbg_env.common.programs import Programs
from vdbg_env.common.resources import data_dir
from vdbg_env.crash.files import BinarySource, SourceFiles, SourceText
from vdbg_env.image.settings import DATA, PACKAGES, StepContainer
from vdbg_env.record.redactor import Pseudonyms, Redactor
from vdbg_env.run.guarded import Guarded
from vdbg_env.run.job import StepSettings, gpu_probe, hang_tools
from vdbg_env.run.placement import DISK_FLOOR, Scratch, StepPlace, StepPlacement
from vdbg_env.runbook.model import TOOLS


class Places:
    """A StepPlaces for a process with this environment; commands start in `folder`, or in the current one."""

    def __init__(
        self,
        environment: Mapping[str, str],
        binaries: BinarySource,
        guarded: Guarded | None = None,
        folder: Path | None = None,
        disk_floor: int = DISK_FLOOR,
    ) -> None:
        self._environment = environment
        self._binaries = binaries
        self._guarded = guarded
        self._other = folder
        self._disk_floor = guarded.settings.disk_floor if guarded else disk_floor

    @property
    def _folder(self) -> Path:
        return self._other or Path.cwd()

    def starting_in(self, folder: str) -> Places | None:
        """Return the same places, with commands that start in another folder; None where there is no such folder."""
        there = Path(folder)
        return self._with(folder=there) if there.is_dir() else None

    def keeping_free(self, disk_floor: int) -> Places:
        """Return the same places with another floor of free disk space; see `StepPlaces.keeping_free`."""
        return self._with(disk_floor=disk_floor)

    def _with(self, *, folder: Path | None = None, disk_floor: int | None = None) -> Places:
        floor = self._disk_floor if disk_floor is None else disk_floor
        return Places(self._environment, self._binaries, self._guarded, folder or self._other, floor)

    def here(self, *, ranks: int | None = None) -> StepPlace:
        """Return this machine; see `StepPlaces.here`."""
        from vdbg_env.run.local import LocalProcesses
        from vdbg_env.run.ranks import LocalRanks

        programs = Programs(self._other)

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            steps = LocalProcesses(
                StepSettings(
                    env=self._environment,
                    cwd=self._folder,
                    mark=str(run),
                    hang_tools=hang_tools(programs),
                    gpu_probe=gpu_probe(programs, self._environment),
                    disk_floor=self._disk_floor,
                    sensitive=sensitive,
                    pseudonyms=names,
                    guarded=self._guarded,
                )
            )
            return LocalRanks(steps, ranks)

        return StepPlace(
            programs=programs,
            reading=lambda _: programs,
            binaries=self._binaries,
            environment=self._environment,
            data_dir=str(data_dir("runbooks")),
            sources=self._sources(),
            placement=placement,
            close=lambda: None,
            folder=str(self._folder),
        )

    def slurm(
        self, *, ranks: int | None, nodes: int | None, extra: tuple[str, ...], scratch: Scratch | None = None
    ) -> StepPlace:
        """Return the nodes of the allocation around this process; see `StepPlaces.slurm`."""
        from vdbg_env.run.slurm import SlurmCommands, SlurmRanks

        programs = Programs(self._other)
        slurm = SlurmCommands(programs)
        allocation = slurm.allocation(self._environment)
        allocation.check(nodes or 1)

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            settings = StepSettings(
                env={},
                cwd=self._folder,
                mark=str(run),
                inherits=True,
                inherited=self._environment,
                hang_tools=hang_tools(programs),
                gpu_probe=gpu_probe(programs, self._environment),
                disk_floor=self._disk_floor,
                sensitive=sensitive,
                pseudonyms=names,
            )
            return SlurmRanks(
                slurm,
                allocation,
                settings,
                environment=self._environment,
                ranks=ranks,
                nodes=nodes,
                extra=extra,
                scratch=scratch,
            )

        return replace(
            self.here(),
            placement=placement,
            on="slurm",
            nodes=nodes or len(allocation.hosts),
            time_left_s=slurm.time_left_s(allocation.job),
            scratch=scratch,
        )

    def containers(self, container: StepContainer, *, name: str | None, notice: Callable[[str], None]) -> StepPlace:
        """Return containers of an image; see `StepPlaces.containers`."""
        from vdbg_env.engine.client import connect
        from vdbg_env.run.container import (
            ContainerBinaries,
            ContainerPrograms,
            ContainerSources,
            ContainerSteps,
            StepContainers,
            look,
        )
        from vdbg_env.run.ranks import OneRank

        steps = StepContainers(connect, container, runbooks=data_dir("runbooks"), tell=notice)
        image = look(steps, TOOLS, name=name)
        given = dict(container.settings.env)
        environment = {**dict(image.env), **given}
        inside = ContainerPrograms(steps, image, asked=TOOLS, machine=Programs(self._other))

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            settings = StepSettings(
                env=given,
                cwd=Path(image.folder),
                mark=str(run),
                inherits=True,
                inherited=dict(image.env),
                python=image.python,
                packages=Path(PACKAGES),
                libraries=(),
                hang_tools=hang_tools(inside, python=image.python, packages=Path(PACKAGES)),
                gpu_probe=gpu_probe(inside, environment),
                disk_floor=self._disk_floor,
                sensitive=sensitive,
                pseudonyms=names,
            )
            return OneRank(ContainerSteps(steps, image, settings, here=self._folder))

        return StepPlace(
            programs=inside,
            reading=inside.reading,
            binaries=ContainerBinaries(steps, image, self._binaries),
            environment=environment,
            data_dir=DATA,
            sources=ContainerSources(steps, image, self._sources()),
            placement=placement,
            close=steps.close,
            folder=str(self._folder),
            container=container,
            image=image,
        )

    def with_pseudonyms(self, placement: StepPlacement, redactor: Redactor) -> StepPlacement:
        """Return a placement whose artifacts have pseudonyms."""
        from vdbg_env.run.ranks import PseudonymousSteps

        return PseudonymousSteps(placement, redactor)

    def _sources(self) -> SourceText:
        return SourceFiles((str(self._folder), str(data_dir("images") / "samples")), ())
