"""The shape of the triage files under runbooks/triage, as YAML validates against it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Role = Literal[
    "root", "messenger", "stall", "exception", "cascade", "victim", "shutdown", "ready", "begin", "progress", "well",
    "dismiss", "ignored", "detail", "setting",
]  # fmt: skip

Named = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ClassDocument(_Strict):
    """One failure class; `runbook` is its name unless said otherwise, `none` for no runbook."""

    name: Named
    title: str
    follows: list[Named]
    runbook: str | None = None
    cleared_by_start: bool = False
    survivable: bool = False
    at_exit: bool = False
    settle: str


class ClassesDocument(_Strict):
    """classes.yaml."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageClasses"]
    classes: list[ClassDocument]


class SourceDocument(_Strict):
    """The source of a rule's wording."""

    program: str
    file: str
    version: str


class RemedyDocument(_Strict):
    """What to do about some signatures or classes, in releases of `program` from `since` on and before `until`."""

    signatures: list[Named] = []
    classes: list[Named] = []
    do: Annotated[str, Field(min_length=10)]
    program: str = "vLLM"
    since: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] | None = None
    until: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] | None = None
    source: Annotated[str, Field(min_length=4)]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not (self.signatures or self.classes):
            raise ValueError("a remedy names the signatures or the classes that it is for")
        if not (self.since or self.until):
            raise ValueError("a remedy names the first release that it is for, or the first that it is not for")
        return self


class RemediesDocument(_Strict):
    """remedies-*.yaml."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageRemedies"]
    remedies: list[RemedyDocument]


class RuleDocument(_Strict):
    """One rule. A line meets it when it holds one of `text`, then `regex` (if any), and not `unless` (if any).

    `bare`: the patterns apply to the line without its level and logger; `^` is where the message begins.
    `hardware`: the machine itself is at fault, which outranks whatever else was seen. `survivable` is that of its class
    unless a rule says otherwise.
    """

    id: Named
    failure: Named | None = Field(default=None, alias="class")
    role: Role = "root"
    text: Annotated[list[Annotated[str, Field(min_length=4)]], Field(min_length=1)]
    regex: str | None = None
    unless: str | None = None
    bare: bool = False
    hardware: bool = False
    survivable: bool | None = None
    levels: Literal["failing", "any"] = "failing"
    how: Literal["log", "driver", "sanitizer", "gpu-core", "kernel-log"] = "log"
    precision: Annotated[int, Field(ge=0, le=100)] | None = None
    confidence: Annotated[float, Field(gt=0, le=1)] | None = None
    repeats: Annotated[int, Field(ge=1)] = 1
    reach: Annotated[int, Field(ge=0, le=50)] = 0
    alternative: Named | None = None
    note: str | None = None
    source: SourceDocument


class RulesDocument(_Strict):
    """Every other file of the folder."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageRules"]
    rules: list[RuleDocument]
