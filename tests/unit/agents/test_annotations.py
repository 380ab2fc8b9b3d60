"""A crashed test becomes an annotation: by the steps of the GitHub Action under bash, and by the pytest plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.builders.core_builder import CUBINS, hang_core, illegal_address_core
from tests.support.golden import assert_golden
from vdbg_env.agents import annotate, pytest_plugin
from vdbg_env.common.console import printable

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "templates" / "github-action" / "action.yml"


def action(workspace: Path, paths: str) -> tuple[str, str, str]:
    """Run the step that explains as a runner does; returns what it printed, the summary and the outputs."""
    step = next(step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if step.get("id") == "explain")
    assert step["shell"] == "bash" and step["env"] == {"PATHS": "${{ inputs.paths }}"}
    page, outputs = workspace.parent / "summary.md", workspace.parent / "outputs"
    page.touch()
    outputs.touch()
    bin_folder = workspace.parent / "bin"
    bin_folder.mkdir(exist_ok=True)
    if not (bin_folder / "python3").exists():
        (bin_folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (bin_folder / "python3").chmod(0o755)
    env = os.environ | {
        "PATHS": paths, "GITHUB_STEP_SUMMARY": str(page), "GITHUB_OUTPUT": str(outputs),
        "GITHUB_WORKSPACE": str(workspace),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
    }  # fmt: skip
    ran = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=workspace, env=env, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return ran.stdout + ran.stderr, page.read_text(), outputs.read_text()


@pytest.mark.parametrize(
    ("given", "variables", "installed"),
    [
        ("its own", {}, "/action/templates/github-action/../.."),
        ("its own", {"VDBG_ENV_PACKAGE": "https://host.example/x.whl"}, "https://host.example/x.whl"),
        ("wheels/own.whl", {"VDBG_ENV_PACKAGE": "https://host.example/x.whl"}, "wheels/own.whl"),
    ],
)
def test_the_action_installs_what_is_there(
    tmp_path: Path, given: str, variables: dict[str, str], installed: str
) -> None:
    document = yaml.safe_load(ACTION.read_text())
    assert document["inputs"]["install"]["default"] == "its own"
    (step,) = (step for step in document["runs"]["steps"] if "INSTALL" in step.get("env", {}))
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_ACTION_PATH": "/action/templates/github-action", **variables}
    ran = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]], env={**env, "INSTALL": given}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert ran.stdout == f"-m pip install --quiet {installed}\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    (workspace / "kernels").mkdir(parents=True)
    (workspace / "kernels" / "inline_chain.cu").write_bytes((CUBINS / "inline_chain.cu").read_bytes())
    (workspace / "out").mkdir()
    (workspace / "out" / "rank0.nvcudmp").write_bytes(illegal_address_core())
    (workspace / "out" / "rank1.nvcudmp").write_bytes(hang_core())
    (workspace / "out" / "test.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    return workspace


def test_the_steps_of_the_action_annotate(workspace: Path) -> None:
    printed, page, outputs = action(workspace, "out\n\nmissing\n")
    assert_golden("agents/action.txt", f"{printed}--- summary\n{page}--- outputs\n{outputs}")
    assert "::error file=kernels/inline_chain.cu,line=3,title=" in printed


def test_the_text_of_a_log_commands_nothing(workspace: Path) -> None:
    evil = "CUDA error: an illegal memory access was encountered ::set-env name=A::b%0A::error::x`|<b>\x1b[2J"
    (workspace / "evil.log").write_text(f"{evil}\n::warning::of the log itself\n")
    printed, page, outputs = action(workspace, "evil.log")
    (line,) = printed.splitlines()
    assert line.startswith("::error file=evil.log,line=1,title=illegal-memory-access::")
    assert line.count("::") >= 2 and "\r" not in printed and "\x1b" not in printed + page + outputs
    assert "%250A" in line and "\n::" not in printed
    assert [row.partition("=")[0] for row in outputs.splitlines()] == ["crashes", "class", "kernel", "file", "line"]


@pytest.mark.parametrize(
    "mark", ["a,line=9", "a::b:", "100%0A%2C", "two\nlines", "r\r::error::x", "\u2028\x1b[2J", "é 你"]
)
def test_a_name_and_a_message_stay_in_their_places(
    workspace: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What GitHub's runner reads back of a command is what the file and its log say."""
    name, said = f"logs/x{mark}.log", mark if mark.isprintable() else "plain"
    (workspace / "logs").mkdir()
    (workspace / name).write_text(f"RuntimeError: CUDA error: an illegal memory access was encountered {said} .\n")
    variables = {"GITHUB_STEP_SUMMARY": "page", "GITHUB_OUTPUT": "outputs"}
    paths = {variable: workspace.parent / file for variable, file in variables.items()}
    environment = {**{key: str(path) for key, path in paths.items()}, "GITHUB_WORKSPACE": str(workspace)}
    assert annotate.main([str(workspace / "logs")], environment) == 0
    (line,) = capsys.readouterr().out.splitlines()
    properties, _, text = line.removeprefix("::error ").partition("::")
    read = dict(part.split("=", 1) for part in properties.split(","))
    assert set(read) == {"file", "line", "title"} and read["line"] == "1"
    assert unescaped(read["file"]) == printable(name, keep="\n") and f"encountered {said} ." in unescaped(text)
    page, outputs = (path.read_text() for path in paths.values())
    assert page.count("\n") == 5 and outputs.count("\n") == len(outputs.splitlines()) == 5
    assert "\x1b" not in page + outputs and "\r" not in page + outputs


def unescaped(text: str) -> str:
    """Return what the runner makes of a property (ActionCommand.cs): `%25` last, so that it opens nothing."""
    for code, plain in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, plain)
    return text


def test_nothing_found_is_no_failure(workspace: Path) -> None:
    (workspace / "good.log").write_text("all is well\n")
    printed, page, outputs = action(workspace, "good.log")
    assert (printed, page) == ("", "") and outputs.startswith("crashes=0\nclass=\n")


TESTS = """
import shutil

def test_passes(): print("CUDA is here")

def test_leaves_a_core():
    shutil.copy("out/rank0.nvcudmp", "cores/core.1")
    raise RuntimeError("the process ended")

def test_prints_an_error(): run()

def run():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def test_fails_otherwise(): assert 1 == 2
"""


def run_tests(workspace: Path, *more: str) -> str:
    env = os.environ | {"GITHUB_ACTIONS": "true", "CUDA_COREDUMP_FILE": str(workspace / "cores" / "core.%p")}
    env.pop("PYTEST_XDIST_WORKER", None)
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the package may be installed: a plugin is loaded once
    argv = [sys.executable, "-m", "pytest", "-p", "vdbg_env.agents.pytest_plugin", "-p", "xdist", *more]
    ran = subprocess.run(argv, cwd=workspace, env=env, capture_output=True, text=True, timeout=120, check=False)
    return ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("-n", "2")])
def test_the_plugin_explains_a_failed_test(workspace: Path, more: tuple[str, ...]) -> None:
    (workspace / "cores").mkdir()
    (workspace / "cores" / "older").write_bytes(illegal_address_core(exception=6))  # no test left it
    os.utime(workspace / "cores" / "older", (1, 1))
    (workspace / "test_kernels.py").write_text(TESTS)
    told = run_tests(workspace, *more)
    assert "3 failed, 1 passed" in told
    commands = sorted(line for line in told.splitlines() if line.startswith("::error"))
    assert len(commands) >= 2
    assert commands[0].startswith("::error file=kernels/inline_chain.cu,line=3,title=gpu-core-warp-illegal-address::")
    assert "Misaligned" not in told
    if not more:  # tests that fail at the same time share their cores
        assert commands[-1].startswith("::error file=test_kernels.py,line=10,title=illegal-memory-access::")
        assert len(commands) == told.count("- GPU crash -") == 2


def test_a_folder_of_cores_that_cannot_be_read_is_named_and_ends_no_session(workspace: Path) -> None:
    (workspace / "test_it.py").write_text("def test_fails(): assert 1 == 2\n")
    (workspace / "cores").write_text("")
    long = "x" * 300
    for more, said in (
        ((), f"{workspace / 'cores'}: Not a directory"),
        (("--gpu-cores", "gone"), "gone: No such file or directory"),
        (("--gpu-cores", long), f"{long}: File name too long"),
    ):
        told = run_tests(workspace, *more)
        assert "1 failed" in told, told
        assert f"cores are not looked for: {said}" in told


DEADLY = """
import os, pathlib, shutil

def test_passes(): pass

def test_dies():
    shutil.copy("out/rank0.nvcudmp", "cores/core.1")
    os.abort()

def test_dies_with_a_log():
    pathlib.Path("cores/server.log").write_text("CUDA error: an illegal memory access was encountered\\n")
    os.kill(os.getpid(), 9)

def test_dies_in_silence(): os.abort()

def test_passes_too(): pass
"""


@pytest.mark.slow
def test_the_plugin_explains_a_worker_that_died(workspace: Path) -> None:
    (workspace / "cores").mkdir()
    (workspace / "test_kernels.py").write_text(DEADLY)
    told = run_tests(workspace, "-n", "1")
    assert "3 failed, 2 passed" in told and told.count("crashed while running") >= 3
    failed = told.partition("= FAILURES =")[2].partition("= short test summary info =")[0]  # names them again, in CI
    parts = re.split(r"crashed while running 'test_kernels.py::(\w+)'\n", failed)
    failures = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert "Warp Illegal Address at inline_chain.cu:3" in failures["test_dies"]
    assert "CUDA error: an illegal memory access" in failures["test_dies_with_a_log"]
    assert told.count("- GPU crash -") == 2 and "test_dies_in_silence" in failures
    log, core = sorted(line for line in told.splitlines() if line.startswith("::error"))
    assert log.startswith("::error file=cores/server.log,line=1,title=illegal-memory-access::")
    assert core.startswith("::error file=kernels/inline_chain.cu,line=3,title=gpu-core-warp-illegal-address::")


def test_the_package_names_the_plugin() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert named == {"vdbg_env": pytest_plugin.__name__}


def test_the_plugin_costs_nothing_while_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text(
        "import sys\ndef test_good(): assert not {'gpucore', 'vdbg_env.crash', 'click'} & set(sys.modules)\n"
    )
    assert "1 passed" in run_tests(tmp_path)
