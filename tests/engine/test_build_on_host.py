"""`vdbg-env build` without an engine: the plan of the sample runs on this machine."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]


def test_the_sample_is_built_on_the_bare_machine_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran = vdbg_env("build", "--lineinfo", "--profile", "sample", "--engine", "host", "--json")
    assert ran.status == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["engine"]["name"] == "host"
    assert document["proof"]["verdict"] == "full"
