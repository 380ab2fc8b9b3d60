"""A folder of logs gives the workload's, and none of the records that this program made in it."""

from pathlib import Path

import pytest

from vdbg_env.adapters.files.log_files import LogFiles
from vdbg_env.common.errors import BadInput
from vdbg_env.record.run_directory import RunDirectory, RunHead


def names(folder: Path) -> list[str]:
    return [str(Path(log.name).relative_to(folder)) for log in LogFiles().open([str(folder)])]


def test_our_own_runs_below_a_folder_are_passed_over_and_a_run_that_is_named_is_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "vdbg-runs" / "r")
    run.create()
    run.write_head(RunHead(run="r", runbook="x"))
    attempt = run.attempt("baseline", 1, "n-0")
    attempt.mkdir(parents=True)
    (attempt / "stdout").write_text("CUDA error")
    with pytest.raises(BadInput, match="holds no file of a workload"):
        names(tmp_path)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank-0.log").write_text("well")
    (tmp_path / "server.log").write_text("well")
    assert names(tmp_path) == ["ranks/rank-0.log", "server.log"]
    assert names(run.path) == ["steps/baseline/1/n-0/stdout"]
