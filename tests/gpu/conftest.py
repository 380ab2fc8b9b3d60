"""Says what is missing before anything else: this suite runs where little more than a CUDA image's tools are.

The fixtures are in `fixtures.py`, which needs vdbg-env and so its packages.
"""

import pytest

from tests.gpu.needs import advice, missing_modules

MISSING = missing_modules()
if MISSING:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.gpu.fixtures import *  # noqa: F403


def pytest_configure() -> None:
    """Refuse to start, with what to type, rather than fail once in every file."""
    if MISSING:
        raise pytest.UsageError(advice(MISSING))
