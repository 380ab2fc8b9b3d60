"""What the user asked of `vdbg-env runbook`, and what is made of it before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.target import ContainerRequest
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadInput
from vdbg_env.runbook.machine.inputs import final_inputs
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.workload.inputs import Inputs

PROJECT_FILE = "vdbg.yaml"


@dataclass(frozen=True, kw_only=True)
class RunbookRequest:
    """The flags of `vdbg-env runbook`, as given; `total_s` in seconds, `container` None where steps run here."""

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
    json: bool = False
    pseudonyms: bool = False


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A linted runbook with its final inputs; `argv_from` says where the workload's command line came from."""

    runbook: Runbook
    inputs: Inputs
    argv_from: Literal["command line", "vdbg.yaml", "nowhere"]


class _Workload(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    argv: list[str] = Field(min_length=1)


class _Project(BaseModel):
    """The part of a project's `vdbg.yaml` that runbooks read; other commands have keys of their own there."""

    model_config = ConfigDict(extra="ignore", strict=True)
    workload: _Workload | None = None
    inputs: dict[str, str] = {}


def prepare(
    request: RunbookRequest, library: RunbookLibrary, environment: Mapping[str, str], *, project: Path | None = None
) -> PreparedRun:
    """Find and lint the runbook and make its inputs final.

    Without a command line the workload of `vdbg.yaml` in the current folder is taken. Raises BadInput and BadDocument.
    """
    runbook = library.load(request.runbook)
    ours = _project((project or Path()) / PROJECT_FILE)
    argv, argv_from = request.argv, "command line" if request.argv else "nowhere"
    if not argv and ours.workload:
        argv, argv_from = tuple(ours.workload.argv), "vdbg.yaml"
    given = {name: text for name, text in ours.inputs.items() if name in runbook.inputs} | dict(request.inputs)
    inputs = final_inputs(runbook, given, argv, environment)
    return PreparedRun(runbook=runbook, inputs=inputs, argv_from=argv_from)  # type: ignore[arg-type]


def _project(path: Path) -> _Project:
    if not path.is_file():
        return _Project()
    try:
        with path.open("rb") as file:
            data = file.read(yaml_source.MAX_BYTES + 1)  # one more, so that a longer file is refused
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    return yaml_source.validate(_Project, yaml_source.read(data, str(path)))
