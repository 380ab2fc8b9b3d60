"""The batch script that a whole run is queued with."""

import subprocess
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.programs import Programs
from vdbg_env_slurm.jobs import BatchJob, SlurmQueue


def job(folder: Path, engine: str, **fields: object) -> BatchJob:
    given = {"words": ("begin", "a word"), "resume": ("resume",), "nodes": 2, "ranks": 4, **fields}
    return BatchJob(name="vdbg-x", folder=str(folder), engine=("bash", "-c", engine, "engine"), **given)  # type: ignore[arg-type]


def ran(folder: Path, engine: str) -> tuple[int, str]:
    text = SlurmQueue(Programs()).script(job(folder, engine))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_nothing_of_the_shell_is_kept_and_no_lost_node_starts_it_again(tmp_path: Path) -> None:
    text = SlurmQueue(Programs()).script(job(tmp_path, "true", arguments=("--time=5",)))
    head = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for words in ("--no-requeue", "--no-kill", "--export=NONE", "--nodes=2", "--ntasks=4", "--time=5"):
        assert f"#SBATCH {words}" in head


def test_odd_arguments_stay_one_word_and_one_of_two_lines_is_refused(tmp_path: Path) -> None:
    text = SlurmQueue(Programs()).script(job(tmp_path / "50%j", "true", arguments=("--comment=a b'c",)))
    assert """#SBATCH '--comment=a b'"'"'c'""" in text.splitlines()
    assert f"#SBATCH --output={tmp_path}/50%%j/slurm.txt" in text.splitlines()  # %j is the job's number
    with pytest.raises(BadInput, match="has two lines"):
        SlurmQueue(Programs()).script(job(tmp_path, "true", arguments=("--comment=a\nrm -r x",)))
    with pytest.raises(BadInput, match="has two lines"):
        SlurmQueue(Programs()).script(job(tmp_path / "a\nrm -r x", "true"))


def test_a_machine_without_sbatch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostNotAble, match="--submit needs sbatch") as refused:
        SlurmQueue(Programs()).submit(job(tmp_path / "run", "true"))
    assert "login node" in str(refused.value.next_step)


def test_a_killed_engine_is_replaced_and_one_that_was_asked_to_end_is_not(tmp_path: Path) -> None:
    assert ran(tmp_path, 'echo "$@"; exit 3') == (3, "begin a word\n")
    assert ran(tmp_path, 'echo "$@"; [ "$1" = begin ] && kill -KILL $$; exit 0') == (0, "begin a word\nresume\n")
    assert ran(tmp_path, 'echo "$@"; kill -TERM $$') == (143, "begin a word\n")


def test_a_secret_is_not_put_into_a_script_that_slurm_keeps(tmp_path: Path) -> None:
    words = ("runbook", "x", "--", "serve", "--api-key", "hf_" + "Qw7" * 12)
    with pytest.raises(BadInput, match="has a secret"):
        SlurmQueue(Programs()).script(job(tmp_path, "true", words=words))


def test_what_sbatch_says_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "sbatch"
    shim.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(HostNotAble) as refused:
        SlurmQueue(Programs()).submit(job(tmp_path / "run", "true"))
    assert refused.value.details == ("sbatch: error: invalid partition",)
