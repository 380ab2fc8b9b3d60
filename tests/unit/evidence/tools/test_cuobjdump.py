"""cuobjdump as a witness: what it lists, where it stops, and why it may be wrong."""

import pytest

from gpucore.lineinfo import Counts, FileReport
from vdbg_env.build.cuobjdump import parse_listing, parse_section_names, weigh

LIBRARY = """\
ELF file    1: rdc0.1.sm_80.cubin
ELF file    2: rdc0.2.sm_90.cubin
"""
STATIC_LIBRARY = """\

member /tmp/libk.a:r.o:
ELF file    1: k.cu.sm_75.cubin

member /tmp/libk.a:h.o:
ELF file    2: k.cu.sm_75.cubin
"""
NOTHING = "cuobjdump info    : File '/bin/ls' does not contain device code\n"
PTX_ONLY = "cuobjdump info    : No ELF file found to extract from '/tmp/ptx.so'. You may try with -all option.\n"
STOPPED = "cuobjdump fatal   : Invalid ELF in '/tmp/flash.so'\n"

SECTIONS = """\

64-bit ELF: type=ET_EXEC, ABI=8, sm=90, toolkit=13.0, flags=0x6005a04
Sections:
Index Offset   Size ES Align                      Type    Flags Link     Info Name
    1     40    103  0  1                       STRTAB        0    0        0 .shstrtab
    7    4cc     24  0  4                    CUDA_INFO        0    3        0 .nv.info
    c    600    180  0 80                     PROGBITS        6    3        8 .text._Z1kPf
  1ab    780    218  0  4                     PROGBITS       42    0        c .debug_line

.section .strtab
"""


def report(cubins: int) -> FileReport:
    return FileReport(path="lib.so", counts=Counts(cubins=cubins, with_code=cubins))


def test_the_same_count_is_agreement() -> None:
    witness = weigh(report(2), parse_listing(LIBRARY, ""), 0)
    assert (witness.agrees, witness.listed, witness.rc, witness.reason) == (True, 2, 0, None)


def test_names_may_repeat_and_members_are_not_counted() -> None:
    assert parse_listing(STATIC_LIBRARY, "").names == ("k.cu.sm_75.cubin", "k.cu.sm_75.cubin")


@pytest.mark.parametrize(("stderr", "code"), [(NOTHING, 255), (PTX_ONLY, 0)])
def test_no_cubins_on_both_sides_is_agreement_whatever_its_exit_status(stderr: str, code: int) -> None:
    assert weigh(report(0), parse_listing("", stderr), code).agrees


@pytest.mark.parametrize(
    ("cubins", "stdout", "stderr", "code", "reason"),
    [
        (128, "ELF file    1: f.1.sm_80.cubin\n", STOPPED, 1, "it stopped after 1 of 128 cubins with 'Invalid ELF'"),
        (2, "", "cuobjdump fatal   : Could not open input file 'x'\n", 1, "it stopped with"),
        (2, "", NOTHING, 255, "it found no device code where the reader did"),
        (3, LIBRARY, "", 0, "it lists 2 cubins, the reader found 3: no known reason"),
        (2981, "", "", -9, "it was ended by signal 9; it needs memory for every cubin of the file at once"),
    ],
)
def test_a_disagreement_is_explained(cubins: int, stdout: str, stderr: str, code: int, reason: str) -> None:
    witness = weigh(report(cubins), parse_listing(stdout, stderr), code)
    assert not witness.agrees
    assert (witness.reason or "").startswith(reason)


def test_a_failed_run_never_agrees_even_with_the_right_count() -> None:
    assert not weigh(report(2), parse_listing(LIBRARY, STOPPED), 1).agrees
    assert not weigh(report(2), parse_listing(LIBRARY, ""), 1).agrees
    assert not weigh(report(0), parse_listing("", ""), 139).agrees


def test_section_names_of_one_cubin() -> None:
    assert parse_section_names(SECTIONS) == (".shstrtab", ".nv.info", ".text._Z1kPf", ".debug_line")
    assert parse_section_names("") == ()
