"""The request of `vdbg-env runbook`, and the linted runbook with final inputs that follows from it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.application.ports.places import Scratch
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.target import ContainerRequest
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadInput
from vdbg_env.common.yaml_source import YamlSource
from vdbg_env.image.container.pod_settings import PodSettings
from vdbg_env.image.container.step_container import StepContainer
from vdbg_env.record.run_directory import RunHead, part_of
from vdbg_env.runbook.machine.inputs import final_inputs
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.workload.inputs import Inputs

if TYPE_CHECKING:
    from pathlib import Path

Launcher = Literal["local", "slurm", "k8s"]


@dataclass(frozen=True, kw_only=True)
class PlacementRequest:
    """The ranks requested on the command line: how they are started, and how many; None is what a step asks for.

    `pods` are those of Kubernetes.
    """

    on: Launcher = "local"
    ranks: int | None = None
    nodes: int | None = None
    arguments: tuple[str, ...] = ()  # for the launcher, unread
    scratch: Scratch | None = None
    pods: PodSettings | None = None

    def document(self) -> dict[str, Any]:
        """Return what `run.json` keeps of it: of the variables of pods the names alone."""
        kept = _without_values(self, lambda _name: _NOT_KEPT)
        return {name: value for name, value in asdict(kept).items() if name != "pods" or value}


@dataclass(frozen=True, kw_only=True)
class RunbookRequest:
    """The flags of `vdbg-env runbook`, as given; `total_s` in seconds, `container` None where steps run here.

    With `at_once` nothing is looked up before the first step is started. What the run `from_run` has seen is not run
    again. `folder` is where COMMAND starts and `recorded` what that run's inputs were, both of a recorded run that
    COMMAND is taken from; `typed_in` is where relative paths of `inputs` start.
    """

    runbook: str
    files: tuple[Path, ...] = ()
    argv: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    run_dir: Path | None = None
    record: Path | None = None
    replay: Path | None = None
    resume: str | None = None
    total_s: float | None = None
    batch: bool = False
    bisect: bool = False
    container: ContainerRequest | None = None
    placement: PlacementRequest | None = None
    json: bool = False
    pseudonyms: bool = False
    at_once: bool = False
    from_run: str | None = None
    folder: str = ""
    recorded: Mapping[str, str] = field(default_factory=dict)
    typed_in: str = ""


def with_recorded_workload(request: RunbookRequest, head: RunHead) -> RunbookRequest:
    """Return the request with the workload of another run, where it started and its inputs, unless it names a command.

    Raises BadInput where the record has no whole command line.
    """
    if request.argv:
        return request
    if not head.workload or any("[redacted" in word for word in head.workload):
        raise BadInput(
            f"the record of run {head.run!r} has no whole command line: a secret in it was left out",
            next_step=f"give it again: vdbg-env runbook {request.runbook} --from {head.run} -- COMMAND ...",
        )
    if not all(map(_can_be_started, head.workload)):
        raise BadInput(
            f"the record of run {head.run!r} has a command line that cannot be started", cause="run.json was edited"
        )
    container = request.container
    if container and head.container:
        container = replace(container, folder=part_of(head, "container", StepContainer).folder)
    recorded = {name: text for name, value in head.inputs.items() if (text := _as_given(value)) is not None}
    return replace(request, argv=head.workload, folder=head.folder, container=container, recorded=recorded)


def _as_given(value: Any) -> str | None:
    """Return a recorded input as it is given on a command line; None for one that is not, or was redacted."""
    if value is None or isinstance(value, list) or "[redacted" in str(value):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def starts_here(request: RunbookRequest, head: RunHead) -> bool:
    """Whether commands start in a folder of this machine: not in containers or pods, which have another one."""
    if request.resume:
        return not head.container and head.placement.get("on") != "k8s"
    return request.container is None and not (request.placement and request.placement.pods)


def folder_gone(request: RunbookRequest, run: str) -> BadInput:
    """Return the error for a recorded run whose folder is not on this machine."""
    begun = f"vdbg-env runbook {request.runbook}"
    again = f"{begun} -- COMMAND"
    if request.from_run:
        again = f"{begun} --from {run} -- {shlex.join(request.argv)}; or --image, where it ran in a container"
    return BadInput(
        f"the command of run {run!r} started in {request.folder}, and there is no such folder",
        cause="it was removed or renamed, or the run was recorded on another machine or in a container",
        next_step=f"make it again; or, where the command finds its files: {again}",
    )


def _can_be_started(word: str) -> bool:
    try:
        return b"\0" not in word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


class _Workload(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    argv: list[str] = Field(min_length=1)


class _Project(BaseModel):
    """The part of a project's `vdbg.yaml` that runbooks read; other commands have their keys there."""

    model_config = ConfigDict(extra="ignore", strict=True)
    workload: _Workload | None = None
    inputs: dict[str, str] = {}


def prepare(
    request: RunbookRequest, library: RunbookLibrary, environment: Mapping[str, str], project: YamlSource | None
) -> tuple[Runbook, Inputs]:
    """Find and lint the runbook and make its inputs final; `project` is the current folder's `vdbg.yaml`.

    Without a command line its workload is taken. Raises BadInput and BadDocument.
    """
    runbook = library.load(request.runbook)
    settings = yaml_source.validate(_Project, project) if project else _Project()
    argv = request.argv or tuple(settings.workload.argv if settings.workload else ())
    others = {**settings.inputs, **request.recorded}
    given = {name: text for name, text in others.items() if name in runbook.inputs} | dict(request.inputs)
    if request.folder:
        paths = (name for name in request.inputs if name in runbook.inputs and runbook.inputs[name].type == "path")
        given |= {name: str(PurePath(request.typed_in, request.inputs[name])) for name in paths}
    return runbook, final_inputs(runbook, given, argv, environment)


_NOT_KEPT = "[not kept]"


def _without_values(asked: PlacementRequest, value: Callable[[str], str]) -> PlacementRequest:
    """Return a placement whose variables have these values."""
    if asked.pods is None:
        return asked
    run = asked.pods.run
    env = tuple((name, value(name)) for name, _ in run.env)
    return replace(asked, pods=replace(asked.pods, run=replace(run, env=env)))


def resumed_placement(
    head: RunHead, asked: PlacementRequest | None, environment: Mapping[str, str]
) -> PlacementRequest | None:
    """Return the placement a run was begun with; raises BadInput where another one is requested.

    The record has no values of variables: they are those given again, or of `environment`.
    """
    recorded = part_of(head, "placement", PlacementRequest) if head.placement else None
    same = recorded if asked is None else _without_values(asked, lambda _name: _NOT_KEPT)
    if recorded and recorded.pods and same == recorded:
        given = dict(asked.pods.run.env) if asked and asked.pods else environment
        missing = [name for name, _ in recorded.pods.run.env if name not in given]
        if missing:
            raise BadInput(
                f"the record of run {head.run!r} has no values of variables, and {missing[0]} is not set here",
                next_step=f"export {missing[0]}, then --resume again",
            )
        return _without_values(recorded, lambda name: given[name])
    if asked and asked != recorded:
        raise BadInput(
            f"the ranks of run {head.run!r} were started in another way",
            cause="its attempts would not have the same ranks",
            next_step="leave out --on, --nodes and --ranks, or begin a new run without --resume",
        )
    return recorded
