"""Nothing that we print, run or write installs this program by its name: on a package index that is no one's yet."""

import re
import subprocess
from pathlib import Path

import pytest

from vdbg_env.common import distribution

ROOT = Path(__file__).parents[2]
_INSTALLS = re.compile(r"\b(?:pip[\d.]*|pipx|uv|uvx)\b(?P<words>(?:(?!, )[^\n;&|`#])*)")
_NAMED = re.compile(r"(?:^|[\s'\"(=])vdbg[-_.]env(?:\[[\w,-]*\])?(?:[=<>~!]=?[\w.]+)?(?=['\"\s).,]|$)(?!\s*@)")
_VERBS = re.compile(r"\b(?:install|download|wheel|run|add|tool|with)\b|^\s*['\"]?vdbg")


def by_name(line: str) -> bool:
    """Return whether a line has a command that would fetch this program by name from an index."""
    for found in _INSTALLS.finditer(line):
        words = found["words"]
        local = "--no-index" in words or re.search(r"--(?:spec|from)[ =]\S*[./$]", words)
        if not local and _VERBS.search(words) and _NAMED.search(words):
            return True
    return False


@pytest.mark.parametrize(
    "line",
    ["pip install vdbg-env", "python3 -m pip install --quiet 'vdbg-env[mcp]'", "(pip install vdbg-env): armed",
     "uvx vdbg-env doctor", "pipx run vdbg-env demo", "uv tool install vdbg-env==0.1.0", "pip download vdbg_env",
     "uv pip install \"vdbg-env[capture]>=0.1\"", "pip install vdbg-env, or --image"],
)  # fmt: skip
def test_what_installs_by_name_is_seen(line: str) -> None:
    assert by_name(line)


@pytest.mark.parametrize(
    "line",
    ["pip install .", "pip install '.[mcp]'", "pipx run --spec . vdbg-env demo", "uvx --from . vdbg-env doctor",
     "pip install --no-index --find-links wheels vdbg-env", "pip install wheels/vdbg_env-0.1.0-py3-none-any.whl",
     "pip install 'vdbg-env @ https://host.example/x.whl'", "pip install pre-commit, then vdbg-env demo"],
)  # fmt: skip
def test_what_installs_from_what_is_there_is_not(line: str) -> None:
    assert not by_name(line)


def test_no_file_installs_by_name() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout here")
    own = Path(__file__).relative_to(ROOT)
    wrong = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if name in {"CHANGELOG.md", str(own)} or name.startswith("tests/data/") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        joined = re.sub(r"[\"'] *\n *f?[\"']|\\\n *|\n {4,}(?=')", " ", text)  # a command may go on in the next line
        wrong += [f"{name}: {line.strip()[:160]}" for line in {*text.split("\n"), *joined.split("\n")} if by_name(line)]
    assert not wrong, "\n".join(wrong)


def test_what_adds_an_extra_names_what_it_requires() -> None:
    known = distribution.requirements()
    assert known and {"mcp", "capture"} <= known.extras.keys()
    words = distribution.install_words("capture")
    assert "aiohttp>=" in words and "vdbg" not in words.partition(" -m ")[2]
    assert not by_name(words)
