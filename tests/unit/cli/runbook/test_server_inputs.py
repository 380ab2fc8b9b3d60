"""Where a server listens and what it is sent, as the command line takes it: `-i port`, `-i request`, `--batch`."""

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.report.assemble import flags_after_guard
from vdbg_env.runbook import workload

SERVE = ("vllm", "serve", "M")
LADDER = ("runbook", "illegal-memory-access", "--batch")
# A server as vLLM is one: its model at /v1/models, prompts of tokens, what is too long refused.
STAND_IN = """
import http.server, json, sys
PORT = int(sys.argv[sys.argv.index('--port') + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {'data': [{'id': 'M', 'max_model_len': 300}]})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        fits = len(body['prompt']) + body['max_tokens'] <= 300 and body['model'] == 'M'
        print('got', self.path, len(body['prompt']), body['max_tokens'], fits, flush=True)
        self.answer(200 if fits else 400, {})
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', PORT), Handler).serve_forever()
"""


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        yield own.getsockname()[1]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("vllm", "serve", "M"), ("vllm", "serve", "M", "--port", "9")),
        (("vllm", "serve", "M", "--port", "8105", "-tp", "2"), ("vllm", "serve", "M", "--port", "9", "-tp", "2")),
        (("vllm", "serve", "--port=8105", "M"), ("vllm", "serve", "--port=9", "M")),
        (("env", "A=1", "vllm", "serve", "M"), ("env", "A=1", "vllm", "serve", "M", "--port", "9")),
        (("python", "my_server.py", "--port", "1"), ("python", "my_server.py", "--port", "9")),
        (("vllm", "serve", "M", "--", "--port", "1"), ("vllm", "serve", "M", "--port", "9", "--", "--port", "1")),
        (("python", "my_server.py"), None),
    ],
)
def test_a_port_is_put_into_the_command_line(argv: tuple[str, ...], expected: tuple[str, ...] | None) -> None:
    assert workload.with_port(argv, 9) == expected


def test_a_free_port_is_in_every_step_of_the_plan(project: Path) -> None:
    ran = vdbg_env(*LADDER, "--plan", "--json", "-i", "port=auto", "-i", "request=r.jsonl", "--", *SERVE)
    plan = json.loads(ran.stdout)
    port = plan["inputs"]["port"]
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 < int(port) < first_ephemeral
    commands = [step["argv"] for step in plan["steps"] if step.get("argv")]
    assert commands
    assert all(shlex.join(("--port", port)) in shlex.join(argv) for argv in commands)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-i", "port=much", "--", *SERVE), "is a port's number or auto"),
        (("-i", "port=auto", "-i", "url=http://127.0.0.1:1", "--", *SERVE), "'port' and 'url' both"),
        (("-i", "port=auto", "--", "./crash"), "where the port goes in this command is not known: ./crash"),
    ],
)
def test_a_port_that_cannot_be_put_there_is_bad_input(project: Path, words: tuple[str, ...], said: str) -> None:
    ran = vdbg_env(*LADDER, *words)
    assert ran.status == 2
    assert said in ran.stderr


def test_a_run_whose_port_is_taken_is_not_begun_and_names_who_has_it(project: Path, listener: int) -> None:
    ran = vdbg_env(*LADDER, "-i", "request=synthetic", "--", *SERVE, "--port", str(listener))
    assert ran.status == 2
    assert f"port {listener} is taken: process {os.getpid()} (" in ran.stderr
    assert "vdbg-env runbook illegal-memory-access -i port=auto -- COMMAND" in ran.stderr
    assert list(project.rglob("run.json")) == []


def test_a_batch_run_over_a_server_without_requests_is_not_begun(project: Path) -> None:
    ran = vdbg_env(*LADDER, "-i", "port=auto", "--", *SERVE)
    assert ran.status == 2
    assert "a server without requests never fails" in ran.stderr
    assert "-i request=synthetic" in ran.stderr
    assert "-i request=FILE" in ran.stderr
    assert list(project.rglob("run.json")) == []


RUNBOOK = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: driven, title: A server}
spec:
  inputs:
    argv: {type: array, required: true}
    request: {type: path}
    port: {type: string}
  commands:
    workload:
      argv: "${{ inputs.argv }}"
      driver: {replay: "${{ inputs.request }}", ready: {http: "${{ workload.url }}/health", timeout: 60s}}
      timeout: 2m
  steps:
    - id: baseline
      run: workload
      outcomes:
        - not_reproduced: {when: "ended.clean", next: end}
        - unresolved: {next: end}
"""


def ended() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(Path("run/steps/baseline").rglob("ended.json")).read_bytes())
    return found


def test_synthetic_requests_fit_the_servers_model_and_reach_it(project: Path) -> None:
    (project / "driven.yaml").write_text(RUNBOOK)
    (project / "synthetic").write_text("the word is not a file's name")
    given = ("-i", "request=synthetic", "-i", "port=auto")
    argv = (sys.executable, "-c", STAND_IN, "--port", "1")
    ran = vdbg_env("runbook", "./driven.yaml", "--batch", "--json", "--run-dir", "run", *given, "--", *argv)
    assert ran.status == 0, ran.stderr
    counts = ended()["requests"]
    assert counts["sent"] == counts["answered"] == counts["recorded"] == 7 + 16  # each length alone, then side by side
    assert f"{counts['sent']} of {counts['sent']} synthetic requests sent" in ended()["message"]
    stdout = next(Path("run/steps/baseline").rglob("stdout")).read_text()
    assert "False" not in stdout
    assert "got /v1/completions 284 16 True" in stdout, "the longest prompt that leaves room for an answer"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file or directory"), (b"", "it holds no requests"), (b"\x00\xff\n", "line 1 is no JSON")],
)
def test_requests_that_cannot_be_read_are_found_before_a_server_starts(
    project: Path, content: bytes | None, said: str
) -> None:
    (project / "driven.yaml").write_text(RUNBOOK)
    if content is not None:
        (project / "r.jsonl").write_bytes(content)
    argv = (sys.executable, "-c", "open('started', 'w')", "--port", "1")
    given = ("-i", "request=r.jsonl", "-i", "port=auto")
    ran = vdbg_env("runbook", "./driven.yaml", "--batch", "--run-dir", "run", *given, "--", *argv)
    assert ran.status == 2
    assert "-i request=r.jsonl: " in ran.stderr and said in ran.stderr
    assert "vdbg-env capture" in ran.stderr
    assert not (project / "started").exists() and not (project / "run").exists()


def test_a_file_that_is_called_synthetic_is_named_by_its_folder(project: Path) -> None:
    (project / "driven.yaml").write_text(RUNBOOK)
    (project / "synthetic").write_text(
        '{"url": "/v1/completions", "body": {"prompt": [], "max_tokens": 1, "model": "M"}}'
    )
    given = ("-i", "request=./synthetic", "-i", "port=auto")
    argv = (sys.executable, "-c", STAND_IN, "--port", "1")
    ran = vdbg_env("runbook", "./driven.yaml", "--batch", "--json", "--run-dir", "run", *given, "--", *argv)
    assert ran.stdout
    assert ended()["requests"]["recorded"] == 1


def test_the_next_step_of_a_guard_has_what_a_server_needs() -> None:
    assert flags_after_guard(("vllm", "serve", "M")) == " -i request=synthetic -i port=auto"
    assert flags_after_guard(("python", "offline.py")) == ""


@pytest.mark.parametrize(
    "name", ["illegal-memory-access", "host-crash", "kernel-hang", "out-of-memory", "nccl-failure"]
)
def test_the_runbooks_that_guard_names_have_both_inputs(name: str) -> None:
    shown = json.loads(vdbg_env("runbooks", "show", name, "--json").stdout)
    names = {one["name"] for one in shown["inputs"]} if isinstance(shown["inputs"], list) else set(shown["inputs"])
    assert {"port", "request"} <= names
