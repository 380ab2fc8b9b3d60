"""The entrance: help, version, wrong words, and the exit status of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vdbg_env as vdbg_env_package
from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from vdbg_env import __version__
from vdbg_env.cli import COMMANDS


def test_the_version_is_told() -> None:
    ran = vdbg_env("--version")
    assert (ran.status, ran.stdout) == (0, f"vdbg-env, version {__version__}\n")


def test_a_mistyped_command_is_met_with_the_nearest() -> None:
    ran = vdbg_env("verfy")
    assert ran.status == 2
    assert "No such command 'verfy'. Did you mean 'verify'?" in ran.stderr


def test_no_command_is_bad_usage() -> None:
    assert vdbg_env().status == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_an_example(name: str) -> None:
    ran = vdbg_env(name, "--help")
    assert ran.status == 0
    assert "Example" in ran.stdout, f"`vdbg-env {name} --help` shows no example"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_reads_as_its_golden(name: str) -> None:
    assert_golden(f"cli/{name}.txt", vdbg_env(name, "--help").stdout)


def test_the_first_page_reads_as_its_golden() -> None:
    assert_golden("cli/vdbg-env.txt", vdbg_env("--help").stdout)


def _started(redirection: str, *argv: str) -> subprocess.CompletedProcess[str]:
    shell = f'exec "$0" -m vdbg_env "$@" {redirection}'
    environment = os.environ | {"PYTHONPATH": str(Path(vdbg_env_package.__file__).parents[1])}
    words = ["sh", "-c", shell, sys.executable, *argv]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_no_reason_to_fail(redirection: str) -> None:
    ran = _started(redirection, "images", "list")
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_below_stdout_is_told_without_a_traceback() -> None:
    ran = _started(">/dev/full", "images", "list")
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: No space left on device\n")
    assert "Traceback" not in ran.stderr and "Exception ignored" not in ran.stderr


@pytest.mark.parametrize("place", ["/dev/zero", "endless.yaml"])
def test_a_document_without_end_is_refused_before_it_fills_memory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("endless.yaml").open("wb") as sparse:
        sparse.truncate(1 << 40)
    for argv in (["runbooks", "lint", place], ["build", "--dry-run", "--profile", place]):
        ran = vdbg_env(*argv)
        assert ran.status == 2
        assert "is longer than" in ran.stderr


def test_what_the_tool_does_is_logged_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_LOG", raising=False)
    words = ("runbook", "illegal-memory-access", "--batch", "--run-dir")
    line = "vdbg_env.run.session: runbook illegal-memory-access from"
    assert line not in vdbg_env(*words, "quiet").stderr
    assert line in vdbg_env("-v", *words, "one").stderr
    monkeypatch.setenv("VDBG_LOG", "debug")
    assert line in vdbg_env(*words, "two").stderr
    monkeypatch.setenv("VDBG_LOG", "loud")
    ran = vdbg_env(*words, "three")
    assert ran.status == 2 and "VDBG_LOG=loud is not a level" in ran.stderr


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "latin-1:strict", "ascii:surrogateescape", "cp1252"])
@pytest.mark.parametrize(
    "argv", [["verify", "{}"], ["verify", "--json", "{}"], ["core", "{}"], ["locate", "kern", "{}"], ["triage", "{}"],
             ["runs", "show", "{}"], ["lines", "list", "--lines", "{}"], ["runbooks", "check", "{}"], ["{}"]],
)  # fmt: skip
def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str, argv: list[str]) -> None:
    name = tmp_path / "n\u2019\u4e2d\U0001f600\xe9.so"
    name.write_bytes(b"not a library")
    words = [word.format(name) for word in argv]
    ran = subprocess.run(
        [sys.executable, "-m", "vdbg_env", *words], capture_output=True, check=False, timeout=60,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert b"Traceback" not in ran.stdout + ran.stderr
    assert ran.returncode in (0, 2, 4)
    if "--json" in argv:
        shown = "utf-8" if "ascii" in encoding else encoding.partition(":")[0]  # click takes ASCII for a mistake
        assert json.loads(ran.stdout.decode(shown))["files"][0]["path"] == str(name)


@pytest.mark.parametrize("command", [["core"], ["verify"], ["locate", "kern"]])
def test_the_standard_input_is_no_file(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = vdbg_env(*command, "-")
    assert ran.status == 2
    assert "not from the standard input" in ran.stderr
    assert "try: cat > " in ran.stderr
