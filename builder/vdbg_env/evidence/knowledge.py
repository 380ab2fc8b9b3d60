"""The shipped knowledge of vLLM's flags and variables: which release has a name, and what to use instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import YamlSource, read, read_tables, validate
from vdbg_env.evidence.triage_rules import Pattern

SCHEMA = "vdbg-env/vllm-surface/v1"

Version = Annotated[str, Field(pattern=r"^\d+(\.\d+){1,3}(\.?(post|rc)\d+)?$")]


def version_key(version: str) -> tuple[int, ...]:
    """Return a key that orders releases (`0.9.2` before `0.10.0`); letters count as nothing."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split("."))


@dataclass(frozen=True, kw_only=True)
class ReleaseTable:
    """Names to the releases (among those looked at) that have them; flags start with `--`."""

    releases: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def span(self, name: str) -> tuple[str, str | None] | None:
        """Return the first release seen with `name`, and the first one without it after that; None if never seen."""
        having = self.names.get(name)
        if not having:
            return None
        later = [r for r in self.releases if version_key(r) > version_key(having[-1])]
        return having[0], later[0] if later else None


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["vdbg-env/vllm-surface/v1"] = Field(alias="schema")
    as_of: str
    releases: list[Version]
    names: dict[str, list[str]]


def read_release_table(text: str | bytes, name: str = "vllm-surface.yaml") -> ReleaseTable:
    """Read the table; raises BadDocument with every place that is wrong."""
    document = validate(_Document, read(text, name))
    spans = {key: tuple(x for x in words if x) for key, words in document.names.items()}
    releases = ordered(set(document.releases))
    return ReleaseTable(releases=releases, names={n: _expand(words, releases) for n, words in spans.items()})


def _expand(words: tuple[str, ...], releases: tuple[str, ...]) -> tuple[str, ...]:
    return ordered(set(words)) if words else releases


def ordered(versions: set[str]) -> tuple[str, ...]:
    """Return releases from the oldest to the newest."""
    return tuple(sorted(versions, key=version_key))


# What is known of a flag or an environment variable: whether a release has it, and what to use instead.


Kind = Literal["variable", "flag"]
Status = Literal["current", "caution", "build-time", "gone", "not-yet", "never-existed", "unknown"]
Level = Literal["ok", "note", "warning", "error"]

_LEVELS: Mapping[Status, Level] = {
    "current": "ok",
    "caution": "warning",
    "build-time": "ok",
    "gone": "error",
    "not-yet": "error",
    "never-existed": "error",
    "unknown": "error",
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class NameRow(_Strict):
    """One name. `until` is the first release without it, `never` that none had it, `build` that it is for building.

    `off` is the value of a variable with which its caution has no object.
    """

    name: str = Field(pattern=r"^(--?[A-Za-z][\w.-]*|[A-Z][A-Z0-9_]*)$")
    kind: Kind
    what: str
    source: str
    owner: str = ""
    since: str | None = None
    until: str | None = None
    replaced_by: str | None = None
    caution: str | None = None
    off: str | None = None
    never: bool = False
    build: bool = False


class NamesDocument(_Strict):
    """One file of names of one owner."""

    schema_: Literal["vdbg-env/names/v1"] = Field(alias="schema")
    as_of: str
    owner: str
    names: list[NameRow]


class Advice(_Strict):
    """One piece of stale advice: how it is recognised, why it is wrong, what to do instead."""

    id: str
    level: Literal["error", "warning"]
    pattern: Pattern
    unless: Pattern = None
    why: str
    instead: str
    source: str

    def met(self, text: str) -> str | None:
        """Return the words that give the advice, None where the text does not."""
        found = self.pattern.search(text)
        return found[0] if found and not (self.unless and self.unless.search(text)) else None


class AdviceDocument(_Strict):
    """advice.yaml."""

    schema_: Literal["vdbg-env/advice/v1"] = Field(alias="schema")
    as_of: str
    advice: tuple[Advice, ...]


@dataclass(frozen=True, kw_only=True)
class NameJudgement:
    """The judgement of one name or one piece of advice; `level` is ok where nothing is wrong."""

    name: str
    status: Status | Literal["advice"]
    level: Level
    message: str
    replaced_by: str | None = None
    source: str | None = None
    what: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """All tables together: rows by name, vLLM's names by release, stale advice."""

    rows: Mapping[str, NameRow]
    surface: ReleaseTable
    advice: tuple[Advice, ...]

    @property
    def newest(self) -> str:
        """The newest vLLM release the table knows."""
        return self.surface.releases[-1]

    def judge_name(self, name: str, vllm: str | None = None) -> NameJudgement:
        """Return what is known of a flag or variable in a vLLM release (by default the newest known).

        A variable of another program that is in no table is `unknown` at level note: those tables are not complete,
        vLLM's own is.
        """
        release = vllm or self.newest
        base = _base_name(name, self.rows)
        row = self.rows.get(base)
        span = self.surface.span(base) or self.surface.span(base.replace("--no-", "--", 1))
        if row is not None:
            return _of_row(name, row, release)
        if span is not None:
            return _of_span(name, span, release)
        return self._unknown(name, base)

    def judge_command(
        self, argv: Sequence[str], env: Mapping[str, str | None], vllm: str | None = None
    ) -> tuple[NameJudgement, ...]:
        """Return what is worth saying of a command and its environment, most grave first; nothing for a sound one."""
        flags = _flags_of(argv) if _is_vllm(argv) else []
        given = {name: value for name, value in env.items() if value is not None}
        judged = [
            self.judge_name(name, vllm) for name in (*flags, *(n for n in given if not self._is_off(n, given[n])))
        ]
        settings = [f"{name}={value}" for name, value in given.items()]
        judged += [j for text in (" ".join(argv), *settings) for j in self.judge_text(text)]
        worth = {(j.name, j.status): j for j in judged if j.level in {"error", "warning"}}
        return tuple(sorted(worth.values(), key=lambda j: j.level != "error"))

    def judge_text(self, text: str) -> tuple[NameJudgement, ...]:
        """Return the stale advice that a text gives, with 1-based line numbers."""
        found = []
        text = text.encode("utf-8", "replace").decode()  # RE2 takes no text with bytes of another encoding
        for number, line in enumerate(text.splitlines(), 1):
            for advice in self.advice:
                words = advice.met(line)
                if words is not None:
                    message = f"{advice.why}; instead: {advice.instead}"
                    found.append(
                        NameJudgement(
                            name=advice.id, status="advice", level=advice.level, message=message,
                            replaced_by=advice.instead, source=advice.source, what=words, line=number,
                        )
                    )  # fmt: skip
        return tuple(found)

    def _is_off(self, name: str, value: str) -> bool:
        row = self.rows.get(name)
        return row is not None and row.caution is not None and row.off == value

    def _unknown(self, name: str, base: str) -> NameJudgement:
        ours = base.startswith(("VLLM_", "--"))
        close = nearest(base, [*self.rows, *self.surface.names], cutoff=0.8)  # for a prefix alone many are alike
        what = f"no vLLM release from {self.surface.releases[0]} to {self.newest} has it" if ours else "in no table"
        level: Level = "error" if base.startswith("VLLM_") else "warning" if ours else "note"
        return NameJudgement(
            name=name,
            status="unknown",
            level=level,
            message=f"{name}: {what}" + (f"; did you mean {close}?" if close else ""),
            replaced_by=close if ours else None,
        )


def read_knowledge(names: Iterable[YamlSource], advice: YamlSource, surface: ReleaseTable) -> Knowledge:
    """Put the tables together; raises BadDocument where one is wrong (patterns have to be RE2's)."""
    rows: dict[str, NameRow] = {}
    for source in names:
        document = validate(NamesDocument, source)
        rows |= {row.name: row.model_copy(update={"owner": document.owner}) for row in document.names}
    return Knowledge(rows=rows, surface=surface, advice=validate(AdviceDocument, advice).advice)


def _of_row(name: str, row: NameRow, release: str) -> NameJudgement:
    ours = row.owner == "vLLM"  # only vLLM's own rows are dated by its releases
    status: Status = "build-time" if row.build else "caution" if row.caution else "current"
    said = row.what
    if row.never:
        status, said = "never-existed", f"never existed: {row.what}"
    elif row.until and (not ours or version_key(release) >= version_key(row.until)):
        status, said = "gone", f"gone since {row.owner} {row.until}: {row.what}"
    elif row.since and ours and version_key(release) < version_key(row.since):
        status, said = "not-yet", f"only since {row.owner} {row.since}: {row.what}"
    elif row.caution:
        said = row.caution
    instead = f"; instead: {row.replaced_by}" if row.replaced_by and _LEVELS[status] != "ok" else ""
    return NameJudgement(
        name=name, status=status, level=_LEVELS[status], message=f"{name}: {said}{instead}",
        replaced_by=row.replaced_by, source=row.source, what=row.what,
    )  # fmt: skip


def _of_span(name: str, span: tuple[str, str | None], release: str) -> NameJudgement:
    first, gone = span
    status: Status = "current"
    message = f"{name}: of vLLM, seen from {first} on"
    if gone and version_key(release) >= version_key(gone):
        status, message = "gone", f"{name}: gone by vLLM {gone}"
    elif version_key(release) < version_key(first):
        status, message = "not-yet", f"{name}: not in vLLM {release}; first seen in {first}"
    return NameJudgement(name=name, status=status, level=_LEVELS[status], message=message, source="vllm-surface.yaml")


def _base_name(name: str, rows: Mapping[str, NameRow]) -> str:
    """`--compilation-config.mode=3` -> `--compilation-config`, `-cc.mode` -> `-cc`, `-O2` -> `-O`."""
    base = name.partition("=")[0]
    if not base.startswith("-"):
        return base
    if base[:2] == "-O" and base[2:].isdigit():
        return "-O"
    base = base.partition(".")[0]
    return base.replace("_", "-") if base not in rows else base


def _flags_of(argv: Sequence[str]) -> list[str]:
    """The flags of a command, without the values that `=` joins to them."""
    words = [word.partition("=")[0] for word in argv]
    return [word for word in words if word.startswith("-") and len(word) > 2 and not word[1:2].isdigit()]


def _is_vllm(argv: Sequence[str]) -> bool:
    """Whether flags of this command are vLLM's own: a script's flags are its author's."""
    words = [word.rsplit("/", 1)[-1] for word in argv[:6]]
    return "vllm" in words or any(word.startswith("vllm.entrypoints") for word in argv[:6])


# The shipped knowledge of flags, variables and stale advice.


_ADVICE, _SURFACE = "advice.yaml", "vllm-surface.yaml"


@cache
def shipped_knowledge() -> Knowledge:
    """Read the shipped tables."""
    folder = SHIPPED_DATA / "images" / "knowledge" / "flags"
    tables = dict(read_tables(folder))
    advice, surface = (str(folder / name) for name in (_ADVICE, _SURFACE))
    return read_knowledge(
        (read(text, name) for name, text in tables.items() if name not in {advice, surface}),
        read(tables[advice], advice),
        read_release_table(tables[surface], surface),
    )


def is_name(word: str) -> bool:
    """Whether a word has the shape of a variable or a flag, and not of a runbook or a step."""
    return re.fullmatch(r"--?[A-Za-z][\w.=-]*|[A-Z][A-Z0-9_]{2,}", word) is not None


def explain_name(name: str, *, vllm: str | None = None) -> str:
    """Return what is known of a flag or variable, as lines for a terminal; raises BadInput for one in no table."""
    knowledge = shipped_knowledge()
    judged: NameJudgement = knowledge.judge_name(name, vllm)
    if judged.status == "unknown":
        raise BadInput(
            f"nothing is known here of {judged.message}",
            cause="a misspelt name, or a variable of a program whose names are not collected here",
            next_step="vdbg-env runbooks list, for the names of runbooks",
        )
    lines = [f"{name}  ({judged.status}, as of vLLM {vllm or knowledge.newest})"]
    lines.append(f"  {judged.what or judged.message}")
    if judged.what and judged.level != "ok":
        lines.append(f"  {judged.message}")
    if judged.replaced_by:
        lines.append(f"  use instead: {judged.replaced_by}")
    if judged.source:
        lines.append(f"  source: {judged.source}")
    return "\n".join(lines) + "\n"
