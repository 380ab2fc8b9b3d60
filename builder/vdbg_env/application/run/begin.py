"""Makes a run out of a request: a new one with a folder of its own, or one that was cut short, as it was begun."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vdbg_env import __version__
from vdbg_env.application.run.execute import RunOrder
from vdbg_env.application.run.gather_facts import gather_facts
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.pseudonyms import holds_stand_in, pseudonyms
from vdbg_env.application.run.request import RunbookRequest, prepare
from vdbg_env.application.run.target import StepPlace, container_record
from vdbg_env.common.errors import BadInput, HostNotAble, nearest
from vdbg_env.record.codec import from_document, to_document
from vdbg_env.record.redaction.redaction import Pseudonyms, Redactor
from vdbg_env.record.redaction.secrets import as_literals, secret_values
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.runbook.machine import transitions
from vdbg_env.runbook.machine.inputs import final_inputs
from vdbg_env.runbook.machine.requirements import unmet
from vdbg_env.runbook.model import Data, Runbook
from vdbg_env.runbook.state import BranchTo, Facts, RunState

RUNS_VARIABLE = "VDBG_ENV_RUNS"
RUNS_FOLDER = "vdbg-runs"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run ready to go, and what must not be kept of it: `sensitive` are the values of sensitive inputs."""

    order: RunOrder
    runbook: Runbook
    redactor: Redactor
    sensitive: tuple[str, ...]


def runs_home(environment: Mapping[str, str]) -> Path:
    """Return the folder runs are kept in: that of VDBG_ENV_RUNS, else `vdbg-runs` here."""
    return Path(environment.get(RUNS_VARIABLE) or RUNS_FOLDER)


def find_run(name: str, environment: Mapping[str, str]) -> RunDirectory:
    """Return a run by its name in the runs' folder, or by its path; raises BadInput with the nearest name."""
    home = runs_home(environment)
    for path in (home / name, Path(name)):
        if (path / "run.json").is_file():
            return RunDirectory(path.resolve())
    known = [p.name for p in home.iterdir() if (p / "run.json").is_file()] if home.is_dir() else []
    close = nearest(name, known)
    hint = f" (did you mean {close!r}?)" if close else ""
    raise BadInput(f"no run {name!r} in {home}{hint}", next_step="vdbg-env runs list")


def begin(
    request: RunbookRequest,
    library: RunbookLibrary,
    environment: Mapping[str, str],
    place: StepPlace,
    *,
    interactive: bool,
) -> Begun:
    """Return a new run, or the one to be resumed; `environment` is that of this program, not of the place.

    Raises BadInput, BadDocument and HostNotAble.
    """
    if request.resume:
        return _resumed(request, library, environment, place)
    prepared = prepare(request, library, environment)
    workload = prepared.inputs.workload.argv
    facts = gather_facts(request, place, prepared.runbook, workload, interactive=interactive)
    names = pseudonyms({**place.environment, **environment}) if request.pseudonyms else None
    redactor, sensitive = _redactor(prepared.runbook, prepared.inputs, environment, names, place)
    started = datetime.now(UTC)
    name = f"{started:%Y%m%d-%H%M%S}-{prepared.runbook.name}-{secrets.token_hex(2)}"
    path = request.run_dir or runs_home(environment) / name
    if (path / "run.json").exists():
        raise BadInput(
            f"{path} holds a run already",
            next_step=f"vdbg-env runbook {request.runbook} --resume {path}, or another --run-dir",
        )
    if not request.replay:
        _check_requirements(prepared.runbook, facts, path.absolute())
    directory = RunDirectory(path.absolute())
    head = RunHead(
        run=path.name if request.run_dir else name,
        runbook=prepared.runbook.name,
        runbook_file=prepared.runbook.file,
        digest=prepared.runbook.digest,
        started=started.isoformat(timespec="seconds"),
        workload=redactor.argv(workload),
        inputs=_redacted_inputs(prepared.runbook, prepared.inputs, redactor),
        facts=to_document(facts),
        tool_version=__version__,
        host=redactor.text(socket.gethostname()),
        environment=place.in_words,
        **container_record(place, redactor),
        pseudonyms=request.pseudonyms,
    )
    return _begun(directory, head, prepared.runbook, prepared.inputs, facts, library, request, redactor, sensitive)


def _check_requirements(runbook: Runbook, facts: Facts, record: Path) -> None:
    there = next(folder for folder in (record, *record.parents) if folder.is_dir())
    missing = unmet(runbook.requires, facts, free_disk=shutil.disk_usage(there).free)
    if missing:
        what = f"this host lacks what runbook {runbook.name!r} requires"
        raise HostNotAble(what, details=missing, next_step="vdbg-env doctor, or another --run-dir for the record")


def _resumed(
    request: RunbookRequest, library: RunbookLibrary, environment: Mapping[str, str], place: StepPlace
) -> Begun:
    """Return the run as it was begun: its facts, and its inputs as recorded, with what was redacted given anew."""
    directory = find_run(request.resume or "", environment)
    head = directory.read_head()
    if head.runbook != request.runbook:
        raise BadInput(
            f"run {head.run!r} is one of runbook {head.runbook!r}",
            next_step=f"vdbg-env runbook {head.runbook} --resume {request.resume}",
        )
    runbook = library.load(head.runbook_file if Path(head.runbook_file).is_file() else head.runbook)
    if runbook.digest != head.digest:
        raise BadInput(
            f"runbook {runbook.name!r} has changed since run {head.run!r} was begun",
            cause="its recorded steps would be judged by other rules",
            next_step=f"vdbg-env runbook {runbook.name} begins anew",
        )
    names = pseudonyms({**place.environment, **environment}) if head.pseudonyms else None
    inputs = _inputs_again(request, runbook, head, environment, names)
    redactor, sensitive = _redactor(runbook, inputs, environment, names, place)
    facts = from_document(Facts, head.facts)
    return _begun(directory, head, runbook, inputs, facts, library, request, redactor, sensitive)


def _inputs_again(
    request: RunbookRequest,
    runbook: Runbook,
    head: RunHead,
    environment: Mapping[str, str],
    names: Pseudonyms | None,
) -> dict[str, Data]:
    """Return the recorded inputs; those that were redacted must come from the command line or the environment again."""
    inputs: dict[str, Data] = {name: head.inputs.get(name) for name in runbook.inputs}
    lost = [name for name, value in inputs.items() if _is_lost(json.dumps(value), head)]
    if not lost:
        return inputs
    try:
        fresh = final_inputs(runbook, request.inputs, request.argv, environment)
    except BadInput as error:
        raise BadInput(
            f"the record of run {head.run!r} holds no secrets, and its input {lost[0]!r} had one"
            if not head.pseudonyms
            else f"the record of run {head.run!r} holds no secret and no host, and its input {lost[0]!r} had one",
            next_step=f"give it again: vdbg-env runbook {runbook.name} --resume {request.resume} -- COMMAND ...",
        ) from error
    redactor, _ = _redactor(runbook, fresh, environment, names)
    redacted = _redacted_inputs(runbook, fresh, redactor)
    for name in lost:
        if redacted[name] != inputs[name]:
            raise BadInput(
                f"input {name!r} is another one than run {head.run!r} was begun with",
                next_step="give the same command line, or begin a new run without --resume",
            )
        inputs[name] = fresh[name]
    return inputs


def _is_lost(recorded: str, head: RunHead) -> bool:
    return "[redacted" in recorded or (head.pseudonyms and holds_stand_in(recorded))


def _begun(
    directory: RunDirectory,
    head: RunHead,
    runbook: Runbook,
    inputs: Mapping[str, Data],
    facts: Facts,
    library: RunbookLibrary,
    request: RunbookRequest,
    redactor: Redactor,
    sensitive: tuple[str, ...],
) -> Begun:
    def start_branch(branch: BranchTo) -> RunState:
        """Start another runbook on the same workload; inputs it shares keep their values, the others their defaults."""
        other = library.load(branch.runbook)
        own = {name: inputs.get(name, wanted.default) for name, wanted in other.inputs.items()}
        return transitions.start(other, own, facts, came_from=branch.came_from)[0]

    order = RunOrder(
        directory=directory,
        head=head,
        state=transitions.start(runbook, inputs, facts)[0],
        start_branch=start_branch,
        total_s=request.total_s,
    )
    return Begun(order=order, runbook=runbook, redactor=redactor, sensitive=sensitive)


def _redactor(
    runbook: Runbook,
    inputs: Mapping[str, Data],
    environment: Mapping[str, str],
    names: Pseudonyms | None,
    place: StepPlace | None = None,
) -> tuple[Redactor, tuple[str, ...]]:
    of_place = secret_values(place.environment) if place else ()
    sensitive = tuple(str(inputs[name]) for name, wanted in runbook.inputs.items() if wanted.sensitive and inputs[name])
    return Redactor((*as_literals(sensitive), *secret_values(environment), *of_place), names), sensitive


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
