"""The table of vLLM's names by release: which of the releases looked at has a name, and which no longer has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.common.yaml_source import read, validate

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
