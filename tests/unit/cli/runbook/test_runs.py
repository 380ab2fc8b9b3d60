"""`vdbg-env runs` on real recorded runs: listed, shown, compared, reported anew, redacted again."""

import hashlib
import json
import shlex
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.runbooks import TINY
from vdbg_env.cli import main
from vdbg_env.record.diff import diff, end_in_words
from vdbg_env.record.run_directory import RunDirectory, RunHead

SCHEMAS = Path(__file__).parents[4] / "docs" / "schemas"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, one that fails and one that does not, in the folder where runs are looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "node-of-mine-17")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "tiny.yaml").write_text(TINY)
    for name, code in (("bad", "print('boom on 10.9.8.7'); raise SystemExit(1)"), ("good", "print('fine')")):
        main(["runbook", "tiny", "--batch", "--run-dir", f"vdbg-runs/{name}", "--", sys.executable, "-c", code])
    return tmp_path


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return found


def test_runs_are_listed_and_shown(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    assert main(["runs", "list"]) == 0
    bad, good = capsys.readouterr().out.splitlines()
    assert (bad.split()[:2], good.split()[:2]) == (["bad", "reproduced"], ["good", "not_reproduced"])
    assert bad.endswith("it booms")
    monkeypatch.chdir(here.parent)
    assert main(["runs", "list", str(here / "vdbg-runs")]) == 0
    assert capsys.readouterr().out.splitlines() == [bad, good], "of a folder elsewhere too"
    monkeypatch.chdir(here)
    assert main(["runs", "show", "bad"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("bad: reproduced")
    assert "  found    it booms" in shown
    assert [line.split()[:3] for line in shown if line.startswith("    ")] == [["baseline", "reproduced", "1"]]
    assert any(line.endswith("exit 1, it booms") for line in shown)
    assert main(["runs", "show", "bad", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, schema("runs-v1"))
    document = printed["runs"][0]
    assert (document["condition"], document["steps"][0]["ended"]["code"]) == ("finished", 1)
    assert (document["found"], document["steps"][0]["outcome"]) == ("it booms", "reproduced")
    assert main(["runs", "show", "badd"]) == 2
    assert "did you mean 'bad'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"by": "watch", "signal": 6}, "hung"), ({"by": "exit", "code": 1}, "exit 1"),
        ({"by": "node_lost", "code": None}, "node lost"), ({"by": "signal", "signal": 6}, "signal 6"), (None, None),
    ],
)  # fmt: skip
def test_how_a_step_ended_is_said_in_words(ended: dict[str, Any] | None, words: str | None) -> None:
    assert end_in_words(ended) == words


def test_a_record_that_is_damaged_keeps_no_other_from_the_list(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "vdbg-runs" / "bad" / "run.json").write_text("{")
    capsys.readouterr()
    assert main(["runs", "list", "--json"]) == 0
    told = capsys.readouterr()
    printed = json.loads(told.out)
    jsonschema.validate(printed, schema("runs-v1"))
    assert [run["run"] for run in printed["runs"]] == ["good"]
    assert len(printed["unreadable"]) == 1
    assert "left out: " in told.err and "run.json" in told.err


def test_a_run_that_was_cut_off_says_so_in_its_report_and_how_to_go_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = here / "vdbg-runs" / "bad"
    events = (run / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in events if json.loads(line)["kind"] in {"run_started", "attempt_started"}]
    (run / "events.jsonl").write_text("".join(kept))
    capsys.readouterr()
    assert main(["runs", "report", "bad"]) == 125
    shown = capsys.readouterr().out
    assert "INCONCLUSIVE" in shown and "cut off" in shown
    assert f"$ vdbg-env runbook tiny --resume {shlex.quote(str(run))}" in shown


def test_a_run_in_containers_names_their_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = here / "vdbg-runs" / "bad" / "run.json"
    image = {"name": "debug:1", "id": "sha256:aa", "digest": None}
    head.write_text(json.dumps(json.loads(head.read_text()) | {"image": image}))
    capsys.readouterr()
    assert main(["runs", "show", "bad"]) == 0
    assert "  steps in containers of debug:1 (sha256:aa)" in capsys.readouterr().out.splitlines()
    main(["runs", "list", "--json"])
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, schema("runs-v1"))
    assert {run["run"]: run["image"] for run in printed["runs"]} == {"bad": image, "good": None}


def test_the_head_of_a_run_follows_its_own_schema(here: Path) -> None:
    head, report = (json.loads((here / "vdbg-runs/bad" / name).read_text()) for name in ("run.json", "report.json"))
    jsonschema.validate(head, schema("run-head-v1"))
    assert head["schema"] != report["schema"]
    assert set(head) - {"schema"} == set(RunHead.__dataclass_fields__) <= set(schema("run-head-v1")["properties"])


def test_a_run_that_was_cut_off_says_how_to_go_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = here / "vdbg-runs/bad/events.jsonl"
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:2]))
    (here / "vdbg-runs/bad/report.json").unlink()
    capsys.readouterr()
    main(["runs", "show", "bad"])
    assert "bad: cut off" in (shown := capsys.readouterr().out)
    assert "--resume" in shown
    assert main(["runs", "diff", "bad", "good"]) == 2
    assert "has no report yet" in capsys.readouterr().err
    with RunDirectory(here / "vdbg-runs/bad").locked():
        main(["runs", "show", "bad"])
    assert "bad: running" in capsys.readouterr().out


def test_a_diff_tells_what_changed_in_meaning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["runs", "diff", "bad", "good"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "~ verdict of the run: reproduced -> not_reproduced"
    assert "- finding T001 baseline: it booms" in lines
    assert "~ outcome baseline: reproduced -> not_reproduced" in lines
    assert "~ ended baseline: exit 1 -> exit 0" in lines
    assert main(["runs", "diff", "bad", "bad"]) == 0
    capsys.readouterr()
    main(["runs", "diff", "bad", "good", "--json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema("runs-diff-v1"))
    assert document["differences"][0]["kind"] == "verdict"


def test_how_often_a_step_was_started_is_no_difference_of_its_variables() -> None:
    def document(attempt: int) -> dict[str, Any]:
        folder = f"steps/coredump/{attempt}/localhost-0"
        step = {"id": "coredump", "argv": ["prog", f"--log={folder}/log"], "env": {"CUDA_COREDUMP_FILE": f"{folder}/x"}}
        return {"steps": [step]}

    assert diff(document(1), document(3)) == ()


def test_a_report_is_made_anew_from_the_record(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = json.loads((here / "vdbg-runs/bad/report.json").read_text())
    (here / "vdbg-runs/bad/report.json").unlink()
    capsys.readouterr()
    assert main(["runs", "report", "bad", "--format", "json", "--write"]) == 3
    anew = json.loads(capsys.readouterr().out)
    assert {k: anew[k] for k in ("verdict", "findings", "run")} == {
        k: written[k] for k in ("verdict", "findings", "run")
    }
    assert (here / "vdbg-runs/bad/report.json").is_file()
    assert main(["runs", "report", "bad", "--format", "markdown"]) == 3
    assert main(["runs", "report", "good"]) == 0
    changed = TINY.replace("it booms", "it boomed")
    (here / "runbooks/tiny.yaml").write_text(changed)
    assert main(["runs", "report", "bad"]) == 3, "by the runbook that was kept with the run"
    (kept,) = (here / "vdbg-runs/bad/runbooks").rglob("tiny.yaml")
    kept.write_text(changed)
    assert main(["runs", "report", "bad"]) == 2


LOUD = """\
import os, socket, sys
print('boom on 10.9.8.7 and on node-of-mine-17, asked of', sys.argv[1:], flush=True)
open(os.environ['LOG'], 'w').write('node-of-mine-17 talks to 10.9.8.7\\n')
open(os.environ['LOG'] + '.bin', 'wb').write(b'\\0 node-of-mine-17')
raise SystemExit(1)
"""
KEEPING = TINY.replace("name: tiny", "name: keeping").replace(
    "env: {MODE: loud}", 'env: {LOG: "${{ rank.dir }}/kept.%h.log"}\n      artifacts: {logs: {path: "kept.*"}}'
)


def test_with_pseudonyms_no_host_and_no_address_reaches_the_disk(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "head-node.example.org")
    (here / "runbooks" / "keeping.yaml").write_text(KEEPING)
    workload = ("--", sys.executable, "-c", LOUD, "--host", "10.1.2.3", "--master", "head-node.example.org")
    assert main(["runbook", "keeping", "--batch", "--pseudonyms", "--run-dir", "vdbg-runs/shy", *workload]) == 3
    run = here / "vdbg-runs/shy"
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    named = (b"node-of-mine-17", b"10.9.8.7", b"10.1.2.3", b"head-node")
    assert [(p.name, name) for p, data in files.items() for name in named if name in data or name in bytes(p)] == []
    report = json.loads((run / "report.json").read_text())
    said = next(p for p in files if p.name == "stdout").read_text()
    (log,) = [a for a in report["steps"][0]["artifacts"] if a["path"].endswith("kept.host.log")]
    kept = run / log["path"]
    host, address = kept.read_text().split(" talks to ")
    assert f"boom on {address.strip()} and on {host}" in said  # one stand-in, wherever the same name stands
    assert (log["size"], log["sha256"]) == (kept.stat().st_size, hashlib.sha256(kept.read_bytes()).hexdigest())
    assert report["environment"]["host"] == host
    assert (kept.parent / "kept.host.log.bin").read_bytes().decode() == f"\0 {host}**"  # a binary file keeps its length


PACKING = """\
import gzip, os
gzip.open(os.environ['LOG'] + '.gz', 'wb').write(b'it is ' + os.environ['SOME_API_KEY'].encode())
open(os.environ['LOG'] + '.7z', 'wb').write(b"7z\\xbc\\xaf'\\x1c" + bytes(50))
"""


def test_a_recording_is_not_given_stand_ins_that_it_was_not_made_with(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "kept").mkdir()
    assert main(["runbook", "tiny", "--replay", "kept", "--pseudonyms", "--", "true"]) == 2
    assert "give --pseudonyms when it is made" in capsys.readouterr().err


def test_a_compressed_artifact_with_a_secret_is_withheld_and_an_unknown_archive_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "tell-nobody-77")
    (here / "runbooks" / "keeping.yaml").write_text(KEEPING)
    main(["runbook", "keeping", "--batch", "--run-dir", "packed", "--", sys.executable, "-c", PACKING])
    assert not list((here / "packed").rglob("*.gz"))
    (attempt,) = json.loads((here / "packed/report.json").read_text())["steps"][0]["attempts"]
    assert any(".gz: withheld: it held a secret" in note for note in attempt["notes"])
    assert any(
        note.endswith(".7z: an archive of this kind is not looked into for secrets") for note in attempt["notes"]
    )


def test_a_resumed_run_asks_for_what_its_stand_ins_hide(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runbooks" / "keeping.yaml").write_text(KEEPING)
    workload = ("--", sys.executable, "-c", LOUD, "10.1.2.3")
    assert main(["runbook", "keeping", "--batch", "--pseudonyms", "--run-dir", "shy", *workload]) == 3
    events = here / "shy/events.jsonl"
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:1]))
    capsys.readouterr()
    assert main(["runbook", "keeping", "--resume", "shy"]) == 2
    assert "has no secret and no host" in capsys.readouterr().err
    assert main(["runbook", "keeping", "--resume", "shy", *workload[:-1], "10.1.2.4"]) == 2
    assert main(["runbook", "keeping", "--resume", "shy", *workload]) == 3
    assert all(b"10.1.2.3" not in p.read_bytes() for p in (here / "shy").rglob("*") if p.is_file())


def test_an_old_run_is_redacted_by_the_secrets_of_today(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = here / "vdbg-runs/bad"
    step = run / "steps/baseline/1/localhost-0"
    (step / "stdout").write_text("boom with tell-nobody-77 on 10.9.8.7\n")
    (step / "artifact.bin").write_bytes(b"\0\1tell-nobody-77\0")
    monkeypatch.setenv("SOME_API_KEY", "tell-nobody-77")
    capsys.readouterr()
    assert main(["runs", "redact", "bad", "--hosts"]) == 0
    changed = capsys.readouterr().out
    assert "steps/baseline/1/localhost-0/stdout" in changed
    assert (step / "artifact.bin").read_bytes() == b"\0\1" + b"*" * 14 + b"\0"
    everything = b"".join(p.read_bytes() for p in run.rglob("*") if p.is_file())
    assert [gone for gone in (b"tell-nobody-77", b"10.9.8.7", b"node-of-mine-17") if gone in everything] == []
    assert main(["runs", "redact", "bad", "--hosts"]) == 0
    assert capsys.readouterr().out == ""
    assert (here / "state/vdbg-env/pseudonym.key").stat().st_mode & 0o077 == 0
    assert main(["runs", "show", "bad"]) == 0


def test_runs_are_pruned_by_rules_and_only_with_yes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def prune(*argv: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["runs", "prune", "--json", *argv]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        jsonschema.validate(document, schema("runs-prune-v1"))
        return document

    runs = here / "vdbg-runs"
    assert main(["runs", "prune"]) == 2
    assert "nothing says what to keep" in capsys.readouterr().err
    assert main(["runs", "prune", "--older-than", "soon"]) == 2

    looked = prune("--keep", "1")
    assert ([run["run"] for run in looked["runs"]], looked["removed"]) == (["bad"], False)
    assert prune("--older-than", "1h")["runs"] == prune("--runbook", "guard", "--keep", "0")["runs"] == []
    assert len(prune("--max-size", "1k")["runs"]) == 2
    assert {path.name for path in runs.iterdir() if path.is_dir()} == {"bad", "good"}

    (runs / "notes").mkdir()
    assert [run["run"] for run in prune("--keep", "1", "--yes")["runs"]] == ["bad"]
    assert {path.name for path in runs.iterdir() if path.is_dir()} == {"good", "notes"}
    assert main(["runs", "prune", "--keep", "0"]) == 0
    assert "the same command with --yes" in capsys.readouterr().out


def test_a_helper_with_a_clean_environment_does_not_void_the_step(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One `env -i python3 ...` made "the workload was never run" of a failure in a process that had the variables."""
    helper = "subprocess.Popen(['/usr/bin/env', '-i', sys.executable, '-c', 'import time; time.sleep(1)']).wait()"
    code = f"import subprocess, sys; {helper}; print('boom'); raise SystemExit(1)"
    main(["runbook", "tiny", "--batch", "--run-dir", "vdbg-runs/helped", "--", sys.executable, "-c", code])
    report = json.loads((here / "vdbg-runs" / "helped" / "report.json").read_bytes())
    assert report["verdict"] == "reproduced"
    (note,) = [note for note in report["steps"][0]["notes"] if "MODE" in note]
    assert note.endswith("had MODE=(unset), the step asked for loud; the process that failed had it")


def test_a_list_is_cut_to_the_last_the_newer_or_the_failed_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        capsys.readouterr()
        assert main(["runs", "list", *words]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert listed() == ["bad", "good"]
    assert listed("--last", "1") == ["good"]
    assert listed("--failed") == ["bad"]
    assert listed("--since", "1h") == ["bad", "good"]
    assert listed("--since", "2100-01-01") == []
    capsys.readouterr()
    assert main(["runs", "list", "--failed", "--json"]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["bad"]
    assert main(["runs", "list", "--since", "yesterday"]) == 2
    assert "neither an age nor a time" in capsys.readouterr().err


def test_a_run_is_exported_as_one_redacted_archive_without_cores(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "print('boom, from s3cretw0rd-of-the-day'); open('core.cuda.n1.7', 'wb').write(b'core'); raise SystemExit(1)"
    (here / "runbooks/tiny.yaml").write_text(
        TINY.replace("env: {MODE: loud}", "env: {MODE: loud}\n      artifacts: {cores: {path: 'core.cuda.*'}}")
    )
    code = code.replace("open('", "open(__import__('glob').glob('vdbg-runs/given/steps/*/1/*')[0] + '/")
    main(["runbook", "tiny", "--batch", "--run-dir", "vdbg-runs/given", "--", sys.executable, "-c", code])
    monkeypatch.setenv("API_TOKEN", "s3cretw0rd-of-the-day")
    capsys.readouterr()
    assert main(["runs", "export", "given", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, schema("runs-export-v1"))
    with tarfile.open(here / "given.tar.gz") as archive:
        texts = {one.name: archive.extractfile(one).read() for one in archive.getmembers()}  # type: ignore[union-attr]
    names = {name.rpartition("/")[2] for name in texts}
    assert {"README.md", "report.md", "report.html", "report.json", "run.json", "stdout", "ended.json"} <= names
    assert not any("core.cuda" in name for name in texts)
    assert all(name.startswith("given/") for name in texts)
    assert b"core.cuda.n1.7" in texts["given/README.md"] and b"it booms" in texts["given/README.md"]
    assert not any(b"s3cretw0rd" in text for text in texts.values())
    assert b"s3cretw0rd" in next((here / "vdbg-runs/given").glob("steps/*/1/*/stdout")).read_bytes(), "a copy only"
    assert main(["runs", "export", "given"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["runs", "export", "given", "--cores", "-o", "more.tar.gz"]) == 0
    assert "core.cuda.n1.7" in capsys.readouterr().out
