"""The shipped profiles, read once for all tests."""

from functools import cache

from vdbg_env.application.image.library import read_image_library
from vdbg_env.image.plan.plan import BuildPlan
from vdbg_env.image.plan.planner import plan
from vdbg_env.image.profile.library import ImageLibrary
from vdbg_env.image.profile.request import BuildRequest


@cache
def shipped() -> ImageLibrary:
    return read_image_library()


def planned(request: BuildRequest, library: ImageLibrary | None = None) -> BuildPlan:
    """Plan a request with the shipped profiles."""
    library = library or shipped()
    return plan(library.spec(request.profile), request, library)
