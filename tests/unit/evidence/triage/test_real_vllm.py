"""The logs of a real vLLM under injected faults: the class is the fault, and the root is a line that names it."""

from typing import Any

import pytest
import yaml

from tests.support.triage import LOGS, triage_bytes

FOLDER = LOGS / "real-vllm"
LABELS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "labels.yaml").read_text())["logs"]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: str(label["file"]))
def test_the_injected_fault_is_named(label: dict[str, Any]) -> None:
    verdict = triage_bytes((LOGS / label["file"]).read_bytes())
    assert verdict.failure.name == label["class"]
    assert not label["root"] or (verdict.root_cause and verdict.root_cause.line in label["root"])


def test_every_log_has_a_label() -> None:
    assert {path.name for path in FOLDER.glob("*.log")} == {label["file"].split("/")[1] for label in LABELS}
