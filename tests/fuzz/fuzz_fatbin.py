"""Fuzzes the way from a file's first byte to a judgement: archives, host files, containers, expansion."""

import contextlib

import atheris

with atheris.instrument_imports(include=["vdbg_env"]):
    from gpucore.errors import UnreadableBinary
    from gpucore.fatbin import find_device_code
    from gpucore.lineinfo import file_report, judge

from gpucore.fatbin import Compression, EntryKind
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, archive, container, host_library
from tests.fuzz.harness import fuzz


def read(data: bytes) -> None:
    with contextlib.suppress(UnreadableBinary):
        file_report("fuzzed", map(judge, find_device_code(data)))


def seeds() -> list[bytes]:
    entries = [EntrySpec(payload=cubin("_Z1kPf", lines=True), how=how, identifier="k.cu") for how in Compression]
    entries.append(EntrySpec(payload=b".version 9.0", kind=EntryKind.PTX))
    run = container(*entries) + bytes(16) + container(*entries)
    return [run, host_library(run, relocatable=[run]), archive(("a_rather_long_name.o", host_library(run)))]


if __name__ == "__main__":
    fuzz(read, seeds())
