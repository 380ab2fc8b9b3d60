"""What holds for every test."""

import importlib.util
import os
import signal
import tempfile
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.groups import group_of

pytest_plugins = ["tests.support.limits"]

# What `make test` and `make test-slow` install by themselves. A skip of such a test is a hole in the proof, so where CI
# runs it is a failure; only a GPU may be missing there.
PROVIDED = ("engine", "nvcc", "browser", "vllm")

# A shell that starts the tests in the background has them ignore SIGINT and SIGQUIT, nohup SIGHUP. What tests start
# would inherit that, and Python leaves Ctrl-C without effect then: a test that presses it would wait for ever. These
# processes themselves go on ignoring the others, by handlers, which no program inherits.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The line packs of whoever runs the tests must not answer in them.
os.environ.pop("VDBG_LINES", None)
os.environ["XDG_DATA_HOME"] = os.path.join(tempfile.gettempdir(), "vdbg-env-tests-without-data")  # noqa: PTH118

# A machine that is busy with something else makes an example slow, which is no fault of the code under test.
# Where a red run blocks others, the same examples each time; everywhere else new ones, which is how they find things.
# A machine with a GPU may lack Hypothesis: the tests in tests/gpu do without, all that use it say so by their imports.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None)
    settings.register_profile("repeatable", deadline=None, derandomize=True)
    settings.load_profile("repeatable" if os.environ.get("CI") == "true" else "unhurried")


@pytest.hookimpl(optionalhook=True)  # a machine with a GPU may lack xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Keep together, for `--dist loadgroup`, what one worker must run; xdist 3.8 finds no marks of pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or nodeid

    return Grouped(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needs = [name for name in PROVIDED if item.get_closest_marker(name)]
    if report.skipped and needs and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"skipped where CI must have {', '.join(needs)}: {reason}"
    return report


@pytest.fixture(autouse=True)
def _signals_as_before() -> Generator[None]:
    """Take back what a command that ran in this process ignores to its end: the programs of later tests inherit it."""
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
    }
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
