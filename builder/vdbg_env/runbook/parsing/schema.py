"""The shape of a runbook file and of a shared step's file; the published JSON Schema is generated from it.

What the models cannot say (names that resolve, steps that are reached) is proven by `vdbg_env.runbook.lint.checks`. The
envelope is Kubernetes': its editors and linters know it, and it gives a version to migrate from.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from vdbg_env.runbook.parsing.schema_step import (
    AnyStep,
    Duration,
    Env,
    Kill,
    LibraryStep,
    Matcher,
    Name,
    Output,
    Part,
    Size,
    Text,
    Watch,
    variable_name,
)

SCHEMA_FILE = "runbook-v1.schema.json"


class Input(Part):
    """A value the user gives."""

    type: Literal["string", "int", "float", "bool", "path", "array"]
    description: Text | None = None
    required: bool = False
    default: Any = None
    from_env: Annotated[str, BeforeValidator(variable_name)] | None = None
    sensitive: bool = False


class Ready(Part):
    """How a server says that it is ready."""

    http: Text
    timeout: Duration = 900.0


class Driver(Part):
    """How a server is driven: wait for it, replay recorded requests, stop it."""

    replay: Text
    ready: Ready


class Command(Part):
    """The command that steps start with their deltas, and the limits they inherit."""

    argv: Text | Annotated[list[str], Field(min_length=1)]
    env: Env = Field(default_factory=dict)
    driver: Driver | None = None
    timeout: Duration | None = None
    kill: Kill | None = None
    watch: Watch | None = None
    output: Output | None = None


class Requires(Part):
    """What must be there before anything starts."""

    tools: list[Text] = Field(default_factory=list)
    free_disk: Size | None = None
    gpu: bool = False
    lineinfo: bool = False


class Metadata(Part):
    """What the file is called, and what it is for."""

    name: Name
    title: Text
    description: Text | None = None
    labels: list[Name] = Field(default_factory=list)
    sources: list[Text] = Field(default_factory=list)


class Spec(Part):
    """What a runbook does."""

    requires: Requires = Requires()
    inputs: dict[Name, Input] = Field(default_factory=dict)
    matchers: dict[Name, Matcher] = Field(default_factory=dict)
    commands: dict[Name, Command] = Field(default_factory=dict)
    steps: Annotated[list[AnyStep], Field(min_length=1)]


class RunbookFile(Part):
    """A runbook: steps that lead to one another by what was seen."""

    model_config = ConfigDict(title="vdbg-env runbook")

    apiVersion: Literal["vdbg-env/v1"]  # noqa: N815  Kubernetes' spelling
    kind: Literal["Runbook"]
    metadata: Metadata
    spec: Spec


class StepFile(Part):
    """A shared step of runbooks/lib, taken into a runbook by `from:`."""

    model_config = ConfigDict(title="vdbg-env shared step")

    apiVersion: Literal["vdbg-env/v1"]  # noqa: N815
    kind: Literal["Step"]
    metadata: Metadata
    spec: LibraryStep


def json_schema() -> dict[str, Any]:
    """Return the published JSON Schema (draft 2020-12) of both kinds of file."""
    either = Annotated[RunbookFile | StepFile, Field(discriminator="kind")]
    schema = TypeAdapter(either).json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://vdbg-env.invalid/{SCHEMA_FILE}",
        "title": "vdbg-env runbook or shared step, version 1",
        **schema,
    }
