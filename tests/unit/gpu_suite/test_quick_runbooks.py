"""The runbooks of the GPU suite are made of shipped steps: when those change, this tells it here and not on a GPU."""

from pathlib import Path

from tests.gpu.walking import HERE
from tests.support.command_line import vdbg_env


def test_they_lint_clean() -> None:
    paths = sorted(map(str, Path(HERE).glob("*.yaml")))
    done = vdbg_env("runbooks", "lint", *paths)
    assert (done.status, len(paths)) == (0, 2), done.stdout + done.stderr
