"""What holds for every unit test."""

import pytest


@pytest.fixture(autouse=True)
def _without_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode code with the library's own decoder alone: what is printed must not depend on what is installed here."""
    monkeypatch.setattr("vdbg_env.crash.places.TOOL", "no-nvdisasm-in-unit-tests")
