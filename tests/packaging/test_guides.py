"""Every command of README and the guides, as printed, from a clean folder; what is not run is listed, with why."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from gpucore import CodeMap
from tests.builders.core_builder import CUBINS, illegal_address_core
from tests.support.guide_blocks import Block, blocks
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
FIRST = ("docs/get-started.md", "README.md", "docs/index.md")
PAGES = [*(ROOT / name for name in FIRST), *sorted(ROOT.glob("docs/guides/*.md"))]
SAMPLE = CUBINS / "inline_chain_sm90.cubin"
_COMMAND = re.compile(r"(?:\w+=\S+ )*(?:for|vdbg-env|pip|python3?|kubectl|eval|autoload|_VDBG_ENV_COMPLETE=|cp|echo)\b")

pytestmark = pytest.mark.slow

# What is not run here: a pattern of the line, and what it needs or where it is run instead.
NOT_RUN = {
    r"\bpip (?:install|wheel)\b|^python3 -m venv": "`test_it_installs_as_the_pages_say` runs it",
    r"^vdbg-env (?:run|shell|bundle)\b|--image |\bIMAGE\b": "a Docker Engine with an image: tests/engine",
    r"^vdbg-env build (?!.*--dry-run)|^vdbg-env verify vdbg/|^vdbg-env dumps list$": "a Docker Engine: tests/engine",
    r"^vdbg-env build --onto|^vdbg-env lines build": "NVIDIA's compiler and a wheel of vLLM: make accept-onto",
    r"~/mine\b|\bmine-1\.0|\bmine\.lines": "a wheel of the reader's own: tests/slow/test_lines_build_own.py",
    r"\.triton\b|\btriton\.lines": "a cache that Triton filled on a GPU",
    r"^vdbg-env lines pull https://HOST": "a server of line packs: tests/unit/lines",
    r"^vdbg-env capture": "clients until Ctrl-C: tests/packaging/test_lowest_versions.py is one",
    r"^vdbg-env dump PID": "a process that hangs on a GPU",
    r"--memory latest": "a run on a GPU: tests/unit/crash/test_memory_map.py",
    r"^kubectl patch|^kubectl get pods": "a cluster: tests/k8s",
    r"--on slurm": "a cluster: tests/slurm",
    r"^autoload|^_VDBG_ENV_COMPLETE=fish": "another shell: tests/unit/cli/test_completion.py",
}
# What a block shows that has neither commands nor a language, by the beginning of its first line.
SHOWN = {
    "t.so: none": "what verify prints",
    "why      thread": "what core prints",
    "Core 0:": "an answer of the MCP server",
    "0x7f2001f52800": "what locate prints",
    "workload:": "a part of a runbook",
    "commands:": "a part of a runbook",
    '{"schema": "vdbg-env/guard/v1"': "the line of guard",
}
# The exit status of a command whose input has a crash, or which would have to ask at a terminal.
STATUS = {
    r"vdbg-env (?:demo|core|triage(?! --run)|runbook (?!.*--plan))": 3,
    r"vdbg-env runs report": 3,
    r"vdbg-env doctor": 4,
    r"vdbg-env runbook illegal-memory-access -- vllm|vdbg-env triage --run": 2,
    r"vdbg-env guard -- vllm": 1,
}


def lines_of(block: Block) -> list[str]:
    """Return the lines of a block of commands; empty for another block."""
    if block.language not in {"", "sh", "bash"} or not _COMMAND.match(block.text):
        return []
    return [line for line in block.text.split("\n") if line.strip()]


def reason(line: str) -> str:
    """Return why a line is not run, empty for one that is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), "")


def command(line: str) -> str:
    """Return a line without its comment."""
    return re.sub(r"\s+#.*", "", line)


def commands_of(page: Path) -> list[str]:
    """Return the lines of a page that are run on it: those of an earlier page are run there."""
    before = {command(line) for one in PAGES[: PAGES.index(page)] for line in printed(one)}
    return [line for line in printed(page) if not reason(line) and command(line) not in before]


def printed(page: Path) -> list[str]:
    """Return the lines of all commands of a page."""
    return [line for block in blocks(page.read_text()) for line in lines_of(block)]


def status(line: str) -> int:
    """Return the exit status that a line is to have."""
    return next((number for pattern, number in reversed(STATUS.items()) if re.search(pattern, line)), 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_block_is_run_or_read_or_listed(page: Path) -> None:
    for block in blocks(page.read_text()):
        match block.language:
            case "yaml":
                yaml.safe_load(block.text)
            case "json":
                json.loads(block.text)
            case "python":
                ast.parse(block.text)
            case _ if not lines_of(block):
                listed = any(block.text.startswith(begin) for begin in SHOWN)
                assert listed, f"{page.name}:{block.line}: a block that is neither run nor listed: {block.text[:60]}"


def reader(folder: Path) -> dict[str, str]:
    """Lay out in a folder what a reader of the pages has, and return the variables of the shell."""
    core, log = illegal_address_core(), "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    places = (
        "bin",
        "dumps/llm-0/runs",
        "vdbg-runs",
        "src/vllm",
        "logs",
        "site-packages/vllm",
        "vllm",
        "dist",
        "build/vllm",
    )
    for place in places:
        (folder / place).mkdir(parents=True)
    for name in ("core_12345.nvcudmp", "core.nvcudmp", "dumps/core_rank0.nvcudmp"):
        (folder / name).write_bytes(core)
    kernels = ("libkernels.so", "vllm/_C_stable_libtorch.abi3.so", "site-packages/vllm/_C.so", "build/vllm/_C.so")
    for name in kernels:
        (folder / name).write_bytes(SAMPLE.read_bytes())
    (folder / "server.log").write_text(log)
    (folder / "requests.jsonl").write_text('{"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n')
    with tarfile.open(folder / "saved.tar", "w") as saved, zipfile.ZipFile(folder / "dist/x.whl", "w") as wheel:
        saved.add(SAMPLE, "kernels.so")
        wheel.write(SAMPLE, "kernels.so")
    for rank in range(2):
        (folder / "logs" / f"rank{rank}.log").write_text(log if rank else "ready\n")
    for name in ("offline.py", "train.py"):
        (folder / name).write_text(f"import sys\nsys.exit({log!r})\n")
    (folder / "deployment.yaml").write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: llm}\nspec:\n  selector: {matchLabels: {app: llm}}\n"
        "  template:\n    metadata: {labels: {app: llm}}\n    spec: {containers: [{name: llm, image: x/llm, command: "
        "[vllm, serve, M]}]}\n"
    )
    programs = {
        "python": f'exec {sys.executable} "$@"', "python3": f'exec {sys.executable} "$@"',
        "vllm": "cat server.log; exit 1",
        "torchrun": f"exec {sys.executable} train.py",
        "kubectl": 'case "$1" in logs) cat server.log ;; get) cat deployment.yaml ;; *) exit 1 ;; esac',
    }  # fmt: skip
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("VDBG_", "CUDA_", "PYTHON", "PYTEST_", "COV_"))}
    own = Path(sys.executable).parent
    return {
        **kept, "HOME": str(folder), "PATH": f"{folder / 'bin'}:{own}:{os.environ['PATH']}",
        "DOCKER_HOST": "unix:///nonexistent",
    }  # fmt: skip


def on_this_machine(line: str, folder: Path) -> str:
    """Return a line with the places and names of this folder for those of the reader's machine."""
    kernel = CodeMap(SAMPLE.read_bytes()).kernels[0].name
    for printed, here in (
        ("/dumps", f"{folder}/dumps"), ("'blur(float*, int)+0x1a0'", f"'{kernel}+0x80'"), ("FILE...", "core.nvcudmp"),
        ("PC FILE", "0x7fffd9001140 core.nvcudmp"), ("ARGV...", "python offline.py"), (" FOLDER", " packs"),
    ):  # fmt: skip
        line = line.replace(printed, here)
    return line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_runs_as_printed(page: Path, tmp_path: Path) -> None:
    environment = reader(tmp_path)
    for block in blocks(page.read_text()):  # a file that the page has the reader write
        if named := re.search(r"^.*#\s+([\w/]+\.yaml)$", block.text.split("\n")[0]):
            (tmp_path / named[1]).parent.mkdir(exist_ok=True)
            (tmp_path / named[1]).write_text(block.text)
    wrong = []
    for line in commands_of(page):
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", on_this_machine(line, tmp_path)], cwd=tmp_path, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience(120), check=False,
        )  # fmt: skip
        if ran.returncode != status(line) or "Traceback" in ran.stderr:
            wrong.append(f"{line}: {ran.returncode}\n{ran.stdout[-300:]}\n{ran.stderr[-600:]}")
    assert not wrong, "\n".join(wrong)


def test_it_installs_as_the_pages_say(tmp_path: Path) -> None:
    """In a checkout: wheels for a site without network, the installation there, and the one from the package index."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("no git checkout here")
    checkout = tmp_path / "checkout"
    for name in (os.fsdecode(name) for name in tracked.stdout.split(b"\0") if name):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    pages = sorted(PAGES, key=lambda page: page.stem != "air-gap")  # what it installs came from its own wheels alone
    lines = [command(line) for page in pages for line in printed(page) if "~/mine" not in line]
    typed = [line for line in lines if re.match(r"(?:\w+=\S+ )*pip\b", line)]
    assert typed[0].startswith("pip wheel") and "--no-index" in typed[1] and "pip install '.[mcp]'" in typed
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("VDBG_", "PYTHON", "PYTEST_", "COV_"))}
    script = [
        "python3 -m venv ~/vdbg && . ~/vdbg/bin/activate",
        *typed[:2],
        "vdbg-env --version",
        *dict.fromkeys(typed[2:]),
    ]
    ran = subprocess.run(
        ["bash", "-ex"], input="\n".join([*script, "vdbg-env demo || test $? = 3"]), cwd=checkout, text=True,
        env={**kept, "HOME": str(tmp_path), "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"},
        capture_output=True, timeout=patience(400), check=False,
    )  # fmt: skip
    if re.search("NewConnectionError|NameResolutionError|ConnectTimeout", ran.stdout + ran.stderr):
        pytest.skip("no package index")
    assert ran.returncode == 0, ran.stdout[-1500:] + ran.stderr[-1500:]
    assert "Warp Illegal Address" in ran.stdout, ran.stdout[-1500:]
