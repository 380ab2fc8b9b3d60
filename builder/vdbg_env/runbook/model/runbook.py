"""A whole runbook: the file as it is written, and the value it becomes once its shared steps are taken in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, TypeAdapter

from vdbg_env.runbook.catalogue import Catalogue
from vdbg_env.runbook.model.fields import ByName, Bytes, Env, Name, Named, Part, Seconds, Text, VariableName
from vdbg_env.runbook.model.limits import KillPolicy, Matcher, OutputPolicy, Placement, ServerDriver, Watch
from vdbg_env.runbook.model.step import AnyStep, LibraryStep, Step

SCHEMA_FILE = "runbook-v1.schema.json"


class Input(Named):
    """A typed value that the user gives; a sensitive one is masked and kept out of the record."""

    type: Literal["string", "int", "float", "bool", "path", "array"]
    description: Text = ""
    required: StrictBool = False
    default: Any = None
    choices: tuple[Text, ...] = ()
    from_env: VariableName | None = None
    sensitive: StrictBool = False


class Command(Named):
    """A command line that steps start with their deltas: a list of words, or one `${{ }}` that gives a list.

    The steps inherit its limits.
    """

    argv: Text | Annotated[tuple[str, ...], Field(min_length=1)]
    driver: ServerDriver | None = None
    env: Env = Field(default_factory=dict)
    timeout_s: Annotated[Seconds | None, Field(alias="timeout")] = None
    kill: KillPolicy = KillPolicy()
    watch: Watch = Watch()
    output: OutputPolicy = OutputPolicy()
    placement: Placement = Placement()


class Requires(Part):
    """What must be there before anything starts."""

    tools: tuple[Text, ...] = ()
    free_disk: Bytes | None = None
    gpu: StrictBool = False
    lineinfo: StrictBool = False


class Metadata(Part):
    """What the file is called, what it is for, and the sources of its remedies."""

    name: Name
    title: Text
    description: Text = ""
    labels: tuple[Name, ...] = ()
    sources: tuple[Text, ...] = ()


class Spec(Part):
    """What a runbook does; the first step is where it starts."""

    requires: Requires = Requires()
    inputs: ByName[Input] = Field(default_factory=dict)
    matchers: ByName[Matcher] = Field(default_factory=dict)
    commands: ByName[Command] = Field(default_factory=dict)
    steps: Annotated[tuple[AnyStep, ...], Field(min_length=1)]


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


class Runbook(Metadata, Spec):
    """A runbook with its shared steps; `digest` is the SHA-256 of its texts, `catalogue` has its built-ins."""

    steps: tuple[Step, ...]
    file: str = ""
    digest: str = ""
    catalogue: Catalogue = Catalogue()

    def step(self, step_id: str) -> Step:
        """Return the step called `step_id`; lint has proven that every name used is there."""
        return next(step for step in self.steps if step.id == step_id)


def json_schema() -> Mapping[str, Any]:
    """Return the published JSON Schema (draft 2020-12) of both kinds of file."""
    either = Annotated[RunbookFile | StepFile, Field(discriminator="kind")]
    schema = TypeAdapter(either).json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://vdbg-env.invalid/{SCHEMA_FILE}",
        "title": "vdbg-env runbook or shared step, version 1",
        **schema,
    }
