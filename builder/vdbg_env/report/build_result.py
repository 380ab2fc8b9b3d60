"""What a build came to: one value, told to a person in some lines and to programs as JSON."""

from __future__ import annotations

from typing import Any

from vdbg_env.application.image.build import BuildResult
from vdbg_env.cuda.lines.lineinfo import FileReport
from vdbg_env.report.lineinfo import as_json as lineinfo_json
from vdbg_env.report.lineinfo import text as lineinfo

SCHEMA = "vdbg-env/build/v1"


def build_text(result: BuildResult) -> str:
    """Return what is told at the end of a build that was proven."""
    counts = result.proof.counts
    lines = [
        f"proven    {counts.with_debug_line} of {counts.with_code} cubins with code carry line info",
        f"          {lineinfo.coverage_text(result.proof.covered)}",
        *(f"          {_file_line(file)}" for file in result.proof.files if file.counts.with_code),
        f"image     {result.image_id}",
        *(f"tag       {tag}" for tag in result.tags),
        f"plan      {result.plan.digest}",
        f"engine    {result.engine} {result.engine_version}: {result.engine_why}",
    ]
    if result.pushed_digest:
        lines.append(f"pushed    {result.pushed_digest}")
    if result.saved:
        lines.append(f"saved     {result.saved}, {(result.saved_bytes or 0) / 1e6:.0f} MB")
    lines.append(f"time      {result.duration_s:.1f} s")
    return "\n".join([*lines, ""])


def build_document(result: BuildResult) -> dict[str, Any]:
    """Return the metadata document: digest and proof, for whoever carries the image on."""
    return {
        "schema": SCHEMA,
        "image_id": result.image_id,
        "digest": result.digest,
        "tags": list(result.tags),
        "pushed_digest": result.pushed_digest,
        "saved": result.saved,
        "saved_bytes": result.saved_bytes,
        "engine": {"name": result.engine, "version": result.engine_version, "why": result.engine_why},
        "duration_s": round(result.duration_s, 3),
        "plan_digest": result.plan.digest,
        "plan": result.plan.document(),
        "proof": lineinfo_json.document(result.proof),
    }


def _file_line(file: FileReport) -> str:
    archs = ", ".join(f"{arch} {c.with_code}" for arch, c in file.archs if c.with_code)
    seen = f"; {file.witness.tool} agrees" if file.witness and file.witness.agrees else ""
    return f"{file.path}: {file.counts.with_debug_line} of {file.counts.with_code} ({archs}){seen}"
