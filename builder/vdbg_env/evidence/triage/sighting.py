"""What a rule saw in a log, and what one log showed altogether."""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.evidence.triage.rules import Rule

MAX_TEXT = 600


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A line that meets a rule. `weak`: the line is a warning; `exiting`: an orderly shutdown had begun before it.

    `process` wrote the line, `died` is the one whose death it reports. `kernel_text` is the line that names `kernel`,
    which may be a later one. `fix` is its rule's, with the names that the line has.
    """

    rule: Rule
    file: str
    line: int
    text: str
    process: str | None = None
    died: str | None = None
    rank: int | None = None
    stamp: str | None = None
    kernel: str | None = None
    kernel_text: str | None = None
    fix: str | None = None
    weak: bool = False
    exiting: bool = False
    count: int = 1

    @property
    def failure(self) -> str:
        """The class its rule names; only rules that name one are kept as evidence of a failure."""
        return self.rule.failure or ""


@dataclass(frozen=True, kw_only=True)
class LogEvidence:
    """What one log showed: sightings in order, how many lines it has, whether it ended in order.

    `worked`: it shows that the run did its work at some time; `survived`: how many failures the run continued after.
    `settings` is what the program prints about flags and variables it does not know, `release` is vLLM's.
    """

    file: str
    lines: int
    sightings: tuple[Sighting, ...] = ()
    cascades: tuple[Sighting, ...] = ()
    victims: tuple[Sighting, ...] = ()
    shut_down: bool = False
    worked: bool = False
    survived: int = 0
    settings: tuple[str, ...] = ()
    release: str | None = None
    notes: tuple[str, ...] = ()
