"""The decoder says of words what nvdisasm says, and of no word too much."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore import UnreadableBinary
from gpucore.sass import Instruction, Register, Target, decode, definitions, read_listings, uses
from gpucore.sass.encodings import ARCHITECTURES

SAMPLES = Path(__file__).parents[2] / "data" / "sass"
STORED = (75, 80, 90, 100, 120)


def stored(sm: int) -> tuple[bytes, tuple[Instruction, ...]]:
    """Return the stored words of an architecture, and what nvdisasm's JSON of them is read as."""
    lines = [line.split("\t") for line in (SAMPLES / f"sm_{sm}.tsv").read_text().splitlines()]
    rows = [
        {"opcode": opcode, "operands": operands, **({"predicate": guard} if guard else {})}
        for _, guard, opcode, operands in lines
    ]
    document = [{}, [{"function-name": "f", "start": 0, "length": 0, "sass-instructions": rows}]]
    (listing,) = read_listings(json.dumps(document))
    return b"".join(bytes.fromhex(word) for word, *_ in lines), listing.instructions


@pytest.mark.parametrize("sm", STORED)
def test_stored_words_are_what_nvdisasm_says(sm: int) -> None:
    code, expected = stored(sm)
    found = decode(code, sm)
    assert len(found) == len(expected) > 100
    whole = 0
    for ours, theirs in zip(found, expected, strict=True):
        if ours.known == "all":
            assert ours == theirs
            whole += 1
        elif ours.known == "writes":
            assert (ours.opcode, ours.guard, ours.destinations) == (theirs.opcode, theirs.guard, theirs.destinations)
    assert whole > len(found) / 3
    assert sum(one.known == "nothing" for one in found) < len(found) / 10


BRANCH = "4799000080ffffffffff830300ea1f00"  # of sm_80: @!P1 BRA, back by 0x80 from the next instruction


@pytest.mark.parametrize(
    ("sm", "word", "opcode", "written"),
    [
        (90, "287c0202060000000000000800cc1f00", "DMUL", "R2 R3"),  # DMUL R2, R2, UR6
        (90, "297e0606040000000000000800cc1f00", "DADD", "R6 R7"),  # DADD R6, R6, UR4
        (90, "3474000000fc00fc00d8f00300da1f00", "HSETP2", "P0"),  # HSETP2.NEU.AND P0, PT, R0.H0_H0, -INF , -INF , PT
        (90, "487c0002040000000011fe0b00c84f00", "VIMNMX", "R0"),  # VIMNMX.RELU R0, R2, UR4, PT
        (90, "9b78053f040000000000000800c80f00", "UBMSK", "UR5"),  # UBMSK UR5, URZ, 0x4
        (90, "bd7d000a040000003f0c000c00e20300", "STAS", ""),  # STAS.128 [R10.64], R4
        (90, "a873ff020500000000e11e0400642300", "ATOMG", ""),  # ATOMG.E.EXCH.STRONG.GPU PT, RZ, [R2], R5
        (90, "f179180c0000e0011810040800e20f00", "IGMMA", " ".join(f"R{n}" for n in range(24, 56))),  # 64x64x32.S8.S8
        (90, "3c72202c20000000ff08000000e20f00", "HMMA", "R32 R33"),  # HMMA.16816.F16 R32, R44, R32, RZ
        (75, "37722806040000002854040000e80f04", "IMMA", "R40 R41"),  # IMMA.8816.S8.S8.SAT R40, R6.ROW, R4.COL, R40
        (80, "107b0000006800000010300000220e00", "F2F", "R0"),  # F2F.F32.F64 R0, c[0x0][0x1a0]
        (80, "297604040000800000000000000c1e00", "DADD", "R4 R5"),  # DADD R4, R4, c[0x2][0x0]
        (80, "287a0202006e00000000000000141e00", "DMUL", "R2 R3"),  # DMUL R2, R2, c[0x0][0x1b8]
        (100, "0f7c1a15040000001a11800b00e24f00", "VIMNMX3", "R26"),  # VIMNMX3.RELU R26, R21, UR4, R26, PT
        (80, "8c7f02ff000008003f04800c00642e00", "ATOMS", "R2 R3"),  # ATOMS.ARRIVE.64 R2, [URZ+0x800]
        (120, "36720808070000800008000000c40f00", "VIADD", "R8"),  # VIADD.U8x4 R8, R8, -R7
        (80, "3f720cffff000000ff000000002c0e00", "DMMA", "R12 R13 R14 R15"),  # DMMA.884 R12, RZ, RZ, RZ
        (80, "607b0402045a0030ff019e0100421110", "TEX", "R4 R5"),  # TEX.SCR.LL RZ, R4, R2, R4, 0x0, 0x5a, 2D, 0x1
        (80, "a1730706000000000000000000240e00", "MATCH", "P0 R7"),  # MATCH.ALL P0, R7, R6
        (120, "077e0a02040000000000800900e40f00", "SEL", "R10 R11"),  # SEL.64 R10, R2, UR4, P3
        (120, "55720404050000000400000800d80f00", "UFFMA", "UR4"),  # UFFMA UR4, UR4, UR5, UR4
        (120, "53730200000000000000000000da0f00", "RPCMOV", "R2"),  # RPCMOV.32 R2, Rpc.LO
        (100, "40750008000000000080c00900e40e00", "CCTL", ""),  # CCTL.E.C.LDCU.IV.DEEP [UR8]
        (100, "ea75002e302c08801100a00b00e20700", "UTCOMMA", ""),
        (100, "ea7500080604ff000c03a00b00e40500", "UTCQMMA", ""),
        (100, "787300060400000000e0080800e21100", "UREDGR", ""),  # UREDGR.E.ADD.NA.STRONG.GPU [UR6], UR4
    ],
)
def test_what_is_not_read_whole_writes_what_nvdisasm_says(sm: int, word: str, opcode: str, written: str) -> None:
    (found,) = decode(bytes.fromhex(word), sm)
    assert (found.opcode, found.known) == (opcode, "writes")
    assert " ".join(map(str, definitions(found) or ())) == written


@pytest.mark.parametrize("sm", STORED)
def test_reversed_bits_are_read_whole(sm: int) -> None:
    (found,) = decode(bytes.fromhex("01730600060000000000000000700e00"), sm)  # nvdisasm: BREV R6, R6
    assert (str(found), found.known) == ("BREV R6, R6", "all")


def test_a_branch_by_a_uniform_predicate_has_a_target_on_hopper_too() -> None:
    (found,) = decode(bytes.fromhex("47750408010000000000800b00ea1f00"), 90)  # nvdisasm: BRA.U !UP0, 0x20
    assert (str(found), found.target) == ("BRA.U !UP0, 0x20", Target(0x20))


def test_targets_count_from_the_branch() -> None:
    found = decode(bytes(16 * 0x6C) + bytes.fromhex(BRANCH), 80)[-1]
    assert (str(found), found.target) == ("@!P1 BRA 0x650", Target(0x650))
    later = decode(bytes.fromhex(BRANCH), 80, start=0x6C0)
    assert later == (found,)


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_a_mask_of_bits_writes_one_register(sm: int) -> None:
    (found,) = decode(bytes.fromhex("1b7202ff020000000000000000e20f00"), sm)  # nvdisasm: BMSK R2, RZ, R2
    assert (found.opcode, definitions(found)) == ("BMSK", (Register("R", 2),))


@pytest.mark.parametrize("sm", [100, 120])
def test_a_mask_of_bits_by_uniform_registers_writes_one_register(sm: int) -> None:
    (found,) = decode(bytes.fromhex("9b7204ff040000000000000800e20f00"), sm)  # nvdisasm: UBMSK UR4, URZ, UR4
    assert (found.opcode, definitions(found)) == ("UBMSK", (Register("UR", 4),))


@pytest.mark.parametrize(("register", "sm"), [("3f", 90), ("ff", 100)])
def test_the_election_of_a_thread_is_known_of_all_that_run_it_alone(register: str, sm: int) -> None:
    word = f"2f78{register}0000000000{{}}0300e20f00"  # nvdisasm: ELECT P0, URZ, PT
    found = [decode(bytes.fromhex(word.format(bits)), sm)[0] for bits in ("000080", "0000a0")]
    assert [(str(one), one.known) for one in found] == [("ELECT P0, URZ, PT", "all"), ("ELECT P0, URZ, ...", "writes")]
    assert [definitions(one) for one in found] == [(Register("P", 0),)] * 2  # the second is ELECT.IGNOREKILL


@pytest.mark.parametrize("sm", STORED)
def test_a_byte_of_a_word_becomes_predicates(sm: int) -> None:
    words = [bytes.fromhex(f"047800260600000000{bits}000000e40f00") for bits in ("00", "10", "20", "30")]
    found = decode(b"".join(words), sm)  # nvdisasm: R2P PR, R38.B1, 0x6 and so on
    assert [str(one) for one in found] == [f"R2P P0, R38{part}, 0x6" for part in ("", ".B1", ".B2", ".B3")]
    assert {(one.opcode, one.known) for one in found} == {("R2P", "all")}


def test_a_minimum_of_64_bits_with_a_number_that_may_be_negative_is_left_open() -> None:
    word = "85780e0c000000{}00e4ff0b00c80f00"  # nvdisasm: UIMNMX.U64 UPT, UPT, UR14, UR12, 0x40000000, UPT, !UPT
    assert [decode(bytes.fromhex(word.format(top)), 120)[0].known for top in ("40", "80")] == ["all", "nothing"]


def test_threads_do_not_mix_their_targets() -> None:
    word = bytes.fromhex(BRANCH)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: decode(word, 80, start)[0].target, range(0, 16 * 2000, 16)))
    assert found == [Target(start - 0x70) for start in range(0, 16 * 2000, 16)]


def test_scheduling_bits_mean_nothing() -> None:
    code, _ = stored(90)
    words = [int.from_bytes(code[at : at + 16], "little") for at in range(0, len(code), 16)]
    other = b"".join((word ^ 0x7FFFFF << 105).to_bytes(16, "little") for word in words)
    assert decode(other, 90) == decode(code, 90)


@pytest.mark.parametrize(
    ("sm", "word", "text"),
    [
        (90, "0f78110e4d0000001100800300ca4f00", "VIMNMX3.U32 R17, R14, 0x4d, R17, PT"),
        (120, "35781f10dbb66ddb0000820700e20f00", "IADD R31, P1, R16, -0x24924925"),
        (120, "357c0c020b0000000000800f00e24f00", "IADD R12, P0, R2, UR11"),
        (120, "3572ff080c0000000002800700e44f0c", "IADD.64 RZ, P0, R8, R12"),
        (120, "177822026400000000e6ff0300e44f00", "IMNMX.S64 PT, PT, R34, R2, 0x64, PT, !PT"),
        (75, "8183103200000000006f1e0000a20e00", "@!P0 LDG.E.U.128.CONSTANT.SYS R16, [R50.64]"),
        (90, "1d7b00000080c1000000010000f00f00", "BAR.SYNC.DEFER_BLOCKING 0x3, 0x60"),
        (90, "1d790000070000010020000000f00300", "BAR.ARV 0x4, R7"),
        (90, "1d730000050000000000010000e40100", "BAR.SYNC.DEFER_BLOCKING R5, R5"),
        (90, "1d7b0000000000000044810000ec0f00", "BAR.RED.AND.DEFER_BLOCKING 0x0, P1"),
    ],
)
def test_what_nvcc_13_5_makes_and_barriers_are_read_whole(sm: int, word: str, text: str) -> None:
    (found,) = decode(bytes.fromhex(word), sm)
    assert (str(found), found.known) == (text, "all")


def test_an_illegal_bit_makes_an_instruction_opaque() -> None:
    code, expected = stored(90)
    at = next(n for n, one in enumerate(expected) if one.opcode == "IADD3")
    word = int.from_bytes(code[16 * at : 16 * at + 16], "little") ^ 1 << 76
    assert decode(word.to_bytes(16, "little"), 90)[0].known == "nothing"


@given(st.sampled_from(ARCHITECTURES), st.lists(st.binary(min_size=16, max_size=16), max_size=8))
def test_any_bytes_have_an_answer(sm: int, words: list[bytes]) -> None:
    found = decode(b"".join(words), sm)
    assert [one.offset for one in found] == [16 * n for n in range(len(words))]
    for one in found:
        assert str(one)
        assert (definitions(one) is None) == (one.known == "nothing")
        assert (uses(one) is None) == (one.known != "all")


@given(st.sampled_from(STORED), st.data())
def test_words_near_real_ones_have_an_answer(sm: int, data: st.DataObject) -> None:
    code, _ = stored(sm)
    at = 16 * data.draw(st.integers(0, len(code) // 16 - 1))
    word = int.from_bytes(code[at : at + 16], "little")
    for bit in data.draw(st.lists(st.integers(0, 127), max_size=4)):
        word ^= 1 << bit
    (found,) = decode(word.to_bytes(16, "little"), sm)
    assert str(found) and found.known in ("all", "writes", "nothing")


def test_what_is_no_code_is_refused() -> None:
    with pytest.raises(UnreadableBinary, match="whole instructions"):
        decode(bytes(15), 90)
    with pytest.raises(UnreadableBinary, match="sm_35"):
        decode(bytes(16), 35)
