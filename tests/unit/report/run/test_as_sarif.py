"""The SARIF log has the shape that the standard's own object model gives it.

`sarif_om` is generated from the official schema: a class for each object, required properties without a default. The
schema itself and Microsoft's validator are asked in tests/oracle.
"""

import dataclasses
from pathlib import PurePosixPath
from typing import Any

import pytest
import sarif_om

from gpucore.dwarf import SourceFrame
from tests.support import reports
from vdbg_env.application.run.result.model import Report
from vdbg_env.evidence.finding import Finding
from vdbg_env.report.run import as_sarif as run_sarif

# Property -> the class of its value, where the value is an object or a list of objects.
OBJECTS: dict[str, type] = {
    "runs": sarif_om.Run,
    "tool": sarif_om.Tool,
    "driver": sarif_om.ToolComponent,
    "rules": sarif_om.ReportingDescriptor,
    "shortDescription": sarif_om.MultiformatMessageString,
    "defaultConfiguration": sarif_om.ReportingConfiguration,
    "automationDetails": sarif_om.RunAutomationDetails,
    "invocations": sarif_om.Invocation,
    "artifacts": sarif_om.Artifact,
    "location": sarif_om.ArtifactLocation,
    "results": sarif_om.Result,
    "message": sarif_om.Message,
    "locations": sarif_om.Location,
    "physicalLocation": sarif_om.PhysicalLocation,
    "artifactLocation": sarif_om.ArtifactLocation,
    "region": sarif_om.Region,
    "contextRegion": sarif_om.Region,
    "snippet": sarif_om.ArtifactContent,
    "logicalLocations": sarif_om.LogicalLocation,
    "stacks": sarif_om.Stack,
    "frames": sarif_om.StackFrame,
    "attachments": sarif_om.Attachment,
}
FREE = {"properties", "environmentVariables", "partialFingerprints", "hashes"}


def misfits(value: Any, kind: type, at: str) -> list[str]:
    """Return where `value` departs from the object model, one line each."""
    fields = {f.metadata["schema_property_name"]: f for f in kind.__attrs_attrs__}  # type: ignore[attr-defined]
    wrong = [f"{at}: {name} is required" for name, f in fields.items() if f.default is not None and name not in value
             and type(f.default).__name__ == "_Nothing"]  # fmt: skip
    for name, child in value.items():
        place = f"{at}.{name}"
        if name not in fields:
            wrong.append(f"{place}: not in the standard")
        elif isinstance(child, (dict, list)) and name not in FREE:
            inner = sarif_om.Location if name == "location" and kind is sarif_om.StackFrame else OBJECTS.get(name)
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, dict):
                    wrong += misfits(item, inner, place) if inner else [f"{place}: an object nobody expects"]
    return wrong


def run_of(report: Report) -> Any:
    log: Any = run_sarif.log(report)
    return log["runs"][0]


@pytest.mark.parametrize("report", [reports.FULL, reports.HANG, reports.BARE], ids=["full", "hang", "bare"])
def test_every_log_fits_the_object_model_of_the_standard(report: Report) -> None:
    assert misfits(run_sarif.log(report), sarif_om.SarifLog, "log") == []


def test_the_model_refuses_what_the_standard_does_not_know() -> None:
    assert misfits({"version": "2.1.0", "colour": 1}, sarif_om.SarifLog, "log") == [
        "log: runs is required",
        "log.colour: not in the standard",
    ]


def test_the_inline_chain_is_a_stack_leaf_first() -> None:
    frames = run_of(reports.FULL)["results"][0]["stacks"][0]["frames"]
    assert [f["location"]["physicalLocation"]["region"]["startLine"] for f in frames] == [5, 9, 13]
    assert frames[0]["location"]["physicalLocation"]["region"]["snippet"]["text"].strip() == "p[i] = v;"


def test_a_crash_that_was_asked_for_is_a_successful_execution() -> None:
    invocations = run_of(reports.FULL)["invocations"]
    crashed = next(i for i in invocations if i["properties"]["step"] == "blocking")
    assert crashed["executionSuccessful"] is True
    assert (crashed["exitSignalNumber"], crashed["exitSignalName"]) == (6, "SIGABRT")
    assert crashed["environmentVariables"] == {"CUDA_LAUNCH_BLOCKING": "1"}


def uri_of(path: str) -> str:
    finding = dataclasses.replace(reports.FAULT, location=SourceFrame(function=None, file=path, line=1), chain=())
    result = run_of(dataclasses.replace(reports.BARE, findings=(finding,)))["results"][0]
    uri: str = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    return uri


def test_paths_become_valid_uris() -> None:
    assert uri_of("/src/a b/#1?.cu") == "file:///src/a%20b/%231%3F.cu"
    assert uri_of("csrc/rope.cu") == "csrc/rope.cu"
    assert uri_of("a:b.cu") == "a%3Ab.cu", "a colon would make a scheme of the first part"
    assert PurePosixPath(uri_of("C:\\src\\k.cu")).name == "k.cu"


def fingerprint(finding: Finding) -> str:
    found: str = run_of(dataclasses.replace(reports.BARE, findings=(finding,)))["results"][0]["partialFingerprints"][
        "vdbgEnvFault/v1"
    ]
    return found


def test_the_same_fault_met_again_has_the_same_fingerprint() -> None:
    again = dataclasses.replace(reports.FAULT, message="other words", step="other", confidence=0.5)
    elsewhere = dataclasses.replace(reports.FAULT, kernel="other_kernel()")
    assert fingerprint(reports.FAULT) == fingerprint(again)
    assert fingerprint(reports.FAULT) != fingerprint(elsewhere)
