"""The shape of the triage files under runbooks/triage, as YAML validates against it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import re2
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Role = Literal[
    "root", "messenger", "stall", "exception", "cascade", "victim", "shutdown", "ready", "begin", "progress", "well",
    "dismiss", "ignored", "detail", "setting",
]  # fmt: skip

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8 << 20

_PRECISION = {"root": 50, "messenger": 30, "stall": 20, "exception": 15, "cascade": 10}
# Fitted on published logs: how often an answer by such a line was right, see docs/10-triage-score.md.
_CONFIDENCE = {"root": 0.96, "messenger": 0.85, "stall": 0.85, "exception": 0.96, "cascade": 0.4}


def compile_pattern(pattern: str) -> Any:
    """Compile one pattern with RE2; raises re2.error for what it refuses (back references, look-around)."""
    return re2.compile(pattern, _OPTIONS)


def _compiled(pattern: object) -> Any:
    if pattern is not None and not isinstance(pattern, str):
        raise ValueError("a pattern is a text")
    try:
        return pattern and compile_pattern(pattern)
    except re2.error as error:
        raise ValueError(f"this pattern is refused by RE2: {str(error.args[0], 'utf-8', 'replace')}") from None


Named = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Pattern = Annotated[Any, BeforeValidator(_compiled)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ClassDocument(_Strict):
    """A class of failure; `follows` are the classes it may be an effect of.

    `runbook` is its name unless said otherwise; `none` is for no runbook, which is None.
    """

    name: Named
    title: str
    follows: frozenset[Named]
    runbook: Annotated[str | None, AfterValidator(lambda name: None if name == "none" else name)] = Field(
        default_factory=lambda given: given["name"]
    )
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
    """One rule. A line meets it when it holds one of the literals, then `regex` (if any), and not `unless` (if any).

    `bare`: the patterns apply to the line without its level and logger; `^` is where the message begins.
    `hardware`: the machine itself is at fault, which outranks whatever else was seen. `survivable` is that of its class
    unless a rule says otherwise. `needs`: the rule counts only in a log that meets the rule of this name too.

    `process` is the process whose death the line reports, where that is not the one that wrote it; the pattern's groups
    `process` and `rank` say the same. `title` says what happened, for a class that is too wide to say it; `fix` is what
    to type or to change, with the pattern's groups in braces.
    """

    id: Named
    failure: Named | None = Field(default=None, alias="class")
    role: Role = "root"
    literals: Annotated[tuple[Annotated[str, Field(min_length=4)], ...], Field(min_length=1, alias="text")]
    regex: Pattern = None
    unless: Pattern = None
    bare: bool = False
    hardware: bool = False
    survivable: bool | None = None
    needs: Named | None = None
    process: str | None = None
    title: str | None = None
    fix: str | None = None
    levels: Literal["failing", "any"] = "failing"
    how: Literal["log", "driver", "sanitizer", "gpu-core", "kernel-log"] = "log"
    precision: int = Field(default_factory=lambda given: _PRECISION.get(given["role"], 0), ge=0, le=100)
    confidence: float = Field(default_factory=lambda given: _CONFIDENCE.get(given["role"], 0.5), gt=0, le=1)
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
