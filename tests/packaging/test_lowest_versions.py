"""The oldest versions that pyproject.toml admits: each is enough for every command that needs no GPU and no engine."""

import json
import os
import re
import shlex
import signal
import socketserver
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpucore import CodeMap
from tests.builders.core_builder import CUBINS, illegal_address_core
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SAMPLE = CUBINS / "inline_chain_sm90.cubin"
_NO_INDEX = re.compile("dns error|Connection refused|timed out|offline|Failed to fetch|Request failed", re.IGNORECASE)

pytestmark = pytest.mark.slow

# The exit status and the words of each command, run in this order in one folder: later ones use what earlier ones made.
# `lines build` needs a compiler, and `run`, `shell` and `bundle` are refused by an engine that has no image.
SMOKE = """
0 --version
0 --help
0
3 triage server.log
3 triage --json server.log
3 core rank0.nvcudmp
3 core --json rank0.nvcudmp
0 locate 0x80 --kernel KERNEL kernels.cubin
0 verify --witness none kernels.cubin
3 demo
0 runbook illegal-memory-access --plan -- python3 offline.py
3 runbook illegal-memory-access --batch -- sh -c 'cat server.log; exit 1'
0 runbooks list
0 runbooks show illegal-memory-access
0 runbooks explain illegal-memory-access coredump
0 runbooks schema
0 runbooks new my-crash
0 runbooks lint my-crash.yaml
0 runbooks fmt --check my-crash.yaml
0 runbooks docs failures
0 runs list
0 runs show latest
3 runs report latest --format markdown
4 runs diff OLDEST latest
0 runs export latest -o run.tar.gz
0 runs redact latest
0 runs prune --keep 1
7 guard -- sh -c 'exit 7'
0 dump --arm
0 dumps list --dumps DUMPS
0 dumps export --dumps DUMPS dumps.tar
0 dumps prune --dumps DUMPS --older-than 7d
0 images list
0 images show sample
0 images schema
0 images new our-vllm
0 images lint our-vllm
0 build --profile sample --dry-run
0 render --profile sample rendered
0 render --format k8s --for llm.yaml guarded
0 lines pack kernels.cubin -o kernels.lines
0 lines list kernels.lines
0 lines show kernels.lines
0 lines verify kernels.lines
0 lines merge kernels.lines -o merged.lines
0 lines prune --max-size 1g .
1 lines pull http://127.0.0.1:9/none
2 run -- true
2 shell --image none -- true
4 doctor
1 mcp .
1 capture --to 127.0.0.1:9 -o requests.jsonl
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec: {containers: [{name: llm, image: example/llm, command: [vllm, serve, M]}]}
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the package; `run` is in `folder`, with an engine that has no image."""

    bin: Path
    folder: Path
    engine: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("VDBG_", "CUDA_", "PYTHON", "PYTEST_"))}
        return {
            **kept, "HOME": str(self.folder), "DOCKER_HOST": f"unix://{self.engine}", "VDBG_ENV_RUNS": "runs",
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "vdbg-env", *words], cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience(60), check=False,
        )  # fmt: skip


class _Engine(BaseHTTPRequestHandler):
    """What an engine without images answers."""

    def do_GET(self) -> None:
        version = {"Version": "28.0.0", "ApiVersion": "1.48", "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64"}
        answer, status = {
            "/_ping": ("OK", 200), "/version": (json.dumps(version), 200), "/info": ("{}", 200),
            "/images/json": ("[]", 200),
        }.get(re.sub(r"^/v[\d.]+|\?.*", "", self.path), ('{"message": "No such image"}', 404))  # fmt: skip
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def uv(*words: str) -> None:
    """Run uv with the index that pip uses; skip the test where there is none."""
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = os.environ.get("PIP_INDEX_URL") or subprocess.run(pip, capture_output=True, text=True).stdout.strip()
    environment = {"UV_DEFAULT_INDEX": index, **os.environ} if index else dict(os.environ)
    ran = subprocess.run(
        [sys.executable, "-m", "uv", *words], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=patience(300), check=False,
    )  # fmt: skip
    if ran.returncode and _NO_INDEX.search(ran.stderr):
        pytest.skip(f"no package index: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr


def install(into: Path, extras: str) -> None:
    uv("pip", "install", "--quiet", "--python", str(into), "--resolution", "lowest-direct", f".{extras}")


@pytest.fixture(scope="module")
def lowest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    place = tmp_path_factory.mktemp("lowest")
    uv("venv", "--quiet", "--python", sys.executable, str(place / "venv"))
    install(place / "venv", "")
    folder = place / "folder"
    folder.mkdir()
    (folder / "rank0.nvcudmp").write_bytes(illegal_address_core())
    (folder / "kernels.cubin").write_bytes(SAMPLE.read_bytes())
    (folder / "server.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (folder / "llm.yaml").write_text(DEPLOYMENT)
    with _Unix(str(place / "engine"), _Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Installed(bin=place / "venv" / "bin", folder=folder, engine=place / "engine")
        server.shutdown()


def bounds(*groups: list[str]) -> dict[str, str]:
    """Return the lowest version of each requirement that holds for this Python."""
    old = sys.version_info < (3, 12)
    wanted = [text for group in groups for text in group if old or "python_version" not in text]
    found = [re.match(r"([\w.-]+)>=([\d.]+)", text) for text in wanted]
    assert all(found), wanted
    return {one[1]: one[2] for one in found if one}


def installed_versions(lowest: Installed) -> dict[str, str]:
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    versions = json.loads(subprocess.check_output([lowest.bin / "python", "-c", code], text=True))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in versions.items()}


def test_every_command_runs_with_the_lowest_versions(lowest: Installed) -> None:
    there = installed_versions(lowest)
    for name, bound in bounds(PROJECT["dependencies"]).items():
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", there[re.sub(r"[-_.]+", "-", name).lower()]), name
    kernel = CodeMap(SAMPLE.read_bytes()).kernels[0].name
    wrong = []
    for line in SMOKE.split("\n")[1:-1]:
        status, *words = shlex.split(line)
        oldest = min((path.name for path in (lowest.folder / "runs").glob("2*")), default="")
        meant = {"KERNEL": kernel, "DUMPS": str(lowest.folder), "OLDEST": oldest}
        ran = lowest.run(*(meant.get(word, word) for word in words))
        if ran.returncode != int(status) or "Traceback" in ran.stderr:
            wrong.append(f"{line}: {ran.returncode}\n{ran.stdout[-500:]}\n{ran.stderr[-800:]}")
    assert not wrong, "\n".join(wrong)
    assert "Docker Engine 28.0.0" in lowest.run().stdout


def test_the_extras_run_with_the_lowest_versions(lowest: Installed) -> None:
    install(lowest.bin.parent, "[mcp,capture]")
    for name, bound in bounds(PROJECT["optional-dependencies"]["capture"]).items():
        assert installed_versions(lowest)[name] >= bound  # aiohttp wants later ones of the others
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"},
    }}  # fmt: skip
    served = subprocess.run(
        [lowest.bin / "vdbg-env", "mcp", "."], cwd=lowest.folder, env=lowest.environment, text=True,
        input=json.dumps(asked) + "\n", capture_output=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert json.loads(served.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "vdbg-env", served.stderr


class _Upstream(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_capture_passes_a_request_on_with_the_lowest_versions(lowest: Installed) -> None:
    install(lowest.bin.parent, "[capture]")
    with HTTPServer(("127.0.0.1", 0), _Upstream) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        words = ["capture", "--port", "0", "--to", f"127.0.0.1:{upstream.server_port}", "-o", "requests.jsonl"]
        with subprocess.Popen(
            [lowest.bin / "vdbg-env", *words], cwd=lowest.folder, env=lowest.environment, text=True,
            stderr=subprocess.PIPE,
        ) as capture:  # fmt: skip
            assert capture.stderr
            port = re.search(r"127\.0\.0\.1:(\d+)", capture.stderr.readline())
            assert port
            sent = urllib.request.Request(f"http://127.0.0.1:{port[1]}/v1/completions", b'{"prompt": "x"}')
            with urllib.request.urlopen(sent, timeout=patience(30)) as answer:
                assert answer.read() == b"{}"
            capture.send_signal(signal.SIGINT)
            capture.wait(patience(30))
        upstream.shutdown()
    assert json.loads((lowest.folder / "requests.jsonl").read_text().splitlines()[-1])
