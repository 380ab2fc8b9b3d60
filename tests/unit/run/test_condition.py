"""What is known of a run without an end."""

import resource
from pathlib import Path

from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.run.history import condition


def test_runs_are_listed_on_a_full_disk(tmp_path: Path) -> None:
    """That is where they are looked at, to say which ones go."""
    run = RunDirectory(tmp_path / "one")
    run.create()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        found = condition(run, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found == "cut off"
    with run.locked():
        assert condition(run, None) == "running"
