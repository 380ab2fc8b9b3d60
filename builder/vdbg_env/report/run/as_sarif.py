"""Write a run report as SARIF 2.1.0: code hosts and dashboards show a fault at its line.

Section numbers are those of the OASIS standard "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import hashlib
import json
import shlex
from urllib.parse import quote

from gpucore.dwarf import SourceFrame
from vdbg_env.application.run.result.model import Attempt, Report, SourceExcerpt, StepReport, StepStatus
from vdbg_env.common.printable import printable_json
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.observation import Artifact, EndedBy
from vdbg_env.report.plain_text import signal_name
from vdbg_env.report.run.phrases import ended, how_known
from vdbg_env.runbook.model import Data as Json

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NOT_AS_MEANT = {
    EndedBy.NOT_STARTED,
    EndedBy.DISK,
    EndedBy.NODE_LOST,
    EndedBy.ENGINE_LOST,
    EndedBy.CANCEL,
    EndedBy.PEER,
}


def render(report: Report) -> str:
    """Return the report as an indented SARIF log that ends with a newline."""
    return printable_json(json.dumps(log(report), indent=2, ensure_ascii=False)) + "\n"


def log(report: Report) -> dict[str, Json]:
    """Return the report as a SARIF log (section 3.13) of one run."""
    rules = sorted({finding.rule for finding in report.findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(report, rules)},
                "automationDetails": {"id": f"vdbg-env/{report.runbook}/{report.run}"},
                "columnKind": "utf16CodeUnits",
                "invocations": [_invocation(s, a) for s in report.walked for a in s.attempts],
                "artifacts": [_artifact(a) for s in report.walked for a in s.artifacts],
                "results": [_result(finding, rules.index(finding.rule), report) for finding in report.findings],
                "properties": {
                    "verdict": report.verdict.value,
                    "provenance": report.provenance.value,
                    "origin": report.origin,
                    "environment": dict(report.environment),
                },
            }
        ],
    }


def _driver(report: Report, rules: list[str]) -> dict[str, Json]:
    first = {finding.rule: finding for finding in reversed(report.findings)}
    driver: dict[str, Json] = {
        "name": "vdbg-env",
        "rules": [
            {
                "id": rule,
                "shortDescription": {"text": f"{rule}: known from {how_known(first[rule].how_known)}"},
                "defaultConfiguration": {"level": first[rule].level.value},
            }
            for rule in rules
        ],
    }
    return driver | ({"version": report.tool_version} if report.tool_version else {})


def _artifact(artifact: Artifact) -> dict[str, Json]:
    told: dict[str, Json] = {"location": {"uri": _uri(artifact.path)}, "length": artifact.size, "roles": ["attachment"]}
    return told | ({"hashes": {"sha-256": artifact.sha256}} if artifact.sha256 else {})


def _result(finding: Finding, rule: int, report: Report) -> dict[str, Json]:
    """Return a finding as a result (section 3.27); `rank` is the confidence in percent (section 3.27.25)."""
    result: dict[str, Json] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "kind": "fail",
        "level": finding.level.value,
        "message": {"text": finding.message},
        "rank": round(finding.confidence * 100, 1),
        "partialFingerprints": {"vdbgEnvFault/v1": _fingerprint(finding)},
        "properties": {
            "how_known": finding.how_known.value,
            "confidence": finding.confidence,
            "step": finding.step,
            "next_step": finding.next_step,
        },
    }
    if finding.location or finding.kernel:
        result["locations"] = [_location(finding.location, finding.kernel, report)]
    if finding.chain:
        frames: list[Json] = [{"location": _location(frame, frame.function, report)} for frame in finding.chain]
        result["stacks"] = [{"message": {"text": "inline chain, leaf first"}, "frames": frames}]
    if finding.artifact:
        result["attachments"] = [{"artifactLocation": {"uri": _uri(finding.artifact)}}]
    return result


def _location(frame: SourceFrame | None, function: str | None, report: Report) -> dict[str, Json]:
    location: dict[str, Json] = {}
    if frame:
        region: dict[str, Json] = {"startLine": max(frame.line, 1)}
        physical: dict[str, Json] = {"artifactLocation": {"uri": _uri(frame.file)}, "region": region}
        excerpt = report.excerpt(frame.file, frame.line)
        if excerpt:
            region["snippet"] = {"text": _line(excerpt)}
            physical["contextRegion"] = {
                "startLine": excerpt.first,
                "endLine": excerpt.first + max(len(excerpt.lines), 1) - 1,
                "snippet": {"text": "\n".join(excerpt.lines)},
            }
        location["physicalLocation"] = physical
        if frame.headers:
            location["message"] = {"text": str(frame.headers)}
    if function:
        location["logicalLocations"] = [{"fullyQualifiedName": function, "kind": "function"}]
    return location


def _line(excerpt: SourceExcerpt) -> str:
    at = excerpt.marked - excerpt.first
    return excerpt.lines[at] if 0 <= at < len(excerpt.lines) else ""


def _invocation(step: StepReport, attempt: Attempt) -> dict[str, Json]:
    """Return one start of a step (section 3.20): that the workload crashed is what was asked for, so it succeeded."""
    end = attempt.ended
    invocation: dict[str, Json] = {
        "executionSuccessful": step.status is StepStatus.FINISHED and end is not None and end.by not in _NOT_AS_MEANT,
        "environmentVariables": {name: value for name, value in step.env.items() if value is not None},
        "machine": attempt.host,
        "properties": {
            "step": step.id,
            "attempt": attempt.attempt,
            "rank": attempt.rank,
            "ended": end.by.value if end else None,
            "duration_s": attempt.duration_s,
            "reproduced": attempt.reproduced,
            "unset": [name for name, value in step.env.items() if value is None],
        },
    }
    if step.argv:
        invocation |= {"commandLine": shlex.join(step.argv), "arguments": list(step.argv[1:])}
    if end:
        invocation["exitCodeDescription"] = ended(end)
    if end and end.code is not None:
        invocation["exitCode"] = end.code
    if end and end.signal is not None:
        invocation["exitSignalNumber"] = end.signal
        invocation["exitSignalName"] = signal_name(end.signal) or f"signal {end.signal}"
    return invocation


def _uri(path: str) -> str:
    """Return a path as a URI reference: absolute paths become file URIs, relative ones stay relative."""
    plain = path.replace("\\", "/")
    quoted = quote(plain, safe="/~", errors="surrogateescape")  # names need not be UTF-8
    if plain.startswith("//"):
        return f"file:/{quoted.lstrip('/')}"
    return f"file://{quoted}" if plain.startswith("/") else quoted


def _fingerprint(finding: Finding) -> str:
    """Return what stays the same when the same fault is met again: rule, kernel and place, not the message."""
    place = f"{finding.location.file.rsplit('/', 1)[-1]}:{finding.location.function}" if finding.location else ""
    return hashlib.sha256("\0".join((finding.rule, finding.kernel or "", place)).encode()).hexdigest()[:32]
