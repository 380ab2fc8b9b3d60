"""The small real cubins of tests/data/cubins; its README says how each was made."""

from pathlib import Path

from gpucore.code_map import CodeMap, Function
from gpucore.dwarf import Place

DATA = Path(__file__).parents[1] / "data" / "cubins"


def cubin(name: str) -> bytes:
    """Return the bytes of tests/data/cubins/`name`.cubin."""
    return (DATA / f"{name}.cubin").read_bytes()


def kernel(code: CodeMap, name: str) -> Function:
    """Return the function whose demangled name begins with `name`."""
    return next(f for f in code.functions if f.demangled.startswith(name))


def place(code: CodeMap, name: str, offset: int) -> Place:
    """Return the place `offset` bytes into a function."""
    function = kernel(code, name)
    return Place(section=function.section, offset=function.start + offset)
