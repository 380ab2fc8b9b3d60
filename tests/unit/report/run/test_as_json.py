"""The JSON run report keeps to its published schema, whatever is known of the run."""

import dataclasses
import json

from tests.support import reports
from vdbg_env.report.model import report_document, report_json, signal_name


def test_the_promised_names_are_there() -> None:
    document = report_document(reports.FULL)
    assert {"schema", "run", "runbook", "verdict", "steps", "findings", "environment"} <= set(document)
    step = json.loads(report_json(reports.FULL))["steps"][1]
    promised = {"id", "status", "ended", "outcome", "argv", "env", "duration_s", "attempts", "findings", "artifacts"}
    assert promised <= set(step)
    assert {"by", "code", "signal"} <= set(step["ended"])
    finding = json.loads(report_json(reports.FULL))["findings"][0]
    assert {"rule", "level", "message", "location", "chain", "how_known", "confidence", "step", "artifact"} <= set(
        finding
    )
    assert [frame["line"] for frame in finding["chain"]] == [5, 9, 13]


def test_steps_that_were_not_reached_are_named_apart() -> None:
    document = json.loads(report_json(reports.FULL))
    assert "sanitizer" not in [step["id"] for step in document["steps"]]
    assert document["not_reached"] == ["sanitizer"]


def test_a_step_points_at_the_findings_it_led_to() -> None:
    steps = {step["id"]: step for step in json.loads(report_json(reports.FULL))["steps"]}
    assert steps["read-core"]["findings"] == ["F1"]
    assert steps["cudagraph-none"]["findings"] == ["F2"]


def test_a_signal_without_a_name_is_still_told() -> None:
    assert signal_name(200) is None
    assert signal_name(6) == "SIGABRT"


def test_an_unset_variable_is_null() -> None:
    steps = {step["id"]: step for step in json.loads(report_json(reports.FULL))["steps"]}
    assert steps["coredump"]["env"]["PYTHONHASHSEED"] is None


def test_the_exit_status_is_the_one_the_engine_gives() -> None:
    statuses = [report_document(report)["exit_status"] for report in (reports.FULL, reports.HANG, reports.BARE)]
    assert statuses == [3, 3, 125]


def test_text_that_is_no_ascii_is_kept_readable() -> None:
    assert "Überlauf" in report_json(dataclasses.replace(reports.BARE, notes=("Überlauf",)))


def test_the_lead_is_an_error_even_beside_a_surer_note() -> None:
    surer = dataclasses.replace(reports.GRAPHS, confidence=1.0)
    report = dataclasses.replace(reports.FULL, findings=(surer, reports.FAULT))
    assert report_document(report)["lead"] == "F2"
    assert report_document(reports.BARE)["lead"] is None
