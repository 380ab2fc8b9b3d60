"""Begin a new run in a new folder, or resume one that was cut short as it was begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from vdbg_env import __version__
from vdbg_env.application.ports.places import DISK_FLOOR, StepPlace
from vdbg_env.application.ports.steps import Clock
from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.application.run.gather_facts import gather_facts
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.pseudonyms import has_pseudonym, pseudonyms
from vdbg_env.application.run.request import RunbookRequest, prepare
from vdbg_env.application.run.run_context import RunOrder
from vdbg_env.application.run.target import container_record
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.yaml_source import YamlSource
from vdbg_env.record.codec import to_document
from vdbg_env.record.redaction.redaction import Pseudonyms, Redactor
from vdbg_env.record.redaction.secrets import as_literals, secret_values
from vdbg_env.record.run_directory import RunDirectory, RunHead, part_of
from vdbg_env.record.runs import find_run, runs_home
from vdbg_env.runbook.machine import transitions
from vdbg_env.runbook.machine.inputs import final_inputs
from vdbg_env.runbook.machine.plan import unattended
from vdbg_env.runbook.machine.requirements import unmet
from vdbg_env.runbook.model import Data, Runbook
from vdbg_env.runbook.state import Facts
from vdbg_env.runbook.workload import server
from vdbg_env.runbook.workload.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class ReadyRun:
    """A run that can be executed, and what must not be kept of it: `sensitive` are the values of sensitive inputs.

    `runbooks` are the texts to be kept with a new run, by their names in it.
    """

    order: RunOrder
    runbook: Runbook
    redactor: Redactor
    sensitive: tuple[str, ...]
    runbooks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a run is begun with besides the request; `environment` is that of this process, not of the place."""

    library: RunbookLibrary
    project: YamlSource | None
    environment: Mapping[str, str]
    place: StepPlace
    host: ThisHost
    clock: Clock
    interactive: bool


def begin(request: RunbookRequest, given: Beginning) -> ReadyRun:
    """Return a new run, or the one to be resumed; raises BadInput, BadDocument and HostNotAble."""
    if request.resume:
        return _resumed(request, given)
    place, environment = given.place, given.environment
    runbook, inputs = prepare(request, given.library, environment, given.project, given.host)
    _check_port(request, runbook, inputs, given.host)
    workload = inputs.workload.argv
    facts = gather_facts(request, place, runbook, workload, interactive=given.interactive)
    _check_attended(request, runbook, inputs, facts)
    names = pseudonyms(given.host, {**place.environment, **environment}) if request.pseudonyms else None
    redactor, sensitive = _redactor(runbook, inputs, environment, names, place)
    started = datetime.fromtimestamp(given.clock.wall(), UTC)
    name = f"{started:%Y%m%d-%H%M%S}-{runbook.name}-{given.host.token()}"
    directory = RunDirectory(request.run_dir or runs_home(environment) / name)
    no_run_in(directory, request.runbook)
    if not request.replay:
        _check_requirements(runbook, facts, directory.free_space())
        _check_room(request, directory)
    head = RunHead(
        run=directory.path.name,
        runbook=runbook.name,
        runbook_file=given.library.full_path(runbook.file),
        digest=runbook.digest,
        started=started.isoformat(timespec="seconds"),
        workload=redactor.argv(workload),
        inputs=_redacted_inputs(runbook, inputs, redactor),
        facts=to_document(facts),
        tool_version=__version__,
        host=redactor.text(given.host.name()),
        environment=place.in_words,
        **container_record(place, redactor),
        placement=request.placement.document() if request.placement else {},
        pseudonyms=request.pseudonyms,
        disk_floor=request.disk_floor,
        folder=place.folder if redactor.text(place.folder) == place.folder else "",
    )
    ready = _ready(directory, head, runbook, inputs, facts, given.library, request, redactor, sensitive)
    kept = given.library.kept_texts(request.runbook)
    # One with a secret is read from its file again, or the record would hold it.
    return ready if any(redactor.text(text) != text for text in kept.values()) else replace(ready, runbooks=kept)


def no_run_in(directory: RunDirectory, runbook: str) -> None:
    """Raise BadInput for a folder that has a run."""
    if directory.exists:
        raise BadInput(
            f"{directory.path} has a run already",
            next_step=f"vdbg-env runbook {runbook} --resume {directory.path}, or another --run-dir",
        )


def _check_port(request: RunbookRequest, runbook: Runbook, inputs: Inputs, host: ThisHost) -> None:
    """Raise BadInput where another server listens already where the workload, on this machine, is to listen."""
    on = request.placement.on if request.placement else "local"
    if request.replay or request.at_once or request.container or on != "local" or not inputs.workload.serves:
        return
    url = str(inputs.get("url") or server.url(inputs.workload.argv))
    if whose := host.listener(url):
        raise BadInput(
            whose,
            cause="the workload could not listen there, or would share the port and its requests with that server",
            next_step=f"vdbg-env runbook {runbook.name} -i port=auto -- COMMAND",
        )


def _check_attended(request: RunbookRequest, runbook: Runbook, inputs: Inputs, facts: Facts) -> None:
    """Raise BadInput where no one can be asked what this run would have to ask, such as for requests."""
    if facts.interactive or request.replay or request.at_once:
        return
    if why := unattended(runbook, inputs, facts):
        raise BadInput(
            why,
            cause="--batch, or there is no terminal",
            next_step=f"vdbg-env runbook {runbook.name} -i request=synthetic -- COMMAND; or -i request=FILE, which "
            "vdbg-env capture records",
        )


def _check_requirements(runbook: Runbook, facts: Facts, free_disk: int) -> None:
    missing = unmet(runbook.requires, facts, free_disk=free_disk)
    if missing:
        what = f"this host lacks what runbook {runbook.name!r} requires"
        raise HostNotAble(what, details=missing, next_step="vdbg-env doctor, or another --run-dir for the record")


def _check_room(request: RunbookRequest, directory: RunDirectory) -> None:
    """Raise HostNotAble where the run's first step would not be started."""
    free, floor = directory.free_space(), _floor(request)
    if free < floor:
        raise HostNotAble(
            f"{free >> 20} MiB are free on the disk of {directory.path}, and no step starts below {floor >> 20} MiB",
            cause="a step that fills the disk would lose its record and its dumps",
            next_step="make room, give another --run-dir, or a lower floor: --disk-floor 200m",
        )


def _floor(request: RunbookRequest) -> int:
    """Return the free space below which no step is started: a guard's command always is."""
    if request.at_once or request.replay:
        return 0
    return DISK_FLOOR if request.disk_floor is None else request.disk_floor


def _resumed(request: RunbookRequest, given: Beginning) -> ReadyRun:
    """Return the run as it was begun: its facts and its recorded inputs, with the redacted ones given again."""
    place, environment = given.place, given.environment
    directory = find_run(request.resume or "", environment)
    head = directory.read_head()
    if head.runbook != request.runbook:
        raise BadInput(
            f"run {head.run!r} is a run of runbook {head.runbook!r}",
            next_step=f"vdbg-env runbook {head.runbook} --resume {request.resume}",
        )
    if head.recorded_on:
        raise BadInput(
            f"run {head.run!r} is a replay of a recording, and its next step would be run here for real",
            next_step=f"vdbg-env runbook {head.runbook} --replay DIR plays it again from its beginning",
        )
    runbook = given.library.load_recorded(head)
    if runbook.digest != head.digest:
        raise BadInput(
            f"runbook {runbook.name!r} has changed since run {head.run!r} was begun",
            cause="its recorded steps would be judged by other rules",
            next_step=f"vdbg-env runbook {runbook.name} begins anew",
        )
    names = pseudonyms(given.host, {**place.environment, **environment}) if head.pseudonyms else None
    inputs = _inputs_again(request, runbook, head, environment, names)
    redactor, sensitive = _redactor(runbook, inputs, environment, names, place)
    facts = part_of(head, "facts", Facts)
    if place.on == "slurm" and place.nodes != facts.nodes:
        raise BadInput(
            f"run {head.run!r} was begun on {facts.nodes} nodes, and this allocation has {place.nodes}",
            cause="its steps would be compared with steps on other ranks",
            next_step=f"salloc --nodes {facts.nodes}, and there continue with --resume",
        )
    return _ready(directory, head, runbook, inputs, facts, given.library, request, redactor, sensitive)


def _inputs_again(
    request: RunbookRequest,
    runbook: Runbook,
    head: RunHead,
    environment: Mapping[str, str],
    names: Pseudonyms | None,
) -> dict[str, Data]:
    """Return the recorded inputs; those that were redacted have to be given again."""
    inputs: dict[str, Data] = {name: head.inputs.get(name) for name in runbook.inputs}
    lost = [name for name, value in inputs.items() if _is_lost(json.dumps(value), head)]
    if not lost:
        return inputs
    try:
        fresh = final_inputs(runbook, request.inputs, request.argv, environment)
    except BadInput as error:
        raise BadInput(
            f"the record of run {head.run!r} has no secrets, and its input {lost[0]!r} had one"
            if not head.pseudonyms
            else f"the record of run {head.run!r} has no secret and no host, and its input {lost[0]!r} had one",
            next_step=f"give it again: vdbg-env runbook {runbook.name} --resume {request.resume} -- COMMAND ...",
        ) from error
    redactor, _ = _redactor(runbook, fresh, environment, names)
    redacted = _redacted_inputs(runbook, fresh, redactor)
    for name in lost:
        if redacted[name] != inputs[name]:
            raise BadInput(
                f"input {name!r} differs from the one that run {head.run!r} was begun with",
                next_step="give the same command line, or begin a new run without --resume",
            )
        inputs[name] = fresh[name]
    return inputs


def _is_lost(recorded: str, head: RunHead) -> bool:
    return "[redacted" in recorded or (head.pseudonyms and has_pseudonym(recorded))


def _ready(
    directory: RunDirectory,
    head: RunHead,
    runbook: Runbook,
    inputs: Mapping[str, Data],
    facts: Facts,
    library: RunbookLibrary,
    request: RunbookRequest,
    redactor: Redactor,
    sensitive: tuple[str, ...],
) -> ReadyRun:
    order = RunOrder(
        directory=directory,
        head=head,
        state=transitions.start(runbook, inputs, facts)[0],
        start_branch=library.branching(inputs, facts),
        total_s=request.total_s,
        disk_floor=_floor(request),
    )
    return ReadyRun(order=order, runbook=runbook, redactor=redactor, sensitive=sensitive)


def _redactor(
    runbook: Runbook,
    inputs: Mapping[str, Data],
    environment: Mapping[str, str],
    names: Pseudonyms | None,
    place: StepPlace | None = None,
) -> tuple[Redactor, tuple[str, ...]]:
    of_place = secret_values(place.environment) if place else ()
    sensitive = tuple(str(inputs[name]) for name, wanted in runbook.inputs.items() if wanted.sensitive and inputs[name])
    argv = [str(word) for value in inputs.values() if isinstance(value, list) for word in value]
    return Redactor((*as_literals(sensitive), *secret_values(environment, argv), *of_place), names), sensitive


def _redacted_inputs(runbook: Runbook, inputs: Mapping[str, Data], redactor: Redactor) -> dict[str, Data]:
    redacted: dict[str, Data] = {}
    for name, value in inputs.items():
        if runbook.inputs[name].sensitive and value:
            redacted[name] = "[redacted value]"
        elif isinstance(value, list):
            redacted[name] = list(redactor.argv([str(word) for word in value]))
        else:
            redacted[name] = redactor.text(value) if isinstance(value, str) else value
    return redacted
