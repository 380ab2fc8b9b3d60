"""The entrance: help, version, wrong words, and the exit status of each."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import vdbg_env as vdbg_env_package
from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from vdbg_env import __version__
from vdbg_env.cli import TASKS, group
from vdbg_env.cli.start import first_contact

COMMANDS = [name for commands in TASKS.values() for name in commands]


def test_the_version_is_told() -> None:
    ran = vdbg_env("--version")
    assert (ran.status, ran.stdout) == (0, f"vdbg-env, version {__version__}\n")


def test_a_mistyped_command_is_met_with_the_nearest() -> None:
    ran = vdbg_env("verfy")
    assert ran.status == 2
    assert "No such command 'verfy'. Did you mean 'verify'?" in ran.stderr


@pytest.mark.parametrize(("typed", "hint"), [("--nope", ""), ("--line", " Did you mean '--lines'?")])
def test_only_an_option_that_is_like_the_mistyped_one_is_named(typed: str, hint: str) -> None:
    assert vdbg_env("core", typed).stderr.endswith(f"Error: No such option {typed!r}.{hint}\n")


def test_a_failure_of_another_reason_is_not_said_to_have_gone_well_perhaps(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\nValueError: bad\n'
    log.write_text(trace)
    shown = vdbg_env("triage", str(log)).stdout
    assert shown.startswith("not-a-gpu-failure  (probably not a GPU failure;")


def test_without_a_command_it_shows_the_doors_and_what_this_machine_can_do() -> None:
    ran = vdbg_env()
    assert ran.status == 0
    doors, machine = ran.stdout.split("This machine can\n")
    assert [line.split("vdbg-env ")[1].split()[0] for line in doors.splitlines() if "vdbg-env" in line] == [
        "triage", "core", "runbook", "guard"
    ]  # fmt: skip
    able = [line.split() for line in machine.splitlines() if line.startswith("  ")]
    assert [words[1] for words in able] == ["read", "reproduce", "build", "run"]
    assert {words[0] for words in able} <= {"yes", "no"}


@pytest.mark.parametrize(("with_cluster", "says"), [(False, "no "), (True, "yes")])
def test_srun_without_a_cluster_is_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_cluster: bool, says: str
) -> None:
    """Debian's slurm-client alone brings srun, and then nothing can be run."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("vdbg_env.cli.start._SLURM_CONF", ())
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    if with_cluster:
        (tmp_path / "slurm.conf").touch()
    (line,) = (line for line in first_contact().splitlines() if "Slurm" in line)
    assert line.startswith(f"  {says}")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("words", "status"), [(("demo",), 3), (("core", "/nowhere"), 2), (("--help",), 0)])
def test_an_answer_keeps_its_status_when_its_reader_has_gone(
    tmp_path: Path, words: tuple[str, ...], status: int, unbuffered: str
) -> None:
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "vdbg_env", *words]
    done = subprocess.run(
        program, cwd=tmp_path, stdout=write, stderr=write, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == status


def test_the_demo_explains_the_bundled_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = vdbg_env("demo")
    assert ran.status == 3, ran.stderr
    assert "H100" in ran.stdout and "inlined_templates.cu:13" in ran.stdout
    assert "loaded1 was loaded at inlined_templates.cu:34" in ran.stdout


def tree(command: click.Command, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, groups and subcommands of plug-ins too."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from tree(found, *words, name)


EVERY = list(tree(group))


def test_the_whole_tree_of_commands_is_looked_at() -> None:
    assert {("core",), ("runs", "export"), ("lines", "build"), ("lines", "push")} <= set(EVERY) and len(EVERY) > 50


@pytest.mark.parametrize("words", EVERY[1:], ids=" ".join)
def test_every_command_helps_with_an_example(words: tuple[str, ...]) -> None:
    ran = vdbg_env(*words, "--help")
    assert ran.status == 0
    assert "Example" in ran.stdout


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_fits_a_terminal_and_help_all_has_every_option(words: tuple[str, ...]) -> None:
    lines = vdbg_env(*words, "--help").stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert not [line for line in lines if line.startswith("  ") and line.endswith("...")], "a summary is cut off"
    command: click.Command = group
    for word in words:
        found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        assert found
        command = found
    whole = vdbg_env(*words, "--help-all" if any(o.name == "help_all" for o in command.params) else "--help").stdout
    missing = [o.opts[-1] for o in command.params if isinstance(o, click.Option) and o.opts[-1] not in whole]
    assert not missing


@pytest.mark.parametrize("name", COMMANDS)
def test_help_reads_as_its_golden(name: str) -> None:
    assert_golden(f"cli/{name}.txt", vdbg_env(name, "--help").stdout)


@pytest.mark.parametrize("name", ["build", "bundle", "guard", "render", "run", "runbook", "shell"])
def test_the_whole_help_reads_as_its_golden(name: str) -> None:
    assert_golden(f"cli/{name}-all.txt", vdbg_env(name, "--help-all").stdout)


def test_the_first_page_reads_as_its_golden() -> None:
    assert_golden("cli/vdbg-env.txt", vdbg_env("--help").stdout)


def test_a_demo_that_cannot_write_here_says_how_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vdbg-runs").touch()  # a folder cannot be made: what root may write, too
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)
    ran = vdbg_env("demo")
    assert ran.status == 1 and "try: name another: VDBG_ENV_RUNS=DIR" in ran.stderr


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
    assert "error: No space left on device\n" in ran.stderr
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
