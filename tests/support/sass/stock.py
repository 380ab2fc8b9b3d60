"""Kernels that others compiled: how much of their addresses is explained, and whether what is said is right."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpucore.code_map import Function
from gpucore.dwarf import Chain, Place
from gpucore.elf import read_parameter_table
from gpucore.errors import GpucoreError
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.mangling import parameter_types, short_name
from gpucore.sass import Instruction, decode
from tests.support.sass.machine import Thread, Unsupported
from tests.support.sass.memory import Memory, Region
from tests.support.sass.programs import Program, constant_bank
from tests.support.sass.proofs import explainer
from tests.support.sass.published import published
from tests.support.sass.sources import KernelText, kernel_texts
from tests.support.sass.witness import Explain, Outcome, Run, Witness, named_specials

_GLOBAL = frozenset(("LDG", "STG", "ATOMG", "RED", "REDG"))
_BLOCK, _GRID = (128, 1, 1), (5, 3, 2)
_NUMBERS = frozenset((
    "bool", "char", "double", "float", "int", "long", "long long", "short", "unsigned char", "unsigned int",
    "unsigned long", "unsigned long long", "unsigned short",
))  # fmt: skip
_LONGEST = 16 * 6000  # bytes of a kernel
_LARGEST = 2 << 20  # bytes of a cubin that is compared; for larger ones nvdisasm and the interpreter take minutes


@dataclass
class Bases:
    """How the base that is named compares with what the source accesses at that line.

    `elsewhere` are the others, in words: there the line table may have the line or the call of a neighbour.
    """

    named: int = 0
    one_of: int = 0
    undecided: int = 0
    elsewhere: list[str] = field(default_factory=list)


@dataclass
class Coverage:
    """What is said of the global accesses of some kernels.

    `whole` and what follows count the whole answer: with the guards, and the addresses of the loads that the address
    depends on. Those that begin with `alone_` count the formula of the address and its loops. Known loops have one
    start and one step. Set ones have one start, and one formula for the value of the next turn. In recurrences such a
    step or formula depends on the variable itself, maybe by way of others.
    """

    kernels: int = 0
    accesses: int = 0
    base_argument: int = 0
    base_loaded: int = 0
    base_one_of: int = 0
    base_none: int = 0
    whole: int = 0
    with_known_loops: int = 0
    with_set_loops: int = 0
    with_recurrences: int = 0
    with_other_loops: int = 0
    partly_unknown: int = 0
    alone_whole: int = 0
    alone_with_known_loops: int = 0
    alone_with_set_loops: int = 0
    alone_with_recurrences: int = 0
    alone_with_other_loops: int = 0
    alone_partly_unknown: int = 0
    not_explained: int = 0
    not_known: dict[str, int] = field(default_factory=dict)
    not_read: int = 0


def cubins(wheel: Path, arch: int, rng: random.Random) -> Iterator[bytes]:
    """Yield cubins of an architecture out of the libraries of a wheel, in a random order."""
    with zipfile.ZipFile(wheel) as archive:
        names = [one.filename for one in archive.infolist() if one.filename.endswith(".so")]
        for name in rng.sample(names, len(names)):
            entries = [
                one.entry
                for one in find_device_code(archive.read(name))
                if one.entry.kind == EntryKind.ELF and one.entry.target.rstrip("af") == f"sm_{arch}"
            ]
            for entry in rng.sample(entries, min(len(entries), 12)):
                yield bytes(entry.payload())


def survey(nvdisasm: str | None, wheel: Path, arch: int, kernels: int, seed: int) -> tuple[Coverage, Outcome]:
    """Explain every global access of some kernels, and compare those of small cubins that a few threads execute.

    Without nvdisasm none is compared.
    """
    rng, coverage, outcome = random.Random(seed), Coverage(), Outcome()
    for data in cubins(wheel, arch, rng):
        compared = nvdisasm is not None and len(data) <= _LARGEST
        try:
            program = Program(data, arch, nvdisasm or "")
            functions = rng.sample(program.code.kernels, min(len(program.code.kernels), 3))
        except GpucoreError:
            coverage.not_read += 1
            continue
        for function in functions:
            if coverage.kernels >= kernels:
                return coverage, outcome
            if function.size > _LONGEST:
                continue
            explain = _cover(program, function, coverage)
            try:
                if compared:
                    _compare(program, function, explain, outcome, rng)
            except (RuntimeError, subprocess.TimeoutExpired):
                coverage.not_read += 1
    return coverage, outcome


def survey_with_sources(nvdisasm: str, cubin: Path, arch: int, each: int, seed: int) -> tuple[Coverage, Outcome, Bases]:
    """Do the same for a cubin with lines whose sources are here: `each` kernels of every template, and their bases."""
    rng, coverage, outcome, bases = random.Random(seed), Coverage(), Outcome(), Bases()
    program = Program(cubin.read_bytes(), arch, nvdisasm)
    templates: dict[str, list[Function]] = {}
    for kernel in program.code.kernels:
        if kernel.size <= _LONGEST:
            templates.setdefault(plain_name(kernel), []).append(kernel)
    for kernels in templates.values():
        for kernel in rng.sample(kernels, min(each, len(kernels))):
            explain = _cover(program, kernel, coverage, bases)
            _compare(program, kernel, explain, outcome, rng)
    return coverage, outcome, bases


def plain_name(kernel: Function) -> str:
    """Return the name of a kernel as its definition has it: without template arguments and namespaces."""
    return re.split(r"[<(]", short_name(kernel.demangled))[0].rpartition("::")[2]


def _cover(program: Program, function: Function, coverage: Coverage, bases: Bases | None = None) -> Explain:
    """Count what is said of every global access of a kernel, by the decoder alone."""
    explain = explainer(program, function.name)
    coverage.kernels += 1
    for i in decode(program.words(function.name), program.arch):
        if i.opcode in _GLOBAL:
            answer = explain(i.offset, ())
            _count(answer, coverage)
            if bases is not None and answer is not None and answer["base"] and answer["base"]["argument"]:
                _hold_to_source(program, function, i, answer["base"]["argument"], bases)
    return explain


def _compare(program: Program, function: Function, explain: Explain, outcome: Outcome, rng: random.Random) -> None:
    machine = program.machine(function.name, strict=False)
    witness = Witness(machine, explain, program.labels(function.name))
    for _ in range(3):
        run = _run(program, function, witness, rng)
        if run is not None:
            try:
                witness.run(run, limit=6000)
            except (Unsupported, IndexError) as error:
                outcome.unexplained[f"not executed: {type(error).__name__}"] += 1
    outcome.add(witness.outcome)


def _hold_to_source(program: Program, function: Function, i: Instruction, argument: int, bases: Bases) -> None:
    location = program.code.locate(Place(section=function.section, offset=i.offset))
    types = parameter_types(function.demangled)
    # Where only the call path changes ptxas leaves out rows: the chain may be that of a neighbour.
    chains = (location.chain, *location.siblings)
    kernel, accessed = None, set[str]()
    for file in {Path(chain[-1].file) for chain in chains if chain}:
        for text in _kernels_in(file, plain_name(function)):
            if len(text.parameters) == len(types):
                found = {name for chain in chains for name in _accessed(text, file, chain)}
                kernel, accessed = (text, found) if found else (kernel, accessed)
    accessed &= {
        name
        for name, kind in zip(kernel.parameters if kernel else (), types, strict=False)
        if kind not in _NUMBERS and not (kind.endswith(" const*") and not i.opcode.startswith("LD"))
    }
    if kernel is None or not accessed:
        bases.undecided += 1
    elif kernel.parameters[argument - 1] not in accessed:
        innermost = location.chain[0]
        here = f"{function.name}+{i.offset:#x} {i.opcode} {Path(innermost.file).name}:{innermost.line}"
        bases.elsewhere.append(f"{here}: {kernel.parameters[argument - 1]}, the source has {sorted(accessed)}")
    else:
        bases.named += len(accessed) == 1
        bases.one_of += len(accessed) > 1


def _accessed(kernel: KernelText, file: Path, chain: Chain) -> Iterator[str]:
    """Yield what the frames of a chain that lie in the kernel's own text access: a lambda's are of it too."""
    for depth, frame in enumerate(chain):
        if Path(frame.file) == file and kernel.first <= frame.line < kernel.first + len(kernel.lines):
            yield from kernel.accessed(frame.line, inlined=depth > 0)


@cache
def _kernels_in(path: Path, name: str) -> tuple[KernelText, ...]:
    return tuple(kernel_texts(path.read_text(errors="replace"), name)) if path.is_file() else ()


def _count(answer: object, coverage: Coverage) -> None:
    coverage.accesses += 1
    if not isinstance(answer, dict):
        coverage.not_explained += 1
        return
    base = answer["base"]
    if base is None:
        coverage.base_one_of += bool(answer["bases"])
        coverage.base_none += not answer["bases"]
    else:
        coverage.base_argument += base["argument"] is not None
        coverage.base_loaded += base["argument"] is None
    too_large = [] if published(answer, "/formula") else ["too large"]
    needs = _needs(answer)
    with_guards = _kind(answer, answer["not_known"] or too_large, range(len(answer["loops"])), needs)
    setattr(coverage, with_guards, getattr(coverage, with_guards) + 1)
    if with_guards == "partly_unknown":
        for opcode in answer["not_known"] or too_large:
            coverage.not_known[opcode] = coverage.not_known.get(opcode, 0) + 1
    loops, opaque = _in_formula(answer)
    alone = f"alone_{_kind(answer, opaque, loops, needs)}"
    setattr(coverage, alone, getattr(coverage, alone) + 1)


def _kind(
    answer: Mapping[str, Any], unknown: Collection[str], loops: Collection[int], needs: Mapping[int, set[int]]
) -> str:
    if unknown:
        return "partly_unknown"
    values = [(n, one) for n in loops if (one := answer["loops"][n])["kind"] == "value"]
    one_formula = all(len(one["starts"]) == 1 and len(one["steps"] + one["others"]) <= 1 for _, one in values)
    if not one_formula or not all(published(answer, at) for n, one in values for at in _formulas_of(n, one)):
        return "with_other_loops"
    if any(n in _reached(needs, n) for n, _ in values):
        return "with_recurrences"
    if any(one["others"] for _, one in values):
        return "with_set_loops"
    return "with_known_loops" if loops else "whole"


def _needs(answer: Mapping[str, Any]) -> dict[int, set[int]]:
    """Return the variables of loops that the formulas of each of them name."""
    of_part: dict[int, set[int]] = {}

    def named(tree: Mapping[str, Any] | None) -> set[int]:
        found: set[int] = set()
        todo = [tree] if tree is not None else []
        while todo:
            node = todo.pop()
            found |= {node["loop"]} if "loop" in node else of_part[node["part"]] if "part" in node else set()
            todo += node.get("args", ())
        return found

    for number, part in enumerate((answer["in_parts"] or {"parts": ()})["parts"]):
        of_part[number] = named(part)  # it refers to earlier ones alone
    return {
        n: set[int]().union(*(named(published(answer, at)) for at in _formulas_of(n, one)))
        for n, one in enumerate(answer["loops"])
    }


def _reached(needs: Mapping[int, set[int]], start: int) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        new = needs.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def _formulas_of(n: int, loop: Mapping[str, Any]) -> list[str]:
    return [f"/loops/{n}/{name}/{k}" for name in ("starts", "steps", "others") for k in range(len(loop[name]))]


def _in_formula(answer: Mapping[str, Any]) -> tuple[list[int], set[str]]:
    """Return the loops and the opcodes that are not looked into of the formula alone: not those of guards and loads."""
    loops: list[int] = []
    parts: set[int] = set()
    unknown = set() if published(answer, "/formula") else {"too large"}
    todo = [published(answer, "/formula")]
    while todo:
        tree = todo.pop()
        if tree is None:
            continue
        if "opaque" in tree:
            unknown.add(tree["opaque"])
        number = tree.get("loop")
        if number is not None and number not in loops:
            loops.append(number)
            todo += [published(answer, at) for at in _formulas_of(number, answer["loops"][number])]
        part = tree.get("part")
        if part is not None and part not in parts:
            parts.add(part)
            todo.append(answer["in_parts"]["parts"][part])
        todo += tree.get("args", ())
    return loops, unknown


def _run(program: Program, function: Function, witness: Witness, rng: random.Random) -> Run | None:
    """Return a thread with arguments that are plausible by their types."""
    table = read_parameter_table(program.code.elf, function.name)
    if table is None or table.size is None:
        return None
    data, regions = bytearray(table.size), []
    for at in range(0, table.size - 3, 4):
        struct.pack_into("<I", data, at, rng.choice((1, 2, 4, 8, 64, 128)) if at % 8 == 0 else 0)
    types = parameter_types(function.demangled)
    for n, place in enumerate(table.parameters):
        kind = types[n] if n < len(types) else ""
        if place.size == 8 and (kind.endswith("*") or not kind):
            struct.pack_into("<Q", data, place.offset, (n + 1 << 40) + 0x100)
            regions.append(Region(n + 1, 4, n))
        elif place.size == 4:
            struct.pack_into("<I", data, place.offset, rng.choice((1, 7, 16, 128)))
    thread, block = (rng.randrange(_BLOCK[0]), 0, 0), (rng.randrange(_GRID[0]), rng.randrange(_GRID[1]), 0)
    named = named_specials(thread[0] % 32, thread, block, _BLOCK, _GRID)

    def begin() -> Thread:
        bank = constant_bank(program.arch, _BLOCK, _GRID, bytes(data))
        return witness.machine.thread(
            thread=thread, block=block, block_size=_BLOCK, memory=Memory(regions), constants=bank
        )

    return Run(begin, bytes(data), tuple((one.offset, one.size) for one in table.parameters), named)
