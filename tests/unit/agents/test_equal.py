"""Every field that a tool shows has the value that the command line's JSON gives it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.builders.core_builder import (
    CUBINS,
    exited_warps_core,
    hang_core,
    idle_core,
    illegal_address_core,
)
from tests.support import memory_maps
from tests.support.agent import Agent, agent
from tests.support.command_line import vdbg_env
from vdbg_env.agents.answer import clean
from vdbg_env.agents.tools import Part

LOGS = Path(__file__).parents[2] / "data" / "logs"


def assert_shown(shown: Any, whole: Any, at: str = "") -> None:
    """Check that what is shown is the same, or a part: fewer fields, the start of a list, the start of a text."""
    if isinstance(shown, dict):
        assert isinstance(whole, dict), at
        for name, value in shown.items():
            assert name in whole, f"{at}.{name}"
            assert_shown(value, whole[name], f"{at}.{name}")
    elif isinstance(shown, list):
        assert len(shown) <= len(whole), at
        for number, (one, other) in enumerate(zip(shown, whole, strict=False)):
            assert_shown(one, other, f"{at}[{number}]")
    elif isinstance(shown, str) and shown != whole:
        assert shown == clean(whole) or (shown.endswith("…") and clean(whole).startswith(shown[:-1])), at
    else:
        assert (shown, type(shown)) == (whole, type(whole)), at


def printed(*argv: str) -> Any:
    return json.loads(vdbg_env(*argv, "--json").stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all")
    cores = {
        "fault": illegal_address_core(), "without-lines": illegal_address_core(lines=False), "hang": hang_core(),
        "exited": exited_warps_core(words="the driver's words"), "idle": idle_core(),
        "cut": illegal_address_core()[:-3000],
    }  # fmt: skip
    for name, data in cores.items():
        (folder / f"{name}.nvcudmp").write_bytes(data)
    (folder / "ranks").mkdir()
    (folder / "ranks" / "rank0.nvcudmp").write_bytes(hang_core())
    (folder / "ranks" / "rank1.nvcudmp").write_bytes(illegal_address_core())
    (folder / "inline_chain.cu").write_bytes((CUBINS / "inline_chain.cu").read_bytes())
    return folder


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[Agent]:
    with agent(folder, CUBINS, LOGS) as asked:
        yield asked


@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("most", [4096, 65536])
@pytest.mark.parametrize("name", ["fault", "without-lines", "hang", "exited", "idle", "cut"])
def test_cores(ask: Agent, folder: Path, name: str, most: int, detail: bool) -> None:
    path = str(folder / f"{name}.nvcudmp")
    whole = printed("core", "--registers", "--parameters", "--source-root", str(folder), path)
    arguments = {"path": path, "detail": detail, "max_bytes": most}
    assert_shown(ask("open_core", **arguments).document, {"cores": [whole]})
    assert_shown(ask("faults", **arguments).document, whole)
    assert_shown(ask("warps", **arguments).document, whole)
    if whole["faults"] and whole["faults"][0].get("registers"):
        assert_shown(ask("registers", path=path, max_bytes=most).document, whole["faults"][0])
    if detail and most > 4096:
        everything = ask("faults", **arguments).document
        fields = [{k: v for k, v in fault.items() if k != "registers"} for fault in whole["faults"]]
        assert everything["faults"] == fields


def test_a_folder_of_cores(ask: Agent, folder: Path) -> None:
    whole = printed("core", "--registers", "--parameters", "--source-root", str(folder), str(folder / "ranks"))
    shown = ask("open_core", path="ranks").document
    assert shown["verdict"] == whole["verdict"] and [core["rank"] for core in shown["cores"]] == [0, 1]
    assert_shown(shown, whole)
    assert_shown(ask("faults", path="ranks", core=1).document, whole["cores"][1])


def test_locate(ask: Agent, folder: Path) -> None:
    for argv in (("0x7fffd9001140", str(folder / "fault.nvcudmp")), ("kern+0x140", str(CUBINS))):
        whole = printed("locate", "--source-root", str(folder), *argv)
        for detail in (False, True):
            assert_shown(ask("locate", place=argv[0], files=[argv[1]], detail=detail).document, whole)


def test_whose_memory(tmp_path: Path) -> None:
    (tmp_path / "memory-map.json").write_text(json.dumps(memory_maps.document()))
    (tmp_path / "core.nvcudmp").write_bytes(illegal_address_core())
    whole = printed("locate", hex(memory_maps.KEYS), "--memory", str(tmp_path))
    with agent(tmp_path) as ask:
        assert ask("whose_memory", address=hex(memory_maps.KEYS), maps=".").document == whole
        assert ask("whose_memory", address="kern", maps=".").failed
        assert not ask("faults", path="core.nvcudmp").failed
        (tmp_path / "memory-map-2.json").symlink_to("/etc/passwd")
        assert "leads out" in ask("whose_memory", address="0x10", maps=".").document["error"]
        assert "memory-map-2.json is outside" in ask("faults", path="core.nvcudmp").document["error"]
        (tmp_path / "memory-map-2.json").unlink()
        (tmp_path / "passwords").symlink_to("/etc/passwd")  # it is no map: nothing reads it
        os.mkfifo(tmp_path / "memory-map-3.json")
        assert not ask("faults", path="core.nvcudmp").failed


def test_triage(ask: Agent) -> None:
    for log in [*sorted((LOGS / "real-vllm").iterdir())[:8], *sorted((LOGS / "dev").iterdir())[::40]]:
        assert_shown(ask("triage", logs=[str(log)]).document, printed("triage", str(log)))


def test_verify(ask: Agent) -> None:
    whole = printed("verify", "--witness", "none", str(CUBINS))
    seen: list[Any] = []
    while len(seen) < len(whole["files"]):
        document = ask("verify", files=[str(CUBINS)], offset=len(seen)).document
        seen += document["files"]
        assert_shown({**document, "files": []}, whole)
    assert_shown(seen, whole["files"])


LEAVES_A_CORE = """
import os, shutil, sys
name = os.environ["CUDA_COREDUMP_FILE"].replace("%h", "host").replace("%p", str(os.getpid()))
shutil.copy(sys.argv[1], name.replace("%t", "1700000000"))
print("RuntimeError: CUDA error: unspecified launch failure")
raise SystemExit(1)
"""


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    crash = "print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'); raise SystemExit(1)"
    (tmp_path / "hang").write_bytes(hang_core())
    vdbg_env("guard", "--", sys.executable, "-c", crash)
    vdbg_env("guard", "--", sys.executable, "-c", LEAVES_A_CORE, str(tmp_path / "hang"))
    vdbg_env("runbook", "illegal-memory-access")  # the bundled recording
    met = set()
    with agent(tmp_path) as ask:
        whole = printed("runs", "list")
        assert_shown(ask("runs", folder="runs").document["runs"], whole["runs"][::-1])  # the newest first
        for run in whole["runs"]:
            path = f"runs/{run['run']}"
            report = json.loads(vdbg_env("runs", "report", run["run"], "--format", "json").stdout)
            newest = json.loads(vdbg_env("runs", "report", "latest", "--format", "json").stdout)
            assert ask("run_report", run="runs/latest").document["run"] == newest["run"]
            for part in get_args(Part):
                assert_shown(ask("run_report", run=path, part=part).document, report)
                entries: list[Any] = []
                while len(entries) < len(report[part]):
                    at = {"offset": len(entries), "detail": True, "max_bytes": 65536}
                    entries += ask("run_report", run=path, part=part, **at).document[part]
                assert_shown(entries, report[part])
                assert part != "hangs" or entries == report[part]
                met |= {part} if entries else set()
            steps = ask("next_steps", path=path).document
            assert steps["next_steps"] and len(steps["next_steps"]) == len(report["next_steps"])
            assert_shown(steps, report)
    assert met >= set(get_args(Part)) - {"notes"}
