"""Microsoft's SARIF validator and the official schema it carries accept what we write.

The package @microsoft/sarif-multitool-linux (npm, 44 MB, MIT) is looked for in the folder SARIF_MULTITOOL names and is
fetched with `npm pack` otherwise, once, into pytest's cache.
"""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support import reports
from vdbg_env.application.run.result.model import Report
from vdbg_env.report.run import as_sarif as run_sarif

PACKAGE = "@microsoft/sarif-multitool-linux@5.7.0"
ALL = [reports.FULL, reports.HANG, reports.BARE]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def multitool(pytestconfig: pytest.Config) -> Path:
    given = os.environ.get("SARIF_MULTITOOL")
    if given:
        return Path(given)
    folder = pytestconfig.cache.mkdir("sarif-multitool")
    if not (folder / "package").is_dir():
        fetch(folder)
    return folder / "package"


def fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm, and SARIF_MULTITOOL names no folder with Microsoft's validator")
    try:
        done = subprocess.run([npm, "pack", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not fetch Microsoft's validator in 300 s")
    if done.returncode:
        pytest.skip(f"npm could not fetch Microsoft's validator: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(folder / done.stdout.split()[-1]) as archive:
        archive.extractall(folder, filter="data")


@pytest.mark.parametrize("report", ALL, ids=["full", "hang", "bare"])
def test_the_official_schema_accepts_every_log(report: Report, multitool: Path) -> None:
    schema: Any = json.loads((multitool / "sarif-2.1.0.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(run_sarif.log(report))] == []


def test_the_official_schema_refuses_an_unknown_property(multitool: Path) -> None:
    schema: Any = json.loads((multitool / "sarif-2.1.0.json").read_text())
    broken = run_sarif.log(reports.BARE) | {"colour": "red"}
    assert list(jsonschema.validators.validator_for(schema)(schema).iter_errors(broken))


@pytest.mark.parametrize("report", ALL, ids=["full", "hang", "bare"])
def test_the_validator_finds_no_error(report: Report, multitool: Path, tmp_path: Path) -> None:
    program = multitool / "Sarif.Multitool"
    program.chmod(0o755)
    log, verdict = tmp_path / "log.sarif", tmp_path / "verdict.sarif"
    log.write_text(run_sarif.render(report))
    # Its .NET asks for ICU unless told that one culture will do.
    environment = os.environ | {"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
    command = [str(program), "validate", str(log), "--output", str(verdict)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(errors(json.loads(verdict.read_text(encoding="utf-8-sig")))) == []


def errors(log: Any) -> Iterator[str]:
    for result in log["runs"][0].get("results", ()):
        if result.get("level", "warning") == "error":
            yield f"{result['ruleId']}: {result['message']}"
