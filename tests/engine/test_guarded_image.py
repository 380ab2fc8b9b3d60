"""The entry point of an image that `build` makes guards each command, and nothing else about the command changes."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.step_images import user_image
from tests.support.build_orders import BASE
from tests.support.command_line import vdbg_env
from vdbg_env.engine.client import Engine, connect
from vdbg_env.engine.trees import own_package
from vdbg_env_lines.swap import DockerSwaps

pytestmark = [pytest.mark.engine, pytest.mark.long]

IMAGE = "vdbg-test/guarded:sample"
NONSENSE = ("--env", "PYTHONPATH=/nonsense", "--env", "PYTHONHOME=/nonsense")
SEES = """
import json, os, sys
try:
    import pydantic
except ImportError:
    pydantic = None
armed = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION" in os.environ
print(json.dumps({"path": sys.path, "pydantic": bool(pydantic), "armed": armed}))
"""


@pytest.fixture(scope="module")
def image(docker_engine: Engine) -> str:
    """The sample with its guard; another run's image of that name is built anew, from the engine's cache."""
    ran = vdbg_env("build", "--profile", "sample", "--base", BASE, "--network", "host", "--tag", IMAGE)
    assert ran.status == 0, ran.stderr[-3000:]
    return IMAGE


def docker(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    argv = ["docker", "run", "--rm", *words]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)


def message(text: str) -> dict[str, Any]:
    """Return the line of JSON that guard prints last."""
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert found["schema"] == "vdbg-env/guard/v1"
    return found


def test_status_streams_and_standard_input_are_those_of_the_command(image: str) -> None:
    ran = docker("--interactive", image, "bash", "-c", "cat; echo aside >&2; exit 7", stdin="from outside\n")
    assert (ran.returncode, ran.stdout) == (7, "from outside\n")
    assert ran.stderr.startswith("aside\n") and message(ran.stderr)["status"] == 7
    assert docker(image, "true").returncode == 0
    assert docker(image, "sh", "-c", "kill -SEGV $$").returncode == 139
    assert docker(image).returncode == 0  # bash, without anything to read


def test_the_command_imports_what_it_imported_before(image: str) -> None:
    ran = docker(image, "python3", "-c", SEES)
    seen = json.loads(ran.stdout)
    assert seen["armed"] and not seen["pydantic"]
    assert not any("/opt/vdbg/tool" in path for path in seen["path"])
    without = json.loads(docker("--env", "VDBG_GUARD=off", image, "python3", "-c", SEES).stdout)
    assert without["path"] == seen["path"] and not without["armed"]


def test_a_path_of_the_workload_does_not_reach_the_guard(image: str) -> None:
    ran = docker(*NONSENSE, image, "sh", "-c", "exit 8")
    assert (ran.returncode, message(ran.stderr)["status"]) == (8, 8)


def test_a_terminal_and_the_program_itself_are_not_guarded(image: str) -> None:
    argv = f"docker run --rm --interactive --tty {image} bash -c 'test -t 1 && exit 4'"
    ran = subprocess.run(["script", "-qec", argv, "/dev/null"], capture_output=True, text=True, check=False)
    assert ran.returncode == 4 and "schema" not in ran.stdout
    twice = docker(image, "vdbg-env", "guard", "--", "sh", "-c", "exit 5")
    assert (twice.returncode, twice.stderr.count("schema")) == (5, 1)


def test_run_guards_once_and_the_record_is_in_the_dump_volume(image: str, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    flags = ("--image", image, "--gpu", "none", "--dumps", str(dumps), "--shm-size", "64m")
    argv = [sys.executable, "-m", "vdbg_env", "run", *flags, "--", "sh", "-c", "exit 6"]
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("vdbg-env/guard/v1")) == (6, 1), ran.stderr
    (record,) = (dumps / "vdbg-runs").glob("*-guard-*")
    assert message(ran.stderr)["report"] == f"/dumps/vdbg-runs/{record.name}/report.md"


def test_where_no_record_can_be_made_the_command_runs_all_the_same(image: str) -> None:
    ran = docker("--read-only", image, "sh", "-c", "exit 9")
    assert ran.returncode == 9 and "no record can be made" in ran.stderr
    user = docker("--user", "4711", image, "sh", "-c", "id -u; exit 2")
    assert (user.returncode, user.stdout) == (2, "4711\n")
    assert message(user.stderr)["report"].startswith("/tmp/home-4711/vdbg-runs/")


def test_another_release_of_the_program_compiles_nothing_again(image: str, docker_engine: Engine) -> None:
    history: list[dict[str, Any]] = docker_engine.client.history(image)  # type: ignore[no-untyped-call]
    commands = [entry["CreatedBy"] for entry in reversed(history)]
    compiled = max(n for n, text in enumerate(commands) if "cmake --build" in text)
    installed = min(n for n, text in enumerate(commands) if "wheel" in text and "COPY" in text)
    assert compiled < installed


def test_onto_puts_the_guard_in_front_of_the_entry_point_of_another_image(docker_engine: Engine) -> None:
    base, result = "vdbg-test/own-entry:1", "vdbg-test/own-entry:guarded"
    dockerfile = f'FROM {user_image(docker_engine)}\nWORKDIR /srv\nENTRYPOINT ["sh", "-c"]\nCMD ["exit 7"]\n'
    client = docker_engine.client
    said = list(client.build(fileobj=io.BytesIO(dockerfile.encode()), tag=base, rm=True, decode=True))
    assert not any("error" in message for message in said), said[-1]
    images = DockerSwaps(connect())
    guarded = images.tag(images.guard(base, "python3", own_package()), [result], {})

    assert docker(result).returncode == 7
    ran = docker(result, "id -u; pwd; exit 5")
    assert (ran.returncode, ran.stdout.split()) == (5, ["4711", "/srv"])
    assert message(ran.stderr)["status"] == 5
    kept = [client.inspect_image(name)["Config"] for name in (base, guarded)]  # type: ignore[no-untyped-call]
    assert kept[1]["Entrypoint"] == ["/opt/vdbg/entrypoint.sh", "/opt/vdbg/vdbg-env", "guard", "--", "sh", "-c"]
    for name in ("User", "Env", "Cmd", "WorkingDir"):
        assert kept[0][name] == kept[1][name]
