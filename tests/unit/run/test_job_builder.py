"""The job of a supervisor, also where it builds on an environment that only the supervisor can see."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vdbg_env.run.job import PACKAGES, StepSettings, job_for
from vdbg_env.runbook.model import Ready, ServerDriver
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.job import Job, from_json, settled, to_json

PLACE = Path("/runs/r/steps/blocking/1/localhost-0")


def order(invocation: Invocation, **settings: Any) -> Job:
    return job_for(invocation, PLACE, StepSettings(**{"env": {}, "cwd": Path("/w"), "mark": "/runs/r", **settings}))


def test_an_inherited_environment_is_overlaid_and_what_a_step_unsets_is_gone() -> None:
    invocation = Invocation(step="blocking", attempt=1, argv=("x",), env={"CUDA_LAUNCH_BLOCKING": "1", "OLD": None})
    told = from_json(to_json(order(invocation, inherits=True)))
    assert told is not None
    own = {"PATH": "/image/bin", "OLD": "1", "CUDA_LAUNCH_BLOCKING": "0"}
    assert settled(told, own).env == {
        "PATH": "/image/bin",
        "CUDA_LAUNCH_BLOCKING": "1",
        "SPT_NOENV": "1",
        "VDBG_ENV_STEP": "/runs/r/blocking/1/localhost-0",
    }


def test_without_inheritance_nothing_of_the_supervisors_own_gets_in() -> None:
    told = order(Invocation(step="blocking", attempt=1, argv=("x",)), env={"PATH": "/bin"})
    assert "HOME" not in settled(told, {"HOME": "/root"}).env


def test_orders_that_did_not_come_whole_are_none() -> None:
    assert from_json(to_json(order(Invocation(step="s", attempt=1, argv=("x",))))[:-1]) is None


def test_a_secret_of_an_image_is_known_beforehand() -> None:
    told = order(Invocation(step="s", attempt=1, argv=("x",)), inherits=True, inherited={"HF_TOKEN": "image-secret-1"})
    assert "image-secret-1" in told.literals
    assert "image-secret-1" not in told.env.values()


def test_the_driver_is_started_by_the_python_of_the_place() -> None:
    invocation = Invocation(
        step="s", attempt=1, argv=("x",), driver=ServerDriver(ready=Ready(http="http://127.0.0.1:1/"), replay="r.jsonl")
    )
    argv = order(invocation, python="/image/python3", packages=Path("/run/vdbg-env")).driver
    assert argv[:4] == ("/image/python3", "-I", "-S", "/run/vdbg-env/vdbg_env/supervisor/request_driver.py")
    assert '"/w/r.jsonl"' in argv[4]


@pytest.mark.parametrize("module", ["vdbg_env.supervisor.loop", "vdbg_env.crash.dump"])
def test_what_runs_in_an_image_needs_the_standard_library_only(module: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGES)!r}); import {module}\n"
        "own = {'gpucore', 'vdbg_env', '__main__'}\n"
        "outside = {m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names - own\n"
        "print(sorted(outside))"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_files_go_to_the_owner_of_their_folder_and_links_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    outside = tmp_path / "outside"
    outside.write_text("x")
    folder = tmp_path / "attempt"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "core").write_text("x")
    (folder / "link").symlink_to(outside)
    control_files.give_back(str(folder))
    assert (folder / "deep" / "core").stat().st_uid == 0, "root's own folder is left alone"
    os.chown(folder, 4242, 4243)
    control_files.give_back(str(folder))
    assert [
        (p.lstat().st_uid, p.lstat().st_gid) for p in (folder / "deep", folder / "deep" / "core", folder / "link")
    ] == [(4242, 4243)] * 3
    assert outside.stat().st_uid == 0
