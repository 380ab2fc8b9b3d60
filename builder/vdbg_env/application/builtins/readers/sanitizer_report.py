"""`builtin/sanitizer-report@v1`: compute-sanitizer's text, judged by its SUMMARY line and never by an exit status."""

from __future__ import annotations

from dataclasses import replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.finding import Finding, Level
from vdbg_env.evidence.tools.sanitizer import SanitizerReport, parse_sanitizer
from vdbg_env.evidence.tools.sanitizer_findings import sanitizer_findings
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

CONTRACT = BuiltinContract(
    name="sanitizer-report",
    version=1,
    role="reader",
    does="Reads compute-sanitizer's text; without a SUMMARY line the sanitizer itself failed, whatever its status.",
    parameters={"artifact": "string"},
    results={
        "summary": "bool",
        "errors": "int",
        "warnings": "int",
        "tool": "string",
        "kernel": "string",
        "first": "string",
        "source": "string",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read every log of the tool: one for each process, and the output itself where no log was asked for."""
    name = str(context.parameters.get("artifact", ""))
    texts = {context.relative(path): context.files.text(path) for path in context.artifact_paths(name)}
    texts = texts or {"": "\n".join(line.text for line in context.lines(b"====="))}
    reports = {path: parse_sanitizer(text) for path, text in texts.items() if text.strip()}
    counted = [report for report in reports.values() if report.verdict != "tool-failed"]
    findings = tuple(
        replace(finding, artifact=path or None)
        for path, report in reports.items()
        if report in counted or not counted
        for finding in sanitizer_findings(report)
    )
    return BuiltinResult(results=_results(counted, findings), findings=findings, notes=_notes(reports, counted))


def _results(counted: list[SanitizerReport], findings: tuple[Finding, ...]) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {"summary": bool(counted)}
    if not counted:
        return results
    results["errors"] = sum(report.errors or 0 for report in counted)
    results["warnings"] = sum(report.warnings for report in counted)
    tool = next((report.tool for report in counted if report.tool), None)
    first = next((f for f in findings if f.level is Level.ERROR), findings[0] if findings else None)
    if tool:
        results["tool"] = tool.value
    if first:
        results["first"] = first.message
        results |= {"kernel": first.kernel} if first.kernel else {}
        results |= {"source": str(first.location)} if first.location else {}
    return results


def _notes(reports: dict[str, SanitizerReport], counted: list[SanitizerReport]) -> tuple[str, ...]:
    """Say which process has no SUMMARY line when others have one: it was ended early, or never used the GPU."""
    if not counted:
        return ()
    silent = [path for path, report in reports.items() if report not in counted]
    return tuple(f"{path}: no SUMMARY line; that process ended early or never reached the GPU" for path in silent)
