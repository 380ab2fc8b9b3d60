"""The shipped profiles, read once for all tests."""

from functools import cache

from vdbg_env.application.image_library import read_image_library
from vdbg_env.image.library import ImageLibrary
from vdbg_env.image.plan import BuildPlan
from vdbg_env.image.planner import plan
from vdbg_env.image.request import BuildRequest


@cache
def shipped() -> ImageLibrary:
    return read_image_library()


def planned(request: BuildRequest, library: ImageLibrary | None = None) -> BuildPlan:
    """Plan a request with the shipped profiles."""
    library = library or shipped()
    return plan(library.spec(request.profile), request, library)
