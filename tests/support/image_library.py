"""The shipped profiles, read once for all tests."""

from functools import cache

from vdbg_env.build.build import read_image_library
from vdbg_env.image.context import FileBytes
from vdbg_env.image.knowledge import ImageLibrary
from vdbg_env.image.plan import BuildPlan
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest, OwnPackage

# The digest of a plan counts the wheel: with the real one, each change to the program would change each golden.
PACKAGE = OwnPackage(
    wheel=FileBytes(name="wheel/vdbg_env-0.0.0-py3-none-any.whl", data=b"a wheel"),
    requirements=("click>=8.1", "cel-expr-python>=0.1.3,<0.2"),
)


@cache
def shipped() -> ImageLibrary:
    return read_image_library()


def planned(request: BuildRequest, library: ImageLibrary | None = None) -> BuildPlan:
    """Plan a request with the shipped profiles."""
    library = library or shipped()
    return plan(library.spec(request.profile), request, library)
