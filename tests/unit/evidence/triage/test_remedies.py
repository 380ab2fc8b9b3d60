"""Remedies belong to a signature and to the releases that have them."""

import re

import pytest

from vdbg_env.application.analysis.triage import rule_book
from vdbg_env.application.knowledge.load import shipped_knowledge
from vdbg_env.evidence.knowledge.surface_table import version_key
from vdbg_env.evidence.triage.classifier import LogClassifier
from vdbg_env.evidence.triage.rules import Remedy
from vdbg_env.evidence.triage.verdict import Triage, judge
from vdbg_env.report.triage import triage_text

BOOK = rule_book()
REMEDIES = [(rule.id, remedy) for rule in BOOK.rules for remedy in rule.remedies]


def triage(text: str) -> Triage:
    classifier = LogClassifier(BOOK, "a.log")
    classifier.feed(text.encode())
    return judge([classifier.finish()], BOOK.classes)


@pytest.mark.parametrize(("rule", "remedy"), REMEDIES, ids=lambda x: x if isinstance(x, str) else x.do[:20])
def test_what_a_remedy_names_is_in_every_release_it_is_for(rule: str, remedy: Remedy) -> None:
    table = shipped_knowledge().surface
    named = [n for n in re.findall(r"VLLM_[A-Z_]+|--[a-z][a-z-]+", remedy.do) if remedy.program == "vLLM"]
    for name in named:
        for release in table.releases:
            key = version_key(release)
            after = remedy.since is None or key >= version_key(remedy.since)
            if after and (remedy.until is None or key < version_key(remedy.until)):
                assert release in table.names.get(name, ()), f"{rule}: {name} is not in {release}"
        if remedy.since and remedy.since != table.releases[0]:
            assert version_key(table.names[name][0]) >= version_key(remedy.since), f"{rule}: {name} is older"


HANG = "INFO 11-03 23:14:03 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds.\n" * 3
BEGIN = "(EngineCore pid=7) INFO 11-03 23:10:03 [core.py:1] Initializing a V1 LLM engine (v{}) with config: x\n"


def test_a_remedy_of_another_release_is_not_offered() -> None:
    for release, offered in (("0.33.0", True), ("0.33.1", True), ("0.32.0", False), ("0.9.2", False)):
        found = triage(BEGIN.format(release) + HANG)
        assert bool(found.remedies) == offered, release
    (remedy,) = triage(HANG).remedies  # the release is not known: it is offered with its range
    assert "try: --watchdog-config" in triage_text(triage(HANG), None)
    assert remedy.releases == "vLLM from 0.33.0"


def test_a_remedy_of_another_program_gives_its_range() -> None:
    found = triage(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n"
    )
    assert [r.releases for r in found.remedies] == ["PyTorch from 2.9", "PyTorch before 2.9"]
