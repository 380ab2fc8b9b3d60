"""Fuzzes the explanation of addresses and of loops that wait: code of any bytes, in the cubin of real kernels.

The bytes are which kernel, how many instructions, these as code in place of the first ones of the kernel, and the
registers of the threads that failed. Any error is a finding, and so is an answer that is no JSON.
"""

import json
from functools import cache

import atheris

with atheris.instrument_imports(include=["gpucore.explain", "gpucore.sass"]):
    from gpucore.code_map import CodeMap
    from gpucore.explain import Program, Why, explain_place, explain_wait, wait_json, wait_text, why_json, why_text
    from gpucore.explain.address import access_of
    from gpucore.explain.numbers import Lane, Numbers, Snapshot
    from gpucore.sass import decode

from tests.builders.core_builder import CUBINS
from tests.fuzz.harness import fuzz

FILES = (
    CUBINS.parent / "explain" / "why_sm90.cubin",
    CUBINS / "inline_chain_sm80.cubin",
    CUBINS / "inline_chain_sm100.cubin",
)
_SIZE = {"blockDim.x": 32, "blockDim.y": 1, "blockDim.z": 1, "gridDim.x": 8, "gridDim.y": 1, "gridDim.z": 1}


@cache
def kernels() -> list[tuple[CodeMap, int, bytes, int]]:
    """Return all kernels of the files: the map of their code, their section, its bytes and the architecture."""
    maps = [CodeMap(file.read_bytes()) for file in FILES]
    found = [(code, kernel.section) for code in maps for kernel in code.kernels]
    return [(code, at, bytes(code.elf.contents(code.elf.sections[at])), code.elf.arch or 90) for code, at in found]


def read(data: bytes) -> None:
    """Explain two accesses of the code, with numbers, and the loops around them."""
    if len(data) < 2:
        return
    code, section, whole, arch = kernels()[data[0] % len(kernels())]
    count = min(16 * data[1], len(data) // 16 * 16 - 16)
    held = data[2 + count :]
    instructions = decode(data[2 : 2 + count] + whole[count:], arch)
    program = Program(code, section, instructions)
    accesses = [i for i in instructions if access_of(i) is not None]
    for i in accesses[data[-1] % max(len(accesses), 1) :][:2]:
        why = explain_place(program, i.offset)
        if why is not None:
            told(why, held)
        wait = explain_wait(program, i.offset)
        if wait is not None:
            wait_text(wait), json.dumps(wait_json(wait))


def told(why: Why, held: bytes) -> None:
    """Give an answer in words and as JSON, from the code and then with the registers of two threads."""
    why_text(why), json.dumps(why_json(why))
    n = why.address.instruction
    words = [int.from_bytes(held[at : at + 4], "little") for at in range(0, len(held), 4)]
    count = len(why.address.slice.code.instructions)
    lanes = tuple(Lane(k, (k, 0, 0), min(n + k, count - 1), words[k:]) for k in range(2))
    snapshot = Snapshot((1, 0, 0), lanes, words[:8], _SIZE, held[:64] or None)
    with_numbers = Why(why.address, why.legend, why.names, Numbers(why.address, snapshot))
    why_text(with_numbers), json.dumps(why_json(with_numbers))


if __name__ == "__main__":
    held = bytes(range(200))
    fuzz(read, [bytes([k, len(one[2][:640]) // 16]) + one[2][:640] + held for k, one in enumerate(kernels())])
