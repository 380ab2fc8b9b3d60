"""Which tests one worker runs, one after the other, while other workers run others."""

from pathlib import Path

_TESTS = Path(__file__).parents[1]
# They start containers of runs, or nothing, so they run while another worker builds. All other tests of an engine look
# at what it holds before and after.
_APART = {
    "test_look_into_step_image": "steps",
    "test_killed_with_containers": "steps",
    "test_runbook_in_containers": "steps",
    "test_dockerd_killed": "steps",
    "test_build_on_host": "host",
}


def leaves_images_alone(module: Path) -> bool:
    """Return whether no test of a module of tests/engine changes what images and containers of builds there are."""
    return module.stem in _APART


def group_of(module: Path) -> str | None:
    """Return the group of a module's tests, or None where any worker may run each of them.

    A group shares an engine, a cluster, or what a fixture of its module made.
    """
    folder, *_ = module.relative_to(_TESTS).parts
    match folder:
        case "unit":
            return None
        case "engine":
            return _APART.get(module.stem, "engine")
        case "slurm" | "k8s":  # a cluster for all of them
            return folder
    return module.stem
