"""The entry point of images, by a real shell with a terminal: which commands are guarded."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

ENTRY_POINT = Path(__file__).parents[3] / "templates" / "entrypoint.sh"


def started(folder: Path, *command: str) -> str:
    """Return what is started for a command, and what is said, where the standard input is a terminal."""
    for name in ("vdbg-env", "vllm", "python3", "bash"):
        (folder / name).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
        (folder / name).chmod(0o755)
    terminal, ours = pty.openpty()
    try:
        argv = ["/bin/sh", str(ENTRY_POINT), f"{folder}/vdbg-env", "guard", "--", *command]
        env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
        ran = subprocess.run(argv, stdin=ours, env=env, capture_output=True, text=True, check=True)
    finally:
        os.close(terminal)
        os.close(ours)
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("vllm", "serve", "M"), "vdbg-env guard -- vllm serve M\n"),
        (("vllm", "chat"), "vllm chat\nvdbg-env: vllm has a terminal and runs without guard; "),
        (("bash",), "bash \n"),
        (("python3", "-i"), "python3 -i\nvdbg-env: python3 has a terminal and runs without guard; "),
    ],
    ids=["vllm-serve", "vllm-chat", "bash", "python"],
)
def test_a_terminal_goes_to_a_command_that_reads_it(tmp_path: Path, command: tuple[str, ...], expected: str) -> None:
    assert started(tmp_path, *command).startswith(expected)


def test_a_command_starts_where_the_program_s_own_python_is_gone(tmp_path: Path) -> None:
    """As where the base of an image was changed below a virtual environment that links to it."""
    launcher = ENTRY_POINT.parent / "vdbg-env.sh"
    (tmp_path / "tool" / "bin").mkdir(parents=True)
    (tmp_path / "tool" / "bin" / "python3").symlink_to(tmp_path / "gone")
    env = {"PATH": "/usr/bin:/bin", "VDBG_ROOT": str(tmp_path)}
    argv = ["/bin/sh", str(launcher), "guard", "--", "sh", "-c", "echo ran; exit 7"]
    ran = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (7, "ran\n")
    assert (
        ran.stderr == f"vdbg-env guard: the command runs without its guard: {tmp_path}/tool/bin/python3 is not there\n"
    )
