"""A pytest plugin: a test that failed beside a GPU core or a CUDA error says kernel and line in its report.

Nothing is loaded and no file is read while tests pass. Alone, because pytest imports it in every session.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from vdbg_env import __version__

_TELLING = ("CUDA", "NCCL", "illegal memory access")  # words without which a log is not looked into
_ANNOTATION = "gpu-crash"  # the property of a report that holds a workflow command; it also travels through xdist
_EARLIER_S = 1.0  # how much older than the test a core may seem, on a file system with coarse times


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --gpu-cores."""
    group = parser.getgroup("vdbg-env", f"GPU crashes (vdbg-env {__version__})")
    group.addoption(
        "--gpu-cores",
        metavar="FOLDER",
        help="Where tests leave GPU cores; the folder of CUDA_COREDUMP_FILE if not given.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what new cores, or else the captured output, say of a crash to the report of a failed test."""
    report: pytest.TestReport = yield
    if report.failed:
        new = _cores(item.config, call.start - _EARLIER_S)
        output = f"{report.capstdout}\n{report.capstderr}\n{report.longreprtext}"
        if new or any(word in output for word in _TELLING):
            _explain(report, new, output, item)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the annotations after the dots and lines of the tests, where GitHub looks for them."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for report in terminalreporter.stats.get("failed", ()):
        for name, value in report.user_properties:
            if name == _ANNOTATION:
                terminalreporter.write_line(value)


def _cores(config: pytest.Config, since: float) -> list[str]:
    """Return the files of the folder of cores that were written since a time; none where no folder is named.

    Of tests that fail at the same time, in several workers, each may name the core of another.
    """
    armed = os.environ.get("CUDA_COREDUMP_FILE")
    folder = config.getoption("--gpu-cores") or (armed and str(Path(armed).parent))
    if not folder or not Path(folder).is_dir():
        return []
    return sorted(str(path) for path in Path(folder).iterdir() if path.is_file() and path.stat().st_mtime >= since)


def _explain(report: pytest.TestReport, cores: list[str], output: str, item: pytest.Item) -> None:
    """Add a section to a report, and an annotation for each crash: at the test, where its source is not found."""
    import tempfile

    from vdbg_env.agents.annotate import command, crashes
    from vdbg_env.common.console import printable
    from vdbg_env.common.errors import ANY_ERROR

    with tempfile.NamedTemporaryFile("w", suffix=".log", prefix="captured-") as log:
        log.write(output)
        log.flush()
        try:
            root = item.config.rootpath
            found = list(crashes(cores, [str(root)])) or list(crashes([log.name], [str(root)]))
        except ANY_ERROR as error:
            report.sections.append(("GPU crash", f"not read: {printable(error.what)}"))
            return
    told = [line for crash in found for line in (crash.message, *(f"  {why}" for why in crash.why))]
    if told:
        report.sections.append(("GPU crash", "\n".join(map(printable, told))))
    file, line, _ = report.location
    for crash in found:
        report.user_properties.append((_ANNOTATION, command(crash, root, (file, (line or 0) + 1))))
