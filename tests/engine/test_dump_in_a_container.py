"""`vdbg-env dump` from outside, of a process with PID and mount namespaces of its own, as containers have."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders.core_builder import hang_core
from tests.support import armed_program
from tests.support.command_line import vdbg_env
from vdbg_env.engines import proc


def test_a_dump_inside_other_namespaces_is_reached(tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare for namespaces")
    (tmp_path / "core").write_bytes(hang_core())
    hidden = tmp_path / "hidden"  # a file system that only the process sees
    hidden.mkdir()
    script = f"mount -t tmpfs none {hidden} && exec {sys.executable} {armed_program.__file__} {tmp_path}/core"
    env = os.environ | {
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_PIPE": f"{hidden}/pipe.%p",
        "CUDA_COREDUMP_FILE": f"{hidden}/dump.%p.nvcudmp",
    }
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout
        if process.stdout.readline() != "armed\n":
            pytest.skip("this machine lets nobody make namespaces")
        time.sleep(0.3)
        ran = vdbg_env("dump", "--json", str(process.pid))
        (inner,) = [p for p in json.loads(ran.stdout)["processes"] if p["status"] == "written"]
        assert inner["namespace_pid"] == 1
        assert inner["file"] == f"{hidden}/dump.1.nvcudmp"
        assert inner["reachable"] == f"/proc/{inner['pid']}/root{hidden}/dump.1.nvcudmp"
        assert vdbg_env("core", inner["reachable"]).status == 0
        assert not list(hidden.iterdir()), "it is not to be seen from outside"
        assert proc.namespace_pid(inner["pid"]) == 1
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
