"""Which tests one worker runs, one after the other, while other workers run others."""

from pathlib import Path

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


def group_of(test: str) -> str | None:
    """Return the group of a test by its id, or None where any worker may run it.

    A group shares an engine, a cluster, or what a fixture of its module made.
    """
    module = Path(test.partition("::")[0])
    match folder := module.parts[1]:
        case "unit":
            return None
        case "engine":
            return _APART.get(module.stem, "engine")
        case "slurm" | "k8s":  # a cluster for all of them
            return folder
    return module.stem
