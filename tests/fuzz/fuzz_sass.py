"""Fuzzes the SASS decoder, control flow, and the reader of nvdisasm's JSON."""

import contextlib

import atheris

with atheris.instrument_imports(include=["gpucore"]):
    from gpucore.errors import UnreadableBinary
    from gpucore.sass import control_flow, decode, definitions, read_listings, uses
    from gpucore.sass.encodings import ARCHITECTURES

from tests.fuzz.harness import fuzz


def read(data: bytes) -> None:
    with contextlib.suppress(UnreadableBinary):
        read_listings(data)
    sm = ARCHITECTURES[data[0] % len(ARCHITECTURES)] if data else 90
    code = data[1 : 1 + (len(data) - 1) // 16 * 16] if data else b""
    instructions = decode(code, sm)
    for instruction in instructions:
        str(instruction), definitions(instruction), uses(instruction)
    if instructions:
        flow = control_flow(instructions)
        assert len(flow.order) == len(flow.blocks) == len(flow.dominators) == len(flow.postdominators)


if __name__ == "__main__":
    fuzz(read, [b"", b'[{},[{"function-name":"f","start":0,"sass-instructions":[{"opcode":"NOP"}]}]]', bytes(65)])
