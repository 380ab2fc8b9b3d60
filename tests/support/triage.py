"""Runs triage over bytes in this process, and knows the labelled corpus."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from vdbg_env.evidence.finding import UNKNOWN
from vdbg_env.evidence.triage_rules import RuleBook, rule_book
from vdbg_env.evidence.triage_scan import LogClassifier
from vdbg_env.evidence.triage_verdict import Triage, judge

SHOWS_NOTHING = {"dev/benign-empty.log", "dev/benign-binary-junk.log"}
LOGS = Path(__file__).parents[1] / "data" / "logs"


@dataclass(frozen=True)
class Labelled:
    """One log of the corpus: what failed, every 1-based line that is right as the root, where its wording is from."""

    file: str
    failure: str
    root: tuple[int, ...]
    source: str

    def right_class(self, verdict: Triage) -> bool:
        """Whether the class is right; of a log that shows nothing at all it is also right to call it unknown."""
        return verdict.failure.name in {self.failure, UNKNOWN if self.file in SHOWS_NOTHING else self.failure}

    def right_line(self, verdict: Triage) -> bool:
        """Whether the root is right; labels without a line were made when only failures of the GPU had one."""
        line = verdict.root_cause.line if verdict.root_cause else None
        return self.right_class(verdict) and (not self.root or line in self.root)

    @property
    def held_out(self) -> bool:
        return self.file.startswith("held-out/")

    def read(self) -> bytes:
        return (LOGS / self.file).read_bytes()


@cache
def shipped() -> RuleBook:
    return rule_book()


@cache
def corpus() -> list[Labelled]:
    return list(_entries())


def triage_bytes(
    *logs: bytes, chunk: int = 1 << 20, names: tuple[str, ...] = (), book: RuleBook | None = None
) -> Triage:
    """Triage logs given as bytes, fed in chunks of `chunk` bytes."""
    book = book or shipped()
    evidence = []
    for index, data in enumerate(logs):
        classifier = LogClassifier(book, names[index] if names else f"log{index}")
        for at in range(0, len(data), chunk):
            classifier.feed(data[at : at + chunk])
        evidence.append(classifier.finish())
    return judge(evidence, book)


def _entries() -> Iterator[Labelled]:
    for entry in yaml.load((LOGS / "labels.yaml").read_text(), yaml.CSafeLoader)["logs"]:
        yield Labelled(entry["file"], entry["class"], tuple(entry["root"]), entry["source"])
