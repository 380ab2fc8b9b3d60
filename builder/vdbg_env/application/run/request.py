"""The request of `vdbg-env runbook`, and the linted runbook with final inputs that follows from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.application.ports.places import Scratch
from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.target import ContainerRequest
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadDocument, BadInput, nearest
from vdbg_env.common.yaml_source import YamlSource
from vdbg_env.image.settings import StepContainer
from vdbg_env.record.run_directory import RunHead, part_of
from vdbg_env.runbook.machine.inputs import final_inputs
from vdbg_env.runbook.model import SYNTHETIC, Runbook
from vdbg_env.runbook.workload import server
from vdbg_env.runbook.workload.inputs import Inputs

if TYPE_CHECKING:
    from pathlib import Path

Launcher = Literal["local", "slurm"]
NO_PODS = "vdbg-env no longer starts pods itself"
IN_A_POD = "run it inside a pod that you have: vdbg-env render --format k8s --for FILE --runbook NAME DIR"


@dataclass(frozen=True, kw_only=True)
class PlacementRequest:
    """The ranks requested on the command line: how they are started, and how many; None is what a step asks for."""

    on: Launcher = "local"
    ranks: int | None = None
    nodes: int | None = None
    arguments: tuple[str, ...] = ()  # for the launcher, unread
    scratch: Scratch | None = None

    def document(self) -> dict[str, Any]:
        """Return what `run.json` keeps of it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RunbookRequest:
    """The flags of `vdbg-env runbook`, as given; `total_s` in seconds, `container` None where steps run here.

    With `at_once` nothing is looked up before the first step is started. What the run `from_run` has seen is not run
    again. `folder` is where COMMAND starts and `recorded` what that run's inputs were, both of a recorded run that
    COMMAND is taken from; `typed_in` is where relative paths of `inputs` start. Below `disk_floor` bytes of free space
    no step is started, and one that runs is ended.
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
    disk_floor: int | None = None
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
    """Whether commands start in a folder of this machine: not in containers, which have another one."""
    if request.resume:
        return not head.container
    return request.container is None


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
    """A project's `vdbg.yaml`: the workload of its runbooks, and values of their inputs."""

    model_config = ConfigDict(extra="forbid", strict=True)
    workload: _Workload | None = None
    inputs: dict[str, str] = {}


def prepare(
    request: RunbookRequest,
    library: RunbookLibrary,
    environment: Mapping[str, str],
    project: YamlSource | None,
    host: ThisHost,
) -> tuple[Runbook, Inputs]:
    """Find and lint the runbook and make its inputs final; `project` is the current folder's `vdbg.yaml`.

    Without a command line its workload is taken. Raises BadInput and BadDocument.
    """
    runbook = library.load(request.runbook)
    settings = yaml_source.validate(_Project, project) if project else _Project()
    if project:
        _check_names(settings, runbook, library, project)
    argv = request.argv or tuple(settings.workload.argv if settings.workload else ())
    others = {**settings.inputs, **request.recorded}
    given = {name: text for name, text in others.items() if name in runbook.inputs} | dict(request.inputs)
    if request.folder:
        paths = (name for name in request.inputs if name in runbook.inputs and runbook.inputs[name].type == "path")
        typed = {name: request.inputs[name] for name in paths if request.inputs[name] != SYNTHETIC}
        given |= {name: str(PurePath(request.typed_in, path)) for name, path in typed.items()}
    return runbook, _at_its_port(final_inputs(runbook, given, argv, environment), host)


def _check_names(settings: _Project, runbook: Runbook, library: RunbookLibrary, project: YamlSource) -> None:
    """Raise BadDocument for an input that no runbook has; the file is for all of them."""
    unknown = [name for name in settings.inputs if name not in runbook.inputs]
    known = library.input_names() if unknown else frozenset()
    wrong = (
        project.complaint(
            ("inputs", name), f"no runbook has an input {name!r}", key=True, suggestion=nearest(name, known)
        )
        for name in unknown
        if name not in known
    )
    if complaints := tuple(wrong):
        raise BadDocument(complaints, next_step="vdbg-env runbooks show NAME lists the inputs of a runbook")


def _at_its_port(inputs: Inputs, host: ThisHost) -> Inputs:
    """Return the inputs with the server's port put into the workload's command line, a free one for `auto`."""
    asked = inputs.get("port")
    if asked is None or not inputs.workload.argv:
        return inputs
    text = str(asked)
    if text != "auto" and not (text.isdecimal() and 0 < int(text) < 1 << 16):
        raise BadInput(f"input 'port' is a port's number or auto, not {text!r}", next_step="-i port=auto")
    if inputs.get("url") is not None:
        raise BadInput(
            "the inputs 'port' and 'url' both say where the server listens",
            next_step="leave out url: it is read from the command line, into which the port is put",
        )
    port = host.free_port() if text == "auto" else int(text)
    argv = server.with_port(inputs.workload.argv, port)
    if argv is None:
        raise BadInput(
            f"where the port goes in this command is not known: {shlex.join(inputs.workload.argv)}",
            cause="it has no --port, and is no server that this program knows",
            next_step="write the server's own command line after --, or leave out -i port",
        )
    return Inputs({**inputs, "argv": list(argv), "port": str(port)})


def recorded_placement(head: RunHead) -> PlacementRequest | None:
    """Return how the ranks of a run were started; raises BadInput for pods, which no version starts any longer."""
    if head.in_pods:
        raise BadInput(
            f"the ranks of run {head.run!r} were pods (--on k8s), and that placement is gone",
            cause=NO_PODS,
            next_step=f"{IN_A_POD}. What was seen stays readable: vdbg-env runs report {head.run}",
        )
    return part_of(head, "placement", PlacementRequest) if head.placement else None


def resumed_placement(head: RunHead, asked: PlacementRequest | None) -> PlacementRequest | None:
    """Return the placement a run was begun with; raises BadInput where another one is requested.

    What is not requested is as it was. Arguments for the launcher may be others: they change no rank.
    """
    recorded = recorded_placement(head)
    if asked is None:
        return recorded
    if recorded is None or not _agrees(asked, recorded):
        raise BadInput(
            f"the ranks of run {head.run!r} were started in another way",
            cause="its attempts would not have the same ranks",
            next_step="leave out --on, --nodes and --ranks, or begin a new run without --resume",
        )
    return replace(recorded, arguments=asked.arguments or recorded.arguments)


def _agrees(asked: PlacementRequest, recorded: PlacementRequest) -> bool:
    """Return whether what is requested is as it was."""
    pairs = ((asked.ranks, recorded.ranks), (asked.nodes, recorded.nodes), (asked.scratch, recorded.scratch))
    return asked.on == recorded.on and all(one in (None, other) for one, other in pairs)
