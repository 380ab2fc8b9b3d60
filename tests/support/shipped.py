"""The shipped runbooks as tests need them: loaded from the checkout, whatever the user's own folders hold."""

from functools import cache
from pathlib import Path

from vdbg_env.run.library import Folder, RunbookLibrary, catalogue
from vdbg_env.runbook.model import Runbook

RUNBOOKS = Path(__file__).parents[2] / "runbooks"


@cache
def library() -> RunbookLibrary:
    """Return the shipped runbooks alone."""
    return RunbookLibrary((), catalogue, folders=[Folder(origin="shipped", path=RUNBOOKS)])


@cache
def shipped(name: str) -> Runbook:
    """Return a shipped runbook, linted."""
    return library().load(name)
