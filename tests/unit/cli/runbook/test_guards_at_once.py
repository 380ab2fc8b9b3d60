"""Guards that share one folder at once: each explains the core of its command, and none is lost or counted twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.core_builder import illegal_address_core
from tests.support.command_line import vdbg_env
from vdbg_env.engine.dump_folder import FolderDumps

# As in containers of one image on the host's network: the same host, number of process and second.
CRASH = (
    "import os,sys; name=os.environ['CUDA_COREDUMP_FILE'];"
    "name=name.replace('%h','host').replace('%p','7').replace('%t','1');"
    "open(name,'wb').write(open(sys.argv[1],'rb').read()); sys.exit(1)"
)
WITH_LINES, WITHOUT = "Warp Illegal Address at inline_chain.cu", "Warp Illegal Address at kern"


def test_each_explains_its_own_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lines", "none"):
        (tmp_path / name).write_bytes(illegal_address_core(lines=name == "lines"))
    shared = tmp_path / "dumps"
    argv = [sys.executable, "-m", "vdbg_env", "guard", "--runs", str(shared), "--", sys.executable, "-c", CRASH]
    guards = [
        subprocess.Popen([*argv, str(tmp_path / name)], stderr=subprocess.PIPE, text=True)
        for name in ("lines", "none", "lines", "none")
    ]
    said = [json.loads(guard.communicate(timeout=120)[1].splitlines()[-1]) for guard in guards]
    assert len({one["run"] for one in said}) == 4
    assert [one["found"].startswith(WITH_LINES) for one in said] == [True, False, True, False]
    assert all(one["found"].startswith((WITH_LINES, WITHOUT)) for one in said)
    cores = [dump.path for dump in FolderDumps(shared).list() if dump.kind == "gpu-core"]
    assert sorted(path.split("/")[0] for path in cores) == sorted(one["run"] for one in said)
    monkeypatch.setenv("VDBG_ENV_RUNS", str(shared))
    assert vdbg_env("runs", "list").stdout.count("guard-") == 4
