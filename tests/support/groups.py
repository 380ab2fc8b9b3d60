"""Which tests one worker runs, one after the other, while other workers run others."""

from pathlib import Path

_TESTS = Path(__file__).parents[1]
# They start containers of runs and build nothing, so they run while another worker builds. All other tests of an engine
# look at what it holds before and after.
_OF_STEPS = {"test_look_into_step_image", "test_killed_with_containers", "test_runbook_in_containers"}


def builds_nothing(module: Path) -> bool:
    """Return whether a module of tests/engine has the engine run steps alone."""
    return module.stem in _OF_STEPS


def group_of(module: Path) -> str | None:
    """Return the group of a module's tests, or None where any worker may run each of them.

    A group shares an engine, a cluster, or what a fixture of its module made.
    """
    folder, *_ = module.relative_to(_TESTS).parts
    match folder:
        case "unit":
            return None
        case "engine":
            return "steps" if builds_nothing(module) else "engine"
        case "slurm":
            return "slurm"
    return module.stem
