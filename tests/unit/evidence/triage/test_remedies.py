"""Remedies belong to a signature and to the releases that have them."""

import re

import pytest

from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument, read_tables
from vdbg_env.crash.triage import triage_text
from vdbg_env.evidence.knowledge import shipped_knowledge, version_key
from vdbg_env.evidence.triage_rules import Remedy, read_rule_book, rule_book
from vdbg_env.evidence.triage_scan import LogClassifier
from vdbg_env.evidence.triage_verdict import Triage, judge

BOOK = rule_book()


def shipped_files() -> tuple[tuple[str, bytes], ...]:
    return read_tables(SHIPPED_DATA / "runbooks" / "triage")


def triage(text: str) -> Triage:
    classifier = LogClassifier(BOOK, "a.log")
    classifier.feed(text.encode())
    return judge([classifier.finish()], BOOK)


# The lines that were the root of a published log, by how often; an exception that only Python names has no remedy.
MOST_FREQUENT = [
    "torch-out-of-memory", "torch-illegal-address", "checkpoint-shape", "kernel-assertion", "no-image",
    "kv-cache-too-small", "undefined-symbol", "engine-iteration-timeout", "segfault", "mlir-pass", "inductor",
    "inputs-of-failed-execution", "cublas-status", "nccl-warn", "hub", "shm-broadcast",
    "triton-out-of-resources", "collective-timeout", "shell-segfault", "illegal-instruction",
    "hip-kernel-assertion", "launch-configuration", "disk-full", "port-in-use", "compiler-error",
    "slurm-ended-the-job", "hip-out-of-memory", "free-memory-at-start", "missing-cuda-library", "glibcxx",
    "no-gpu", "cuda-unknown-error", "ecc", "checkpoint-key", "bus-error", "compiler-killed",
    "driver-api-illegal-address", "build-step-failed", "memory-profiling", "torch-nccl-error", "config-file",
    "engine-process-died",
]  # fmt: skip
NO_FAILURE_OF_A_GPU = {"not-a-gpu-failure", "unknown"}
NAME = re.compile(r"(?<![\w-])(?:--[a-z][a-z-]+|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w-])")
# A capability of Linux, a word of the Xid catalogue, and flags of docker, pip, hf and nvidia-smi.
NO_NAMES = {
    "IPC_LOCK",
    "RESTART_APP",
    "--ipc",
    "--shm-size",
    "--gpus",
    "--upgrade",
    "--force-download",
    "--format",
    "--query-gpu",
}


def every_remedy() -> list[tuple[str, Remedy]]:
    of_rules = [(rule.id, remedy) for rule in BOOK.rules for remedy in rule.remedies]
    return of_rules + [(one.name, remedy) for one in BOOK.classes.values() for remedy in one.remedies]


def test_the_most_frequent_signatures_have_a_remedy() -> None:
    rules = {rule.id: rule for rule in BOOK.rules}
    assert [name for name in MOST_FREQUENT if not rules[name].remedies] == []
    assert len(MOST_FREQUENT) >= 40


def test_every_class_of_a_failure_has_a_remedy() -> None:
    assert {name for name, one in BOOK.classes.items() if not one.remedies} == NO_FAILURE_OF_A_GPU


def test_every_remedy_has_a_range_and_a_source_with_a_place() -> None:
    for rule, remedy in every_remedy():
        assert remedy.since or remedy.until, rule
        assert re.search(r"https://|[\w.]+/\w|\(\d\)| manual|documentation|docs|Guide|guide", remedy.source), rule


def test_what_a_remedy_names_is_in_every_release_it_is_for() -> None:
    knowledge = shipped_knowledge()
    table = knowledge.surface
    for rule, remedy in every_remedy():
        for name in set(NAME.findall(remedy.do)) - NO_NAMES:
            if remedy.program != "vLLM" or not (name.startswith("--") or name in table.names):
                if not name.startswith("--"):
                    judged = knowledge.judge_name(name)
                    assert judged.status in {"current", "caution", "build-time"}, f"{rule}: {name} is {judged.status}"
                continue
            for release in table.releases:
                key = version_key(release)
                after = remedy.since is None or key >= version_key(remedy.since)
                if after and (remedy.until is None or key < version_key(remedy.until)):
                    assert release in table.names.get(name, ()), f"{rule}: {name} is not in {release}"


def test_the_range_of_a_remedy_is_that_of_its_newest_name() -> None:
    table = shipped_knowledge().surface
    for rule, remedy in every_remedy():
        names = [name for name in NAME.findall(remedy.do) if name in table.names and remedy.program == "vLLM"]
        if names and remedy.since not in (None, table.releases[0]):
            newest = max(version_key(table.names[name][0]) for name in names)
            assert newest >= version_key(remedy.since or "0"), f"{rule}: {names} are older"


HANG = "INFO 11-03 23:14:03 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds.\n" * 3
BEGIN = "(EngineCore pid=7) INFO 11-03 23:10:03 [core.py:1] Initializing a V1 LLM engine (v{}) with config: x\n"


def test_a_remedy_of_another_release_is_not_offered() -> None:
    for release, offered in (("0.33.0", True), ("0.33.1", True), ("0.32.0", False), ("0.9.2", False)):
        found = triage(BEGIN.format(release) + HANG)
        assert any("--watchdog-config" in remedy.do for remedy in found.remedies) == offered, release
    (remedy,) = triage(HANG).remedies  # the release is not known: it is offered with its range
    assert "try: --watchdog-config" in triage_text(triage(HANG), None)
    assert remedy.releases == "seen in vLLM 0.33.0"


def test_a_line_without_a_remedy_for_its_release_has_that_of_its_class() -> None:
    found = triage(BEGIN.format("0.32.0") + HANG)
    assert found.failure.remedies
    assert found.remedies == found.failure.remedies
    other = triage("DeepEP error: CPU recv timeout\n")
    assert other.remedies == BOOK.classes["kernel-hang"].remedies


def test_a_run_that_went_well_is_offered_nothing() -> None:
    assert triage("============ Serving Benchmark Result ============\n").remedies == ()


def test_a_remedy_that_names_nothing_known_is_refused() -> None:
    text = b"""
apiVersion: vdbg-env/v1
kind: TriageRemedies
remedies:
  - {signatures: [torch-illegal-addres], do: a thing to do, since: "1.0", source: docs}
"""
    for data, why in (
        (text, "no rule 'torch-illegal-addres'"),
        (text.replace(b'since: "1.0", ', b""), "the first release that it is for"),
        (text.replace(b"signatures: [torch-illegal-addres], ", b""), "the signatures or the classes"),
    ):
        with pytest.raises(BadDocument) as refused:
            read_rule_book([*shipped_files(), ("mine.yaml", data)])
        (complaint,) = refused.value.complaints
        assert why in complaint.what


def test_a_remedy_of_another_program_gives_its_range() -> None:
    found = triage(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n"
    )
    assert [r.releases for r in found.remedies] == ["seen in PyTorch 2.9", "PyTorch before 2.9"]
