"""The skill: every command in it runs as it is written, and its head is what agents look for."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.builders.core_builder import CUBINS, hang_core, illegal_address_core
from tests.support.agent import agent

SKILL = Path(__file__).parents[3] / "skills" / "vdbg-env" / "SKILL.md"
COMMANDS = re.findall(r"^    (vdbg-env .*)$", SKILL.read_text(), re.MULTILINE)
CRASH = "raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
# Exit status of each command that finds what it looks for; 0 of the others.
FINDS = {"triage": 3, "core": 3, "guard": 1, "verify": 3, "runs report": 3, "doctor": 1}
ANY = {"doctor", "runs report"}  # of these it depends on the machine and on the report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skill")
    for name in ("cores", "src"):
        (folder / name).mkdir()
    (folder / "cores" / "rank0.nvcudmp").write_bytes(hang_core())
    (folder / "cores" / "rank1.nvcudmp").write_bytes(illegal_address_core())
    (folder / "core.nvcudmp").write_bytes(illegal_address_core())
    (folder / "src" / "inline_chain.cu").write_bytes((CUBINS / "inline_chain.cu").read_bytes())
    (folder / "libkernels.so").write_bytes((CUBINS / "no_lines_sm90.cubin").read_bytes())
    (folder / "server.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (folder / "job.py").write_text(CRASH)
    return folder


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "vdbg_env", *shlex.split(command)[1:]]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_every_command_runs_as_written(folder: Path) -> None:
    assert len(COMMANDS) >= 12
    for command in COMMANDS:
        ran = typed(command, folder)
        words = command.split()
        name = " ".join(words[1:3]) if words[1] == "runs" else words[1]
        if name not in ANY:
            wanted = 4 if "libkernels" in command and name == "locate" else FINDS.get(name, 0)
            assert ran.returncode == wanted, f"{command}: {ran.stdout}{ran.stderr}"
        assert ran.stdout.strip() or name == "guard", command
        assert "builder/vdbg_env" not in ran.stderr, command  # no traceback of the program itself


def test_the_head_is_that_of_a_skill() -> None:
    _, head, text = SKILL.read_text().split("---\n", 2)
    fields = yaml.safe_load(head)
    assert set(fields) == {"name", "description"} and fields["name"] == SKILL.parent.name
    assert len(fields["description"]) <= 1024 and len(text.encode()) < 5000


def test_what_it_says_of_tools_is_so(tmp_path: Path) -> None:
    with agent(tmp_path) as ask:
        names = {tool.name for tool in ask.portal.call(ask.client.list_tools).tools}
    page = (Path(__file__).parents[3] / "docs" / "guides" / "agents.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == names
