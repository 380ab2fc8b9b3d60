"""Fuzzes the demangler: any name comes back in bounded length and time, or as it was."""

import atheris

with atheris.instrument_imports(include=["vdbg_env"]):
    from gpucore.mangling import CUT, LONGEST, demangle, short_name

from tests.fuzz.harness import fuzz

NAMES = [
    "_Z12scatter_rowsI6__halfEvPT_PKS1_PKiii",
    "_ZN7cutlass6KernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEES1_S2_vEEEEvNT_6ParamsE",
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15abs_kernel_cudaERNS_18TensorIteratorBaseEE_EvENKUlvE_clEv"
    "EUlfE_St5arrayIPcLm2EEEEviT0_T1_",
    "_Z1fI1AIS_S_EEvT_",
    "_Z1gIJidcEEvDpT_",
    "_Z1hIiEDTcvT_fp_ES0_",
    "$_Z1kPf$_ZN4impl4leafEPf",
]


def read(data: bytes) -> None:
    shown = demangle(data.decode("utf-8", "replace"))
    short_name(shown)
    assert len(shown) <= max(LONGEST + len(CUT), len(data))


if __name__ == "__main__":
    fuzz(read, [name.encode() for name in NAMES])
