"""Write a run's report in every format, next to the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from vdbg_env.common.resources import data_dir
from vdbg_env.record.files import replacement
from vdbg_env.report import as_html, as_json, as_markdown
from vdbg_env.report.model import REPORT_FILES, Report


def write_report(report: Report, directory: Path, formats: Iterable[str] = REPORT_FILES) -> tuple[str, ...]:
    """Write the report in each format named, whole files only, and return their names."""
    names = []
    for name in formats:
        text = _WRITERS[name](report)
        with replacement(directory / REPORT_FILES[name]) as file:
            file.write(text.encode("utf-8", "replace"))
        names.append(REPORT_FILES[name])
    return tuple(names)


def _html(report: Report) -> str:
    folder = data_dir("templates")
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("report.html.j2", "report.css")]
    return as_html.render(report, template=texts[0], style=texts[1])


_WRITERS: Final[Mapping[str, Callable[[Report], str]]] = {
    "html": _html,
    "markdown": as_markdown.render,
    "json": as_json.render,
}
