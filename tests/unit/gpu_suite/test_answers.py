"""The answer sheet says what the evidence shows, and that it is not answered where the evidence shows nothing."""

import json
from pathlib import Path
from typing import Any

from gpucore.elf import CUDA_13
from tests.builders.core_builder import exited_warps_core, hang_core, illegal_address_core
from tests.gpu.answers import Answer, answers, render
from tests.gpu.core_facts import core_facts


def sheet(folder: Path, **measured: Any) -> dict[str, Answer]:
    (folder / "measured.json").write_text(json.dumps({"where": "seen on a desk", **measured}))
    return {each.question: each for each in answers(folder)}


def facts(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    (folder / name).write_bytes(data)
    return core_facts(folder / name)


def test_without_evidence_nothing_is_answered(tmp_path: Path) -> None:
    given = answers(tmp_path)
    assert all(each.answer is None and not each.files for each in given)
    assert render("h", given).count("Not answered") == len(given) == 11


def test_identity_and_row_sizes_are_those_of_the_cores(tmp_path: Path) -> None:
    cores = {"a": facts(tmp_path, "a", illegal_address_core(identity=CUDA_13)), "b": facts(tmp_path, "b", hang_core())}
    given = sheet(tmp_path, cores=cores)
    identity = given["Identity bytes of a core"]
    assert identity.answer and "41 08 (e_version 0x1, e_flags 0x0) in 1 core(s)" in identity.answer
    assert "33 07" in identity.answer and identity.files == ("cores/a", "cores/b")
    later = given["Later fields (r575 to r615)"].answer
    assert later and "warps 80 (number 5 of 5 known)" in later and "barrier_scope (r590): block" in later


def test_rows_longer_than_any_known_are_pointed_out(tmp_path: Path) -> None:
    core = facts(tmp_path, "a", hang_core())
    core["rows"]["warps"] |= {"bytes": 96, "longer_than_known": True}
    core["unknown_sections"] = ["0x80000018"]
    later = sheet(tmp_path, cores={"a": core})["Later fields (r575 to r615)"].answer
    assert later and "warps 96 (longer than any known)" in later and "nobody has named: 0x80000018" in later


def test_the_drivers_own_words_in_an_sm_are_quoted(tmp_path: Path) -> None:
    core = facts(tmp_path, "a", exited_warps_core(words="Illegal address, says the driver"))
    later = sheet(tmp_path, cores={"a": core})["Later fields (r575 to r615)"].answer
    assert later and "exception_string (r580): Illegal address, says the driver" in later


def test_images_with_lines_are_told_from_those_without(tmp_path: Path) -> None:
    cores = {
        "a": facts(tmp_path, "a", illegal_address_core()),
        "b": facts(tmp_path, "b", illegal_address_core(lines=False)),
    }
    told = sheet(tmp_path, cores=cores)["Line tables in relocated images"].answer
    assert told and ".nv_debug_ptx_txt" in told and "lines are found; 1 relocated image(s) keep" in told
    assert told.endswith("no line is found.")


def test_the_pipe_is_told_for_each_size(tmp_path: Path) -> None:
    seen = {
        "1": {"taken": 1, "fired": False, "wait_s": 30.0, "alive": True},
        "65536": {"taken": 65536, "fired": True, "wait_s": 1.26, "alive": False},
    }
    told = sheet(tmp_path, pipe=seen)["How much must be written to fire the pipe"]
    assert told.answer == (
        "1 byte(s), 1 taken: not fired within 30 s, the process lives on; "
        "65536 byte(s), 65536 taken: fired after 1.3 s, the process is gone."
    )
    assert told.files == ("text/pipe-1.txt", "text/pipe-65536.txt")


def test_both_orders_of_the_banner_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    pc, exception = "The exception was triggered at PC 0x1", "CUDA Exception: Warp Assert"
    (tmp_path / "text" / "cuda-gdb-a.txt").write_text(f"{exception}\n{pc}\n[Current focus set to CUDA kernel 0]\n")
    (tmp_path / "text" / "cuda-gdb-b.txt").write_text(f"[Current focus set to CUDA kernel 0]\n{exception}\n")
    told = sheet(tmp_path)["The order of cuda-gdb's banner lines"].answer
    assert told == "exception, then pc, then focus (1 transcript(s)); focus, then exception (1 transcript(s))."


def test_xml_is_told_by_its_elements_and_what_is_none_by_the_parsers_words(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "memcheck.xml").write_text("<out><record><kind>x</kind></record><record/></out>")
    (tmp_path / "text" / "racecheck.xml").write_bytes(b"\x00binary")
    told = sheet(tmp_path)["The sanitizer's XML"].answer
    assert told and told.startswith("memcheck.xml: <out> of record, kind; racecheck.xml is no XML: ")


def test_a_drivers_refusal_of_a_flag_is_quoted_and_its_silence_told(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    path = tmp_path / "text" / "flags-a-flag-nobody-knows.txt"
    question = "What a driver says to a flag it does not know"
    path.write_text("[00:00:01.0] coredump: Detected an exception\n")
    assert sheet(tmp_path)[question].answer == "nothing is said about it."
    path.write_text("WARNING: Ignoring unknown coredump flag 'no_such_flag'\n")
    told = sheet(tmp_path, refused_flags={"a flag nobody knows": ["no_such_flag"], "none": []})[question].answer
    assert told == (
        "WARNING: Ignoring unknown coredump flag 'no_such_flag'; refused under `a flag nobody knows`: no_such_flag."
    )


def test_an_exception_that_was_not_expected_stands_out(tmp_path: Path) -> None:
    seen = {
        "trap": {"name": "Warp Illegal Instruction", "expected": True},
        "x": {"name": "Warp Arrive", "expected": False},
    }
    told = sheet(tmp_path, exceptions=seen)["Which exception each fault is"]
    assert told.answer == "trap: Warp Illegal Instruction; x: Warp Arrive, WHICH WAS NOT EXPECTED."
    assert told.files == ("runs/trap.json", "runs/x.json")
