"""The shipped runbook walks a crashing vLLM to kernel, line and chain, and every branch of it is walked."""

import html
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ladder import ROOT, RUNBOOK, outcomes, program, step
from tests.support.toolchain import cuda_gdb, cuda_tool
from tests.unit.crash.test_why import FLAG, polling_core
from vdbg_env.cli import main

pytestmark = pytest.mark.slow

Walk = Callable[..., dict[str, Any]]

LADDER = [
    "blocking",
    "graphs_piecewise",
    "graphs_off",
    "inductor_off",
    "compile_off",
    "eager",
    "all_reduce",
    "attention",
]


def test_an_illegal_access_is_walked_to_kernel_line_and_chain(walk: Walk) -> None:
    report = walk("ima", FAKE_VLLM_NASTY="1")
    seen = outcomes(report)
    assert [seen[step] for step in ["baseline", *LADDER, "coredump"]] == ["reproduced"] * 10
    assert seen["analyse"] == "pass"
    lead = next(f for f in report["findings"] if f["how_known"] == "gpu-core")
    assert lead["level"] == "error"
    assert "kern" in lead["kernel"]
    assert lead["location"]["file"].endswith("inline_chain.cu")
    assert len(lead["chain"]) >= 2
    core = next(s for s in report["steps"] if s["id"] == "coredump")
    assert core["ended"]["code"] == 1


@pytest.mark.parametrize(
    ("fault", "gone_at"),
    [
        ("full-graphs", "graphs_piecewise"),
        ("graphs", "graphs_off"),
        ("inductor", "inductor_off"),
        ("compile", "compile_off"),
        ("compile-and-graphs", "eager"),
        ("all-reduce", "all_reduce"),
        ("attention", "attention"),
        ("race", "blocking"),
    ],
)
def test_the_layer_that_matters_is_found(walk: Walk, fault: str, gone_at: str) -> None:
    report = walk(fault)
    seen = outcomes(report)
    assert seen["baseline"] == "reproduced"
    before = LADDER[: LADDER.index(gone_at)]
    assert [seen[step] for step in before] == ["reproduced"] * len(before)
    assert seen[gone_at] == "not_reproduced"
    assert seen["coredump"] == "reproduced"
    assert any(f["step"] == gone_at for f in report["findings"])


@pytest.mark.parametrize("title", ["as-vllm", "dropped"])
def test_an_engine_that_names_itself_as_vllms_does_is_walked_all_the_same(walk: Walk, title: str) -> None:
    """setproctitle overwrites what /proc shows of the environment: unknown at worst, and never taken for unset."""
    report = walk("graphs", "-i", "quick=false", FAKE_VLLM_TITLE=title)
    seen = outcomes(report)
    assert [seen[s] for s in ("baseline", "blocking", "graphs_piecewise")] == ["reproduced"] * 3
    assert (seen["graphs_off"], seen["coredump"]) == ("not_reproduced", "reproduced")
    workers = [w for a in step(report, "blocking")["attempts"] for w in a["workers"]]
    assert len(workers) >= 2
    assert all(w["seen"]["CUDA_LAUNCH_BLOCKING"] == "1" for w in workers if w["known"])
    if title == "as-vllm":
        assert all(w["known"] for w in workers)


def test_a_script_that_takes_no_flags_is_reached_through_its_environment(walk: Walk) -> None:
    report = walk("graphs", python=True)
    assert outcomes(report)["graphs_off"] == "not_reproduced"


def test_a_core_without_lines_leads_to_the_sanitizer(walk: Walk) -> None:
    report = walk("ima", "-i", "quick=true", core="nolines.core")
    seen = outcomes(report)
    assert "blocking" not in seen
    assert seen["memcheck"] == "reproduced"
    assert any(f["how_known"] == "sanitizer" for f in report["findings"])


def test_no_core_and_a_blind_sanitizer_walk_to_the_last_tool(walk: Walk) -> None:
    seen = outcomes(walk("no-core", "-i", "quick=true", "-i", "deep=true", FAKE_SANITIZER="blind"))
    assert seen["coredump"] == "reproduced"
    assert [seen[s] for s in ("memcheck", "memcheck_uncached", "racecheck", "initcheck", "synccheck")] != []
    assert "analyse" not in seen


def test_a_hang_is_dumped_and_shows_where_every_warp_stands(walk: Walk) -> None:
    report = walk("hang", core="hang.core")
    seen = outcomes(report)
    assert report["runbook"] == "kernel-hang"  # the baseline's silence is handed over
    assert (seen["baseline"], seen["watched"], seen["analyse"]) == ("hang", "hang", "pass")
    assert report["hangs"][0]["warps"]
    folder = Path("vdbg-runs") / report["run"] / "steps/watched/1/localhost-0"
    assert "waits in" in (folder / "hang.txt").read_text()


def test_the_report_of_a_hang_says_what_its_warps_poll(walk: Walk) -> None:
    Path("polling.core").write_bytes(polling_core())
    report = walk("hang", core="polling.core")
    finding = next(one for one in report["findings"] if one["rule"] == "gpu-core-hang")
    assert (Path(finding["location"]["file"]).name, finding["location"]["line"]) == ("why.cu", 60)
    ran = subprocess.run(
        [sys.executable, "-m", "vdbg_env", "runs", "report", report["run"]],
        env={**os.environ, "PYTHONPATH": str(ROOT / "builder")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown = " ".join(ran.stdout.split())
    assert "in a loop at why.cu:60 that ends when argument1[blockIdx.x] == argument3" in shown, ran.stdout
    assert f"argument1[blockIdx.x] is read in each turn at why.cu:60, from {FLAG + 8:#x}; it was 3" in shown
    assert "argument3 is 7" in shown


@pytest.mark.parametrize(
    ("fault", "runbook", "outcome"),
    [
        ("oom", "out-of-memory", "reproduced"),
        ("other", "misaligned-address", "reproduced"),
        ("well", "illegal-memory-access", "not_reproduced"),
        ("host", "illegal-memory-access", "fail"),
    ],
)
def test_other_ends_are_told_apart_and_handed_over(walk: Walk, fault: str, runbook: str, outcome: str) -> None:
    report = walk(fault)
    assert (report["runbook"], outcomes(report)["baseline"]) == (runbook, outcome)


def test_noise_and_bytes_that_are_no_text_change_nothing(walk: Walk) -> None:
    for noise in ("binary", str(50 << 20)):
        report = walk("ima", "-i", "quick=true", FAKE_VLLM_NOISE=noise)
        assert outcomes(report)["analyse"] == "pass"


def test_a_log_alone_starts_the_right_runbook(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`triage --run LOG -- ARGV`, from the log of a real crash of the workload to kernel and line."""
    monkeypatch.setenv("FAKE_VLLM", "graphs")
    monkeypatch.setenv("FAKE_VLLM_CORE", str(tmp_path / "ima.core"))
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        assert subprocess.run(["vllm", "bench", "throughput"], stdout=file, stderr=file).returncode == 1
    assert main(["triage", "--run", str(log), "--json", "--", "vllm", "bench", "throughput", "--seed", "1"]) == 3
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["runbook"], report["workload"][-2:]) == ("illegal-memory-access", ["--seed", "1"])
    assert outcomes(report)["graphs_off"] == "not_reproduced"
    assert next(f for f in report["findings"] if f["id"] == report["lead"])["location"]["line"] > 0
    assert "illegal" in printed.err.splitlines()[0]


def test_what_changed_the_behaviour_and_what_to_do_about_it_stand_in_the_report(walk: Walk) -> None:
    for python, brought in ((False, "+ -cc.cudagraph_mode=NONE"), (True, "plug-in: -cc.cudagraph_mode=NONE")):
        report = walk("graphs", python=python)
        effects = {c["step"]: (c["effect"], c["change"]) for c in report["changes"]}
        assert effects["baseline"] == ("baseline", "nothing: the workload as given")
        assert effects["blocking"] == ("same", "CUDA_LAUNCH_BLOCKING=1")
        assert effects["graphs_off"] == ("gone", brought)
        assert any("-cc.cudagraph_mode=NONE as a stopgap" in s["text"] for s in report["next_steps"])
        page = (Path("vdbg-runs") / report["run"] / "report.md").read_text()
        assert "-cc.cudagraph_mode=NONE" in page
        assert "stopgap" in page


@pytest.mark.parametrize("fault", ["one-rank", "stuck-rank"])
def test_two_ranks_one_dies_and_the_other_spins(walk: Walk, fault: str) -> None:
    """The rank that waits in a collective ignores every polite signal; the other's core is what counts."""
    report = walk(fault, "-i", "quick=true")
    baseline, coredump = step(report, "baseline"), step(report, "coredump")
    assert (baseline["outcome"], coredump["outcome"]) == ("reproduced", "reproduced")
    ended = {"one-rank": "exit", "stuck-rank": "watch"}[fault]
    assert (baseline["ended"]["by"], coredump["ended"]["by"]) == (ended, ended)
    assert [a["path"].rpartition("/")[2].startswith("core.cuda.") for a in coredump["artifacts"]] == [True]
    assert outcomes(report)["analyse"] == "pass"
    assert report["findings"][0]["location"]["line"] > 0


def test_a_rank_that_still_writes_its_core_is_not_cut_off(walk: Walk) -> None:
    """The front end and the other rank are gone long before; grace is 300 ms, and the core takes three seconds."""
    report = walk("slow-core", "-i", "quick=true")
    coredump = step(report, "coredump")
    assert [a["size"] for a in coredump["artifacts"]] == [Path("ima.core").stat().st_size] * 2
    assert coredump["duration_s"] > 2.5
    assert step(report, "analyse")["results"]["cores"] == 2


def test_every_reader_of_a_core_is_heard_in_a_real_run(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our reader, cuda-gdb and nvdisasm look at a core that the walk itself made, and the report tells it."""
    (tmp_path / "bin" / "nvdisasm").symlink_to(cuda_tool("nvdisasm"))
    program(tmp_path / "bin" / "cuda-gdb", f'exec {cuda_gdb()} "$@"')
    report = walk("ima", "-i", "quick=true")
    run = Path("vdbg-runs") / report["run"]
    said = " ".join(step(report, "analyse")["notes"])
    assert "nvdisasm agrees on the line: STG" in said
    assert "cuda-gdb agrees: Warp Illegal Address at inline_chain.cu:3" in said
    assert "CUDA Exception: Warp Illegal Address" in (run / "steps/analyse/cuda-gdb.txt").read_text()
    assert "STG" in next(x for x in (run / "steps/analyse/fault.sass").read_text().splitlines() if x.startswith(">"))
    for name in ("report.html", "report.md"):
        page = html.unescape((run / name).read_text())
        assert "nvdisasm agrees" in page and "cuda-gdb agrees" in page, name


def test_the_versions_the_gpus_and_a_stale_variable_are_in_the_record(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("vllm", "0.33.0"), ("torch", "2.14.0"), ("nvidia_cuda_runtime", "13.0.96")):
        metadata = tmp_path / "site" / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    report = walk("ima", "-i", "quick=true", VLLM_USE_V1="1")
    facts = json.loads((Path("vdbg-runs") / report["run"] / "run.json").read_text())["facts"]
    assert (facts["vllm"], facts["torch"], facts["cuda"]) == ("0.33.0", "2.14.0", "13.0")
    environment = report["environment"]
    assert (environment["vLLM"], environment["PyTorch"], environment["CUDA"]) == ("0.33.0", "2.14.0", "13.0")
    collected = step(report, "collect_env")
    assert collected["results"]["stale_variables"] == ["VLLM_USE_V1"]
    assert "VLLM_USE_V1=1" in collected["notes"]
    assert any(f["rule"] == "stale-setting" and "VLLM_USE_V1" in f["message"] for f in report["findings"])


def test_a_hang_of_two_ranks_is_looked_at_in_depth(walk: Walk) -> None:
    """No kernel is on the GPU: NCCL's log and vLLM's function trace, by the workload, say where it stands."""
    report = walk("hang", "-i", "deep=true", core="idle.core")
    told = {f["rule"]: f["message"] for f in report["findings"]}
    assert "all_reduce" in told["VDBG071"]
    assert "not all ranks are at collective number 8 (AllReduce)" in told["nccl-ranks-apart"]
    page = (Path("vdbg-runs") / report["run"] / "report.md").read_text()
    assert "all_reduce" in page and "not all ranks are at collective" in page


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(("fault", "verdict"), [("graphs", "reproduced"), ("well", "not_reproduced")])
def test_a_server_gets_its_recorded_requests_in_every_step(walk: Walk, fault: str, verdict: str) -> None:
    """The server says that it is ready, the requests are replayed, and what lives on then is stopped."""
    port = free_port()
    request = {"method": "POST", "url": "/v1/completions", "body": {"model": "M", "prompt": "x"}}
    Path("requests.jsonl").write_text(json.dumps(request) + "\n")
    report = walk(
        fault,
        *("-i", "request=requests.jsonl", "-i", f"url=http://127.0.0.1:{port}"),
        command=("serve", "M", "--port", str(port)),
    )
    assert report["verdict"] == verdict
    assert step(report, "traffic")["status"] == "skipped"
    if fault == "well":
        assert step(report, "baseline")["ended"]["by"] == "stopped"
        return
    seen = outcomes(report)
    assert [seen[s] for s in ("baseline", "blocking", "graphs_piecewise", "graphs_off")] == [
        *["reproduced"] * 3,
        "not_reproduced",
    ]
    assert step(report, "graphs_off")["ended"]["by"] == "stopped"
    assert report["findings"][0]["location"]["line"] > 0


def test_the_pipe_of_every_process_of_a_hung_tree_is_fired(walk: Walk) -> None:
    report = walk("two-hang", core="hang.core")
    watched = step(report, "watched")
    assert (watched["outcome"], len(watched["artifacts"])) == ("hang", 2)
    assert [h["total"] for h in report["hangs"]] == [17, 17]


def test_a_walk_is_recorded_and_replayed_elsewhere_to_the_same_line(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = walk("graphs", "--record", "kept")
    (tmp_path / "bin" / "vllm").unlink()  # nothing of the workload is at hand
    again = walk("graphs", "--replay", str(tmp_path / "kept"))
    ran = [s for s in outcomes(first) if s not in {"preflight", "collect_env"}]
    assert {s: outcomes(again)[s] for s in ran} == {s: outcomes(first)[s] for s in ran}
    leads = [next(f for f in r["findings"] if f["id"] == r["lead"]) for r in (first, again)]
    assert leads[0]["location"] == leads[1]["location"]
    assert leads[0]["chain"] == leads[1]["chain"]
    assert (first["provenance"], again["provenance"]) == ("real", "replay")


@pytest.mark.parametrize("place", ["baseline #1", "graphs_off #2", "coredump #1", "analyse -> pass"])
def test_a_walk_whose_engine_is_killed_goes_on_to_the_same_line(walk: Walk, tmp_path: Path, place: str) -> None:
    """The engine is killed as soon as it says where it is; no step that had ended is run again."""
    argv = [sys.executable, "-m", "vdbg_env", "runbook", RUNBOOK, "--batch", "--run-dir", "cut"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "builder"),
        "FAKE_VLLM": "graphs",
        "FAKE_VLLM_CORE": str(tmp_path / "ima.core"),
    }
    engine = subprocess.Popen(
        [*argv, "--", "vllm", "bench", "throughput", "-tp", "2"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with engine:
        assert engine.stderr is not None
        assert any(place in line for line in engine.stderr)
        engine.kill()
    report = walk("graphs", "--resume", "cut")
    seen = outcomes(report)
    assert [seen[s] for s in ("baseline", "graphs_off", "coredump", "analyse")] == [
        "reproduced",
        "not_reproduced",
        "reproduced",
        "pass",
    ]
    assert all(len(list(folder.iterdir())) <= 2 for folder in Path("cut/steps").iterdir())
    events = [json.loads(line) for line in Path("cut/events.jsonl").read_text().splitlines()]
    finished = [e["step"] for e in events if e["kind"] == "step_finished"]
    assert len(finished) == len(set(finished))
    assert next(f for f in report["findings"] if f["id"] == report["lead"])["location"]["line"] > 0
