"""A pytest plugin: a test that failed, or ended its worker, beside a GPU core or a CUDA error says kernel and line.

Nothing is loaded and no file is read while tests pass. Alone, because pytest imports it in every session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from vdbg_env import __version__

_TELLING = ("CUDA", "NCCL", "illegal memory access")  # words without which a log is not looked into
_ANNOTATION = "gpu-crash"  # the property of a report that holds a workflow command; it also travels through xdist
_told: set[tuple[str, int]] = set()  # the files, each with its time, that a report of this process names
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
        new = _cores(item.config, call.start - _EARLIER_S, report)
        output = f"{report.capstdout}\n{report.capstderr}\n{report.longreprtext}"
        if new or any(word in output for word in _TELLING):
            _explain(report, new, output, item.config.rootpath)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Look out for dying workers, in the process that has workers of xdist."""
    if config.getoption("dist", "no") != "no":
        config.pluginmanager.register(_Workers(config))


class _Workers:
    """Explains a worker that died: what it captured is lost, so only new files of the folder of cores tell of it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started: dict[str, float] = {}  # the tests that run

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._started[nodeid] = time.time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._started.pop(nodeid, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        new = _cores(self._config, self._started.pop(crashitem, time.time()) - _EARLIER_S, report)
        if new:
            _explain(report, new, "", self._config.rootpath)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the annotations after the dots and lines of the tests, where GitHub looks for them."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for report in terminalreporter.stats.get("failed", ()):
        for name, value in report.user_properties:
            if name == _ANNOTATION:
                terminalreporter.write_line(value)


def _cores(config: pytest.Config, since: float, report: pytest.TestReport) -> list[str]:
    """Return the files of the folder of cores that were written since a time and not returned before.

    None where no folder is named, and where it cannot be read, which the report then says. Of tests that fail at the
    same time, in several workers, each may name the core of another.
    """
    armed = os.environ.get("CUDA_COREDUMP_FILE")
    given = config.getoption("--gpu-cores")
    folder = given or (armed and str(Path(armed).parent))
    if not folder:
        return []
    try:
        files = {path: path.stat() for path in Path(folder).iterdir() if path.is_file()}
    except OSError as error:  # mistyped, another user's, or a file that went away meanwhile
        if given or not isinstance(error, FileNotFoundError):  # the driver makes no folder either
            report.sections.append(("GPU crash", f"cores are not looked for: {error.filename}: {error.strerror}"))
        return []
    new = {(str(path), at.st_mtime_ns) for path, at in files.items() if at.st_mtime >= since} - _told
    _told.update(new)
    return sorted(path for path, _ in new)


def _explain(report: pytest.TestReport, cores: list[str], output: str, root: Path) -> None:
    """Add a section to a report, and an annotation for each crash: at the test, where its source is not found."""
    import tempfile

    from vdbg_env.agents.annotate import command, crashes
    from vdbg_env.common.console import printable
    from vdbg_env.common.errors import ANY_ERROR

    with tempfile.NamedTemporaryFile("w", suffix=".log", prefix="captured-") as log:
        log.write(output)
        log.flush()
        try:
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
