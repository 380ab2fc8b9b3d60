"""The JSON of nvdisasm becomes instructions, with what each one writes and reads."""

import json

import pytest

from gpucore import UnreadableBinary
from gpucore.sass import Immediate, Instruction, Memory, Register, Target, definitions, read_listings, uses


def _read(opcode: str, operands: str = "", predicate: str = "") -> Instruction:
    row = {"opcode": opcode, "operands": operands, **({"predicate": predicate} if predicate else {})}
    document = [{}, [{"function-name": "f", "start": 0, "length": 16, "sass-instructions": [row]}]]
    (listing,) = read_listings(json.dumps(document))
    (instruction,) = listing.instructions
    return instruction


@pytest.mark.parametrize(
    ("opcode", "operands", "text", "writes", "reads"),
    [
        ("IMAD.WIDE.U32", "R2,R4,0x4,R6", "IMAD.WIDE.U32 R2, R4, 0x4, R6", "R2 R3", "R4 R6 R7"),
        ("IMAD.HI.U32", "R9,P0,R5,R6,R8", "IMAD.HI.U32 R9, P0, R5, R6, R8", "R9 P0", "R5 R6 R8 R9"),
        ("IMAD.MOV.U32", "R1,RZ,RZ,c[0x0][0x28]", "IMAD R1, RZ, RZ, c[0x0][0x28]", "R1", ""),
        ("IADD3.X", "R9,P1,PT,R1,~R2,RZ,P0,!PT", "IADD3.X R9, P1, PT, R1, ~R2, RZ, P0, !PT", "R9 P1", "R1 R2 P0"),
        ("ISETP.GE.AND", "P0,PT,R7,-0x3,!P2", "ISETP.GE.AND P0, PT, R7, -0x3, !P2", "P0", "R7 P2"),
        ("LOP3.LUT", "P1,RZ,R1,UR4,RZ,0xc0,!PT", "LOP3.LUT P1, RZ, R1, UR4, RZ, 0xc0, !PT", "P1", "R1 UR4"),
        (
            "LDG.E.128",
            "R4,desc[UR6][R2.64+-0x10]",
            "LDG.E.128 R4, desc[UR6][R2.64+-0x10]",
            "R4 R5 R6 R7",
            "R2 R3 UR6 UR7",
        ),
        ("LDG.E.SYS", "R9,[R6.U32+UR4+0x18]", "LDG.E.SYS R9, [R6+UR4+0x18]", "R9", "R6 UR4 UR5"),
        ("STG.E.64", "desc[UR4][R2.64],R8", "STG.E.64 desc[UR4][R2.64], R8", "", "R2 R3 UR4 UR5 R8 R9"),
        ("LDS.U.128", "R8,[R4.X16+UR5+0x40]", "LDS.U.128 R8, [R4.X16+UR5+0x40]", "R8 R9 R10 R11", "R4 UR5"),
        ("LDC", "R7,c[0x0][RZ]", "LDC R7, c[0x0][0x0]", "R7", ""),
        ("LDC.U8", "R7,c[0x3][R29+0x10]", "LDC.U8 R7, c[0x3][R29+0x10]", "R7", "R29"),
        (
            "ATOMG.E.CAS.STRONG.GPU",
            "PT,R6,[R2],R4,R5",
            "ATOMG.E.CAS.STRONG.GPU PT, R6, [R2.64], R4, R5",
            "R6",
            "R2 R3 R4 R5",
        ),
        ("SHFL.BFLY", "P0,R10,R10.reuse,0x3,0x1f", "SHFL.BFLY P0, R10, R10, 0x3, 0x1f", "P0 R10", "R10"),
        ("VOTE.ANY", "R4,PT,!P0", "VOTE.ANY R4, PT, !P0", "R4", "P0"),
        ("R2P", "PR,R4,0x7f", "R2P P0, R4, 0x7f", "P0 P1 P2 P3 P4 P5 P6", "R4"),
        ("BRX", "R12,-0x630", "BRX R12, -0x630", "", "R12 R13"),
        ("IADD.64", "R16,R16,UR12", "IADD.64 R16, R16, UR12", "R16 R17", "R16 R17 UR12 UR13"),
        ("HFMA2.MMA", "R7,-RZ,RZ,0,2.384185791015625e-07", "HFMA2.MMA R7, -RZ, RZ, 0x4", "R7", ""),
        ("HFMA2.BF16_V2", "R7,R1,1,-2,RZ.H0_H0", "HFMA2.BF16_V2 R7, R1, 0x3f80c000, RZ.H0_H0", "R7", "R1"),
        ("FADD", "R0,R1,-3", "FADD R0, R1, 0xc0400000", "R0", "R1"),
        ("DADD", "R0,R2,-0.5", "DADD R0, R2, 0xbfe00000", "R0 R1", "R2 R3"),
        ("S2R", "R0,SR_CTAID.X", "S2R R0, SR_CTAID.X", "R0", ""),
        ("CS2R", "R4,SRZ", "CS2R R4, SRZ", "R4 R5", ""),
    ],
)
def test_an_instruction_is_read(opcode: str, operands: str, text: str, writes: str, reads: str) -> None:
    instruction = _read(opcode, operands)
    assert str(instruction) == text
    assert " ".join(map(str, definitions(instruction) or ())) == writes
    assert " ".join(map(str, uses(instruction) or ())) == reads


def test_a_missing_comma_does_not_lose_an_operand() -> None:
    assert _read("LDS", "R4[R5.X4]").memory == Memory(Register("R", 5), scale=4)


def test_targets_are_offsets_and_symbols() -> None:
    assert _read("BRA", "0x1790", "@!P0").target == Target(0x1790)
    assert _read("BRA", "P5,0x40").target == Target(0x40)
    assert _read("BSSY.RECONVERGENT", "B0,0x40").target == Target(0x40)
    assert _read("CALL.REL.NOINC", "$__internal_0_$__cuda_sm20_div_s64").target == Target(
        None, "$__internal_0_$__cuda_sm20_div_s64"
    )
    assert _read("WARPSYNC", "0xffffffff").sources == (Immediate(0xFFFFFFFF),)


def test_what_is_not_known_is_not_guessed() -> None:
    unknown = _read("FROBNICATE.64", "R4,R5")
    assert (unknown.known, definitions(unknown), uses(unknown)) == ("nothing", None, None)
    opaque = _read("HMMA.16816.F32", "R4,R8,R12,R4")
    assert (opaque.known, len(definitions(opaque) or ()), uses(opaque)) == ("writes", 4, None)


def test_a_guard_is_read_and_not_written() -> None:
    guarded = _read("MOV", "R4,R5", "@!UP2")
    assert str(guarded) == "@!UP2 MOV R4, R5"
    assert uses(guarded) == (Register("UP", 2), Register("R", 5))


@pytest.mark.parametrize("text", ["", "[]", "[{}]", "{}", '[{},[{"start":0}]]', "[" * 100_000, '[1,[{"start":"x"}]]'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UnreadableBinary, match="nvdisasm"):
        read_listings(text)
