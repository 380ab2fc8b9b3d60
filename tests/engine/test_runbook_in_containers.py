"""`vdbg-env runbook --image` on a real engine: the same walk, the same record, and no container left behind."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.core_builder import hang_core, illegal_address_core
from tests.engine.step_images import (
    WORKLOADS,
    CommandLine,
    python_image,
    report,
    runbook,
    step_containers,
    until,
    user_image,
)
from tests.slow.test_ladder import LADDER
from tests.support.build_orders import BASE
from tests.support.ladder import SHORTER, outcomes
from vdbg_env.engine.client import Engine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NO_GPU = ("--gpu", "none", "--dumps", "none", "--batch")

BEGUN: list[CommandLine] = []  # what a test has started, ended with it

# Two steps; each start leaves a line in the ledger that lies in a mounted folder.
TWO_STEPS = """
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: two-steps, title: Two steps}
spec:
  inputs: {argv: {type: array, required: true, description: The workload.}}
  commands:
    workload: {argv: "${{ inputs.argv }}"}
  steps:
    - id: first
      name: First
      run: workload
      env: {STEP: first}
      kill: {signal: SIGTERM, grace: 1s}
      outcomes:
        - reproduced: {when: "ended.by == 'exit' && ended.code == 1", next: second}
        - unresolved: {next: second}
    - id: second
      name: Second
      run: workload
      env: {STEP: second}
      kill: {signal: SIGTERM, grace: 1s}
      outcomes:
        - reproduced: {when: "ended.by == 'exit' && ended.code == 1", next: end}
        - unresolved: {next: end}
"""


@pytest.fixture
def image(docker_engine: Engine) -> str:
    return python_image(docker_engine)


@pytest.fixture
def folder(tmp_path: Path, docker_engine: Engine) -> Iterator[Path]:
    """A user's folder with a runbook of two steps; no container of a step is left at the end."""
    (tmp_path / "two-steps.yaml").write_text(TWO_STEPS)
    yield tmp_path
    for begun in BEGUN:
        begun.dismiss()
    BEGUN.clear()
    assert step_containers(docker_engine, tmp_path) == []


def two_steps(folder: Path, image: str, code: str, *flags: str, **options: Any) -> CommandLine:
    """Begin the runbook of two steps on a line of Python that may write into the folder."""
    words = ["-f", "two-steps.yaml", "--image", image, "--mount", ".", *NO_GPU, "--json", "--run-dir", "run", *flags]
    BEGUN.append(CommandLine(folder, "two-steps", *words, "--", "python3", "-c", code, **options))
    return BEGUN[-1]


def ledger(folder: Path) -> list[str]:
    path = folder / "ledger"
    return path.read_text().split() if path.exists() else []


NAP = (
    "import os, time\n"
    "with open('ledger', 'a') as file: file.write(os.environ['STEP'] + '\\n')\n"
    "print('up', flush=True); time.sleep(2); raise SystemExit(1)"
)


def shipped(folder: Path) -> None:
    """Lay the shipped runbooks into the folder, with waits that a test can afford."""
    shutil.copytree(ROOT / "runbooks", folder / "runbooks")
    for path in (folder / "runbooks").rglob("*.yaml"):
        text = path.read_text()
        for pattern, shorter in SHORTER:
            text = re.sub(pattern, shorter, text)
        path.write_text(text)


def fake_vllm(folder: Path) -> tuple[str, ...]:
    """Return the flags that put the scripted vLLM and its cores into a container."""
    program = folder / "vllm"
    shutil.copy(WORKLOADS / "fake_vllm.py", program)
    program.chmod(0o755)
    (folder / "ima.core").write_bytes(illegal_address_core())
    (folder / "hang.core").write_bytes(hang_core())
    mounts = (f"{program}:/usr/local/bin/vllm:ro", f"{folder / 'ima.core'}:ro", f"{folder / 'hang.core'}:ro")
    return tuple(word for mount in mounts for word in ("--mount", mount))


def test_an_illegal_access_is_walked_in_containers_to_kernel_line_and_chain(folder: Path, image: str) -> None:
    shipped(folder)
    variables = ("-e", "FAKE_VLLM=ima", "-e", f"FAKE_VLLM_CORE={folder / 'ima.core'}", "-e", "FAKE_VLLM_NASTY=1")
    place = ("--image", image, *fake_vllm(folder), *variables, *NO_GPU)
    walked = report(
        runbook(folder, "illegal-memory-access", "--json", *place, "--", "vllm", "bench", "throughput", "-tp", "2")
    )
    seen = outcomes(walked)
    assert [seen[step] for step in ["baseline", *LADDER, "coredump"]] == ["reproduced"] * 10
    assert seen["analyse"] == "pass"
    lead = next(f for f in walked["findings"] if f["how_known"] == "gpu-core")
    assert "kern" in lead["kernel"]
    assert lead["location"]["file"].endswith("inline_chain.cu")
    assert len(lead["chain"]) >= 2
    run = folder / "vdbg-runs" / walked["run"]
    head = json.loads((run / "run.json").read_text())
    assert (head["facts"]["on"], head["image"]["name"]) == ("docker", image)
    assert head["image"]["id"].startswith("sha256:")
    assert walked["environment"]["steps run in"] == f"containers of {image}"
    blocking = json.loads((run / "steps/blocking/1/localhost-0/ended.json").read_text())
    assert {w["seen"]["CUDA_LAUNCH_BLOCKING"] for w in blocking["workers"]} == {"1"}


def test_a_hang_in_a_container_is_dumped_through_its_pipe(folder: Path, image: str) -> None:
    shipped(folder)
    variables = ("-e", "FAKE_VLLM=hang", "-e", f"FAKE_VLLM_CORE={folder / 'hang.core'}")
    place = ("--image", image, *fake_vllm(folder), *variables, *NO_GPU)
    walked = report(runbook(folder, "illegal-memory-access", "--json", *place, "--", "vllm", "bench", "throughput"))
    seen = outcomes(walked)
    assert walked["runbook"] == "kernel-hang"  # the baseline's silence is handed over
    assert (seen["baseline"], seen["watched"], seen["analyse"]) == ("hang", "hang", "pass")
    assert walked["hangs"][0]["warps"]
    said = (folder / "vdbg-runs" / walked["run"] / "steps/watched/1/localhost-0/hang.txt").read_text()
    assert "waits in" in said
    assert ": written " in said


def test_an_engine_killed_in_a_step_is_resumed_and_starts_nothing_twice(
    folder: Path, image: str, docker_engine: Engine
) -> None:
    first = two_steps(folder, image, NAP)
    first.until(lambda: ledger(folder) == ["first"])
    first.killed()
    (container,) = step_containers(docker_engine, folder)
    assert docker_engine.client.inspect_container(container)["State"]["Running"]
    again = report(runbook(folder, "two-steps", "-f", "two-steps.yaml", "--resume", "run", "--json"))
    assert outcomes(again) == {"first": "reproduced", "second": "reproduced"}
    assert ledger(folder) == ["first", "second"]
    assert (folder / "run/steps/first/1/localhost-0/stdout").read_text() == "up\n"
    assert not (folder / "run/steps/first/2").exists()


def test_an_engine_killed_and_resumed_after_the_step_has_ended_reads_its_end(
    folder: Path, image: str, docker_engine: Engine
) -> None:
    first = two_steps(folder, image, NAP)
    first.until(lambda: ledger(folder) == ["first"])
    first.killed()
    until((folder / "run/steps/first/1/localhost-0/ended.json").exists)
    again = report(runbook(folder, "two-steps", "-f", "two-steps.yaml", "--resume", "run", "--image", image, "--json"))
    assert outcomes(again) == {"first": "reproduced", "second": "reproduced"}
    assert ledger(folder) == ["first", "second"]


def test_another_image_than_the_run_was_begun_with_is_refused(folder: Path, image: str) -> None:
    first = two_steps(folder, image, "raise SystemExit(1)")
    assert first.ended().status in {0, 3, 4, 125}
    other = runbook(folder, "two-steps", "-f", "two-steps.yaml", "--resume", "run", "--image", BASE)
    assert other.status == 2
    assert f"begun in containers of {image}" in other.stderr


def test_ctrl_c_ends_the_step_politely_and_leaves_no_container(folder: Path, image: str, docker_engine: Engine) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(7)))\n"
        "open('ledger', 'w').write('up'); time.sleep(60)"
    )
    begun = two_steps(folder, image, code)
    begun.until(lambda: ledger(folder) == ["up"])
    begun.process.send_signal(signal.SIGINT)
    ended = begun.ended(30)
    assert ended.status == 130
    assert "--resume" in ended.stderr
    assert (folder / "run/steps/first/1/localhost-0/stdout").read_text() == "bye\n"
    assert step_containers(docker_engine, folder) == []


def test_an_image_without_python_is_told_before_anything_runs(folder: Path) -> None:
    ended = two_steps(folder, BASE, "pass").ended()
    assert ended.status == 2
    assert "has no python3" in ended.stderr and "apt-get install -y python3" in ended.stderr
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("--image", "no/such:image"), 2, "no/such:image"),
        (("--mount", "/no/such/folder"), 1, "does not have '/no/such/folder'"),
        (("--user", "nobody-here"), 2, "has no user 'nobody-here'"),
        (("--gpu", "runtime"), 1, "GPUs by runtime"),
    ],
)
def test_what_keeps_containers_from_starting_is_told_before_a_run_begins(
    folder: Path, image: str, flags: tuple[str, ...], status: int, words: str
) -> None:
    if "--gpu" in flags and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    ended = two_steps(folder, image, "pass", *flags).ended()
    assert ended.status == status, ended.stderr
    assert words in ended.stderr
    assert not (folder / "run").exists()


def test_no_engine_is_told_with_what_to_type(folder: Path, image: str) -> None:
    ended = two_steps(folder, image, "pass", env={"DOCKER_HOST": f"unix://{folder}/none.sock"}).ended()
    assert ended.status == 1
    assert "cannot reach" in ended.stderr and "systemctl start docker" in ended.stderr


def test_a_container_that_runs_out_of_memory_says_so(folder: Path, image: str) -> None:
    code = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    ended = two_steps(folder, image, code, "--memory", "64m").ended()
    first = report(ended)["steps"][0]
    assert (first["ended"]["by"], first["ended"]["signal"]) == ("signal", 9)
    assert "out of memory" in first["ended"]["message"] and "64 MiB of --memory" in first["ended"]["message"]
    told = json.loads((folder / "run/steps/first/1/localhost-0.container.json").read_text())
    assert told["out_of_memory"] is True


def test_a_server_is_driven_inside_its_container(folder: Path, image: str) -> None:
    """Its port is the container's own, and the recorded requests are read there without being mounted by the user."""
    server = (
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(s): s.send_response(200); s.end_headers()\n"
        "    def do_POST(s):\n"
        "        print('got', s.rfile.read(int(s.headers['Content-Length'])).decode(), flush=True)\n"
        "        s.send_response(200); s.end_headers()\n"
        "    def log_message(s, *a): pass\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', 8000), H).serve_forever()\n"
    )
    driven = 'argv: "${{ inputs.argv }}", driver: {replay: requests.jsonl, ready: {http: "http://127.0.0.1:8000/"}}'
    (folder / "two-steps.yaml").write_text(TWO_STEPS.replace('argv: "${{ inputs.argv }}"', driven))
    requests = [{"method": "POST", "url": "/v1/completions", "body": {"prompt": number}} for number in range(3)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    flags = ("-f", "two-steps.yaml", "--image", image, *NO_GPU, "--json", "--run-dir", "run")
    walked = report(runbook(folder, "two-steps", *flags, "--", "python3", "-c", server))
    first = walked["steps"][0]["ended"]
    assert (first["by"], first["message"]) == ("stopped", "3 of 3 requests sent, 3 answered")
    assert (folder / "run/steps/first/1/localhost-0/stdout").read_text().count("got") == 3


def test_a_server_behind_a_port_that_the_engine_publishes_gets_no_request(folder: Path, image: str) -> None:
    """The one that listens on this machine is the engine's proxy: nothing proves where it leads."""
    server = (
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(s): print('got', s.path, flush=True); s.send_response(200); s.end_headers()\n"
        "    do_POST = do_GET\n"
        "    def log_message(s, *a): pass\n"
        "print('up', flush=True)\n"
        "http.server.ThreadingHTTPServer(('0.0.0.0', 8000), H).serve_forever()\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ready = f'ready: {{http: "http://127.0.0.1:{port}/", timeout: 60s}}'
    driven = f'argv: "${{{{ inputs.argv }}}}", driver: {{replay: requests.jsonl, {ready}}}'
    (folder / "two-steps.yaml").write_text(TWO_STEPS.replace('argv: "${{ inputs.argv }}"', driven))
    (folder / "requests.jsonl").write_text('{"url": "/v1/completions", "body": {}}\n')
    name = f"vdbg-test-published-{port}"
    argv = ("docker", "run", "--rm", "--name", name, "-p", f"127.0.0.1:{port}:8000", image, "python3", "-c", server)
    try:
        walked = report(runbook(folder, "two-steps", "-f", "two-steps.yaml", "--json", "--run-dir", "run", "--", *argv))
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
    ended = walked["steps"][0]["ended"]
    assert ended["by"] == "not_started"
    assert f"listens on port {port}" in ended["message"]
    output = (folder / "run/steps/first/1/localhost-0/stdout").read_text()
    assert "up" in output
    assert "got" not in output


def test_without_a_command_the_bundled_sample_is_built_and_run_in_the_image(folder: Path, image: str) -> None:
    """The compiler and nvidia-smi are scripts here: what is shown is that both are the image's, and see the same."""
    programs = {
        "nvidia-smi": "#!/bin/sh\necho 'NVIDIA H200, 580.82.07, 0, Disabled'\n",
        "nvcc": (
            '#!/bin/sh\nfor word; do last=$word; [ "$out" = next ] && out=$word; [ "$word" = -o ] && out=next; done\n'
            'grep -q PLANTED "$last" || exit 1\n'
            'printf "#!/bin/sh\\necho CUDA error: an illegal memory access was encountered; exit 1\\n" > "$out"\n'
            'chmod +x "$out"\n'
        ),
    }
    mounts: list[str] = []
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        mounts += ["--mount", f"{folder / name}:/usr/local/bin/{name}:ro"]
    flags = ("--image", image, *mounts, *NO_GPU, "-i", "quick=true", "--json")
    ended = runbook(folder, "illegal-memory-access", *flags)
    walked = report(ended)
    assert "was built in the image" in ended.stderr
    assert walked["provenance"] == "real"
    assert outcomes(walked)["baseline"] == "reproduced"


@pytest.mark.parametrize(("how", "words"), [("kill", "its container was killed"), ("stop", "stopped from outside")])
def test_a_container_ended_by_somebody_else_is_a_lost_step(
    folder: Path, image: str, docker_engine: Engine, how: str, words: str
) -> None:
    begun = two_steps(folder, image, NAP.replace("sleep(2)", "sleep(20)"))
    begun.until(lambda: ledger(folder) == ["first"])
    (container,) = step_containers(docker_engine, folder)
    getattr(docker_engine.client, how)(container)
    begun.until(lambda: ledger(folder) == ["first", "first"])  # a lost attempt is repeated, once
    begun.process.send_signal(signal.SIGINT)
    begun.ended(30)
    lost = next(
        json.loads(line)["observation"]["ended"]
        for line in (folder / "run/events.jsonl").read_text().splitlines()
        if json.loads(line)["kind"] == "attempt_ended"
    )
    assert lost["by"] == "engine_lost"
    assert words in lost["message"]


def test_a_variable_is_handed_on_and_stands_neither_with_the_engine_nor_on_disk(
    folder: Path, image: str, docker_engine: Engine
) -> None:
    secret = "very-private-value-4711"
    code = "import os, time; print('token', os.environ['MY_TOKEN']); open('ledger', 'a').write('up\\n'); time.sleep(1)"
    begun = two_steps(folder, image, code, "-e", "MY_TOKEN", env={"MY_TOKEN": secret})
    begun.until(lambda: ledger(folder) == ["up"])
    (container,) = step_containers(docker_engine, folder)
    assert secret not in json.dumps(docker_engine.client.inspect_container(container))
    begun.killed()
    refused = runbook(folder, "two-steps", "-f", "two-steps.yaml", "--resume", "run", "--json")
    assert refused.status == 2
    assert "--env MY_TOKEN" in refused.stderr
    ended = runbook(
        folder, "two-steps", "-f", "two-steps.yaml", "--resume", "run", "--image", image, "-e", "MY_TOKEN",
        env={"MY_TOKEN": secret},
    )  # fmt: skip
    assert ended.status == 125, ended.stderr
    assert "token [redacted" in (folder / "run/steps/second/1/localhost-0/stdout").read_text()
    for path in (folder / "run").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_an_image_with_a_user_of_its_own_writes_into_its_step(
    folder: Path, docker_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may open a folder to another user")
    code = "import os; print(os.getuid())"
    inside = two_steps(folder, user_image(docker_engine), code).ended()
    assert inside.status == 1, "the record is closed to that user where the mounted folder shows it"
    assert "user 4711 may not" in inside.stderr and "--run-dir" in inside.stderr
    record = tmp_path_factory.mktemp("record") / "run"
    folder.chmod(0o755)
    ended = two_steps(folder, user_image(docker_engine), code, "--run-dir", str(record)).ended()
    assert ended.status == 125, ended.stderr
    assert (record / "steps/first/1/localhost-0/stdout").read_text() == "4711\n"


@pytest.fixture
def other_user(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder of a user who is in the group of the engine's socket and is not root; and how to be that user."""
    socket = Path("/var/run/docker.sock")
    if os.geteuid() != 0 or not shutil.which("setpriv") or not socket.exists():
        pytest.skip("needs root, setpriv and the engine's socket")
    prefix = ("setpriv", "--reuid=4712", "--regid=4712", f"--groups={socket.stat().st_gid}", "--")
    if subprocess.run([*prefix, sys.executable, "-c", "import docker"], check=False, capture_output=True).returncode:
        pytest.skip("this Python is not open to another user")
    home = Path("/var/tmp") / f"vdbg-test-{time.time_ns()}"
    home.mkdir()
    shutil.copy(folder / "two-steps.yaml", home)
    os.chown(home, 4712, 4712)
    yield home, {"prefix": prefix, "env": {"HOME": str(home)}}
    shutil.rmtree(home)


def test_who_is_not_root_gets_what_root_wrote(other_user: tuple[Path, dict[str, Any]], image: str) -> None:
    """The container's first process is root, as in most images."""
    home, as_user = other_user
    ended = two_steps(home, image, "print('written as root'); raise SystemExit(1)", **as_user).ended()
    assert ended.stdout, ended.stderr
    assert outcomes(report(ended)) == {"first": "reproduced", "second": "reproduced"}
    written = [path for path in (home / "run").rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in written} == {4712}
    assert any(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in written)


def test_who_is_not_root_gets_what_a_killed_container_wrote(
    other_user: tuple[Path, dict[str, Any]], image: str, docker_engine: Engine
) -> None:
    home, as_user = other_user
    begun = two_steps(home, image, NAP.replace("sleep(2)", "sleep(3)"), **as_user)
    begun.until(lambda: ledger(home) == ["first"])
    (container,) = step_containers(docker_engine, home)
    docker_engine.client.kill(container)
    ended = begun.ended()
    assert outcomes(report(ended)) == {"first": "reproduced", "second": "reproduced"}, ended.stderr  # it is repeated
    assert (home / "run/steps/first/1/localhost-0/stdout").read_text() == "up\n"
    assert {path.stat().st_uid for path in (home / "run").rglob("*")} == {4712}


def test_a_workload_has_nothing_written_or_read_outside_of_its_folder(folder: Path, image: str) -> None:
    """The links, pipes and nonsense it leaves lead this program nowhere: root in a container is not root outside."""
    outside = folder / "outside"
    outside.write_text("untouched")
    code = (
        "import gzip, os\n"
        "os.chdir(os.environ['PLACE'])\n"
        f"for name in ('container.json', 'container.new', '.dump.gz.new'): os.symlink({str(outside)!r}, name)\n"
        "open('dump.gz', 'wb').write(gzip.compress(b'hf_' + b'a1' * 16))\n"
        "os.unlink('stdout'); os.mkfifo('stdout')\n"
        "raise SystemExit(1)"
    )
    placed = TWO_STEPS.replace("env: {STEP: first}", 'env: {STEP: first, PLACE: "${{ rank.dir }}"}').replace(
        "env: {STEP: second}", 'env: {STEP: second, PLACE: "${{ rank.dir }}"}'
    )
    (folder / "two-steps.yaml").write_text(placed)
    ended = two_steps(folder, image, code).ended()
    assert [step["outcome"] for step in report(ended)["steps"]] == ["reproduced", "reproduced"]
    assert outside.read_text() == "untouched"
    place = folder / "run/steps/first/1/localhost-0"
    assert not (place / "stdout").exists() and not (place / "dump.gz").is_symlink()
