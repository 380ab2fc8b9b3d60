"""`vdbg-env dump` from outside, of a process in a container, and of one with namespaces of its own alone."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from gpucore.arming import arming
from tests.builders.core_builder import hang_core
from tests.support import armed_program
from tests.support.build_orders import BASE
from tests.support.command_line import vdbg_env
from vdbg_env.engine.client import Engine
from vdbg_env.supervisor.proc import is_alive, namespace_pid

# What the driver does; the base image has no Python, but a small Perl is essential to Debian.
DRIVER = r"""
use POSIX;
my %now = (h => (uname())[1], p => $$, t => time);
my ($pipe, $dump) = map { $ENV{$_} =~ s/%([hpt])/$now{$1}/gr } qw(CUDA_COREDUMP_PIPE CUDA_COREDUMP_FILE);
mkfifo($pipe, 0600); open(my $end, "+<", $pipe); syswrite(STDOUT, "armed\n");
sysread($end, my $byte, 1);
open(my $core, "<:raw", "/core"); open(my $out, ">:raw", $dump); print $out do { local $/; <$core> }; close($out);
sleep 60;
"""


@pytest.mark.engine
def test_a_dump_inside_a_container_is_fired_and_read_from_the_host(docker_engine: Engine) -> None:
    client = docker_engine.client
    made = client.create_container(BASE, ["perl", "-e", DRIVER], environment=dict(arming("/var/tmp", size="default")))
    try:
        client.put_archive(made["Id"], "/", _tar("core", hang_core()))
        client.start(made["Id"])
        pid = client.inspect_container(made["Id"])["State"]["Pid"]
        if not is_alive(pid):
            pytest.skip("the engine runs in another PID namespace than this test")
        deadline = time.monotonic() + 120
        while b"armed" not in client.logs(made["Id"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        refused = vdbg_env("dump", "--json", str(pid))
        assert (refused.status, "is the first of a container" in refused.stderr) == (2, True)
        ran = vdbg_env("dump", "--json", "--yes", str(pid))
        (process,) = json.loads(ran.stdout)["processes"]
        assert (ran.status, process["status"], process["namespace_pid"]) == (0, "written", 1), ran.stdout + ran.stderr
        assert process["file"].startswith("/var/tmp/core.")
        assert process["reachable"] == f"/proc/{pid}/root{process['file']}"
        assert vdbg_env("core", process["reachable"]).status == 0
    finally:
        client.remove_container(made["Id"], force=True, v=True)


def _tar(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


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
        assert namespace_pid(inner["pid"]) == 1
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
