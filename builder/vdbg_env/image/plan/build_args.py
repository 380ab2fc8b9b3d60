"""The values of a build from this machine and this site; they are not in the plan or its digest."""

from __future__ import annotations

from vdbg_env.image.plan.parallelism import Parallelism
from vdbg_env.image.profile.request import Site


def build_args(parallelism: Parallelism, site: Site) -> dict[str, str]:
    """Return name -> value of the plan's arguments and of the proxies, which builders predefine without an ARG line.

    A proxy's address may contain a password: as a predefined argument it reaches the steps, but no layer or history.
    """
    return {
        "MAX_JOBS": str(parallelism.max_jobs),
        "NVCC_THREADS": str(parallelism.nvcc_threads),
        **dict(sorted(site.proxies.items())),
    }
