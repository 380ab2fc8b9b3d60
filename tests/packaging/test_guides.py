"""Every command of README and the guides, as printed, from a clean folder; what is not run is listed with the reason."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpucore import CodeMap
from tests.builders.core_builder import CUBINS, illegal_address_core
from tests.support.guide_blocks import Block, blocks
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/get-started.md", *sorted(ROOT.glob("docs/guides/*.md"))]
SAMPLE = CUBINS / "inline_chain_sm90.cubin"
_COMMAND = re.compile(r"(?:\w+=\S+ )*(?:vdbg-env|pip|python3?|kubectl|eval|autoload|_VDBG_ENV_COMPLETE=|cp|echo)\b")

pytestmark = pytest.mark.slow

# What is not run here: a pattern of the line, and why.
NOT_RUN = {
    r"\bpip (install|wheel)\b|^python3 -m venv": "test_it_installs_as_the_pages_say",
    r"--image |^vdbg-env (run|shell|bundle) |^vdbg-env build (?!.*--dry-run)|IMAGE|^vdbg-env verify vdbg/": "an engine and an image",
    r"^kubectl patch|^kubectl get pods": "cluster",
    r"--on slurm": "slurm",
    r"lines build|--onto": "oracle",
    r"zsh_source|fish_source": "shell",
}
# What a block shows where it has neither commands nor a language, by its first line.
SHOWN: dict[str, str] = {}
# Exit statuses other than 0.
STATUS: dict[str, int] = {}


def lines_of(block: Block) -> list[str]:
    """Return the lines of a block of commands; empty for another block."""
    if block.language not in {"", "sh", "bash"} or not _COMMAND.match(block.text):
        return []
    return [line for line in block.text.split("\n") if line.strip()]


def reason(line: str) -> str:
    """Return why a line is not run, empty for one that is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), "")


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
                first = block.text.split("\n")[0]
                assert first in SHOWN, f"{page.name}:{block.line}: a block that is neither run nor listed: {first}"


def reader(folder: Path) -> dict[str, str]:
    """Lay out in a folder what a reader of the pages has, and return the variables of the shell."""
    core, log = illegal_address_core(), "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    for place in ("bin", "dumps", "vdbg-runs", "src/vllm", "logs", "site-packages/vllm", "vllm", "dist", "build/vllm"):
        (folder / place).mkdir(parents=True)
    for name in ("core_12345.nvcudmp", "core.nvcudmp", "dumps/core_rank0.nvcudmp"):
        (folder / name).write_bytes(core)
    kernels = ("libkernels.so", "vllm/_C_stable_libtorch.abi3.so", "site-packages/vllm/_C.so", "build/vllm/_C.so")
    for name in kernels:
        (folder / name).write_bytes(SAMPLE.read_bytes())
    (folder / "server.log").write_text(log)
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
        "python": f'exec {sys.executable} "$@"', "python3": f'exec {sys.executable} "$@"', "vllm": "exit 0",
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
        ("PC FILE", "0x80 libkernels.so"), ("ARGV...", "python offline.py"), (" FOLDER", " packs"),
    ):  # fmt: skip
        line = line.replace(printed, here)
    return line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_runs_as_printed(page: Path, tmp_path: Path) -> None:
    environment = reader(tmp_path)
    wrong = []
    for line in (line for block in blocks(page.read_text()) for line in lines_of(block)):
        if reason(line):
            continue
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", on_this_machine(line, tmp_path)], cwd=tmp_path, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience(120), check=False,
        )  # fmt: skip
        if ran.returncode != STATUS.get(line.partition("  #")[0].strip(), 0) or "Traceback" in ran.stderr:
            wrong.append(f"{line}: {ran.returncode}\n{ran.stdout[-300:]}\n{ran.stderr[-600:]}")
    assert not wrong, "\n".join(wrong)
