"""The folder of all runs: where it is, and one run in it by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.record.run_directory import RunDirectory

RUNS_VARIABLE = "VDBG_ENV_RUNS"
RUNS_FOLDER = "vdbg-runs"


def runs_home(environment: Mapping[str, str]) -> Path:
    """Return the folder of all runs: that of VDBG_ENV_RUNS, else `vdbg-runs` here."""
    return Path(environment.get(RUNS_VARIABLE) or RUNS_FOLDER)


def find_run(name: str, environment: Mapping[str, str]) -> RunDirectory:
    """Return a run by its name in the folder of all runs, or by its path; raises BadInput with the nearest name."""
    home = runs_home(environment)
    for path in (home / name, Path(name)):
        if (path / "run.json").is_file():
            return RunDirectory(path.resolve())
    known = [p.name for p in home.iterdir() if (p / "run.json").is_file()] if home.is_dir() else []
    close = nearest(name, known)
    hint = f" (did you mean {close!r}?)" if close else ""
    raise BadInput(f"no run {name!r} in {home}{hint}", next_step="vdbg-env runs list")
