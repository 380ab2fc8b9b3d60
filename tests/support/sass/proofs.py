"""Random kernels through all witnesses: formula = interpreter = C++, and the base argument."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucore.core import find_faults, with_callers
from gpucore.core_reader import CoreSections, read_core
from gpucore.explain import Program as Explained
from gpucore.explain import SourceText, Why, explain_place, why_json
from gpucore.explain.fault import explain_fault
from gpucore.sass import decode
from tests.builders.core_builder import WarpSpec
from tests.support.sass.faults import Planted, check, mutate, plant
from tests.support.sass.kernels import random_kernel, unit
from tests.support.sass.launches import Kernel, Launch
from tests.support.sass.machine import Machine, Thread, Unsupported
from tests.support.sass.programs import Program, compare_accesses, compile_unit, load, thread_of, write_source
from tests.support.sass.witness import Explain, Outcome, Run, Witness, pointers_of, specials

Thread3 = tuple[int, int, int]


def explainer(program: Program, name: str) -> Explain:
    """Return gpucore's answers for a kernel, as a program that reads its JSON has them."""
    explained = Explained(program.code, program.symbol(name).section, decode(program.words(name), program.arch))

    def explain(offset: int, calls: tuple[int, ...]) -> Mapping[str, Any] | None:
        why = explain_place(explained, offset, calls)
        return None if why is None else dict(json.loads(json.dumps(why_json(why))))

    return explain


def write_unit(folder: Path, seeds: Sequence[int]) -> tuple[list[Kernel], dict[str, int], Path]:
    """Write one unit of random kernels; returns them, the line before the first of each, and the file."""
    kernels = [random_kernel(seed, f"k{seed:05d}") for seed in seeds]
    text, starts = unit(kernels)
    source = folder / f"unit{seeds[0]}.cu"
    write_source(source, text)
    return kernels, starts, source


def prove_unit(
    nvcc: str, nvdisasm: str, folder: Path, arch: int, seeds: Sequence[int], launches: int = 3
) -> tuple[Outcome, int]:
    """Compile one unit of random kernels and compare every access of some launches; returns what it found.

    The number is how many kernels had a launch that C++ defines. A difference between the interpreter and C++ is among
    the wrong ones: nothing is proven where the two witnesses disagree.
    """
    kernels, starts, source = write_unit(folder, seeds)
    program = load(nvdisasm, compile_unit(nvcc, source, arch), arch)
    whole, proven = Outcome(), 0
    for kernel in kernels:
        name = program.find(kernel.name)
        witness = Witness(program.machine(name), explainer(program, name), program.labels(name))
        ran = 0
        for number in range(launches):
            launch = kernel.launch(random.Random(number))
            if launch is not None:
                try:
                    _prove(program, name, witness, kernel, launch, starts[kernel.name])
                    ran += 1
                except Unsupported as error:
                    witness.outcome.unexplained[f"not executed: {str(error).split()[1]}"] += 1
        proven += ran > 0
        whole.add(witness.outcome)
    return whole, proven


def _prove(program: Program, name: str, witness: Witness, kernel: Kernel, launch: Launch, start: int) -> None:
    def truth(thread: Thread) -> Callable[[int], Sequence[tuple[int, int, int]]]:
        offsets = {touch.offset for touch in thread.touched}
        lines = {at: [line - start for _, line in program.lines(name, at)] for at in offsets}
        found, differences = compare_accesses(launch, thread.touched, lines)
        witness.outcome.wrong += [f"{kernel.name}: interpreter and C++: {one.words}" for one in differences]
        return lambda number: pointers_of(launch, found.get(number, []))

    witness.run(
        Run(
            lambda: thread_of(witness.machine, launch, program.arch), launch.parameters, launch.places, specials(launch)
        ),
        truth,
    )


@dataclass
class FaultOutcome:
    """How answers about planted faults fared; `lies` are facts that are none, `others` those of damaged cores.

    The cores have the parameters, as one of the default size has; `light_` counts those without. A `weak_index` is one
    that is marked as carried by one register alone.
    """

    faults: int = 0
    explained: int = 0
    argument: int = 0
    index: int = 0
    weak_index: int = 0
    light_index: int = 0
    light_weak_index: int = 0
    load: int = 0
    line: int = 0
    value: int = 0
    disagree: int = 0
    mutations: int = 0
    mutations_with_fewer_words: int = 0
    suspects: int = 0
    lies: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    other_answers: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


def prove_faults(
    nvcc: str, nvdisasm: str, folder: Path, arch: int, seeds: Sequence[int], faults: int, mutations: int = 0
) -> FaultOutcome:
    """Plant faults in the kernels of one unit and hold what `explain_fault` says to the truth."""
    kernels, starts, source = write_unit(folder, seeds)
    program = load(nvdisasm, compile_unit(nvcc, source, arch), arch)
    machines = {kernel.name: program.machine(program.find(kernel.name)) for kernel in kernels}
    rng, outcome = random.Random(seeds[0]), FaultOutcome()
    for _ in range(40 * faults):
        if outcome.faults == faults:
            break
        kernel = rng.choice(kernels)
        machine = machines[kernel.name]
        planted = plant(program, machine.code.name, machine, kernel, starts[kernel.name], rng)
        if planted is not None:
            outcome.faults += 1
            _judge(planted, machine, outcome)
            for _ in range(mutations):
                _judge_mutation(planted, machine, outcome, rng)
    return outcome


def why_of(program: Program, name: str, data: bytes, source: SourceText | None = None) -> tuple[Why, Thread3] | None:
    """Return gpucore's answer to the first fault of a core, and the thread that it is about."""
    core = read_core(data)
    found = [one for one in with_callers(core, data, find_faults(core)) if one.first is not None]
    if not found or found[0].first is None:
        return None
    instructions = decode(program.words(name), program.arch)
    why = explain_fault(
        core, CoreSections(data), found[0], lambda code, place: Explained(code, place.section, instructions, source)
    )
    lane = why.numbers.lane if why is not None and why.numbers is not None else None
    return None if why is None else (why, lane.thread if lane is not None else found[0].first.at.thread)


def ask(
    planted: Planted, warp: WarpSpec | None = None, *, parameters: bool = True
) -> tuple[Mapping[str, Any], Thread3] | None:
    """Return what gpucore publishes of its answer to a planted fault, and the thread that it is about."""
    answer = why_of(planted.program, planted.name, planted.core(warp, parameters=parameters))
    return None if answer is None else (dict(json.loads(json.dumps(why_json(answer[0])))), answer[1])


def _judge(planted: Planted, machine: Machine, outcome: FaultOutcome) -> None:
    here = f"sm_{planted.program.arch} {planted.name}+{planted.stopped.offset:#x} ({planted.planted})"
    asked = ask(planted)
    if asked is None:
        return
    claims = check(planted, asked[0], machine, asked[1])
    outcome.explained += 1
    for name in ("argument", "index", "weak_index", "load", "line", "value"):
        setattr(outcome, name, getattr(outcome, name) + getattr(claims, name))
    outcome.disagree += claims.disagree > 0
    if claims.disagree:
        outcome.examples.append(f"{here}: {claims.disagree} registers disagree")
    outcome.lies += [f"{here}: {one}" for one in claims.lies]
    light = ask(planted, parameters=False)
    if light is not None:
        claims = check(planted, light[0], machine, light[1])
        outcome.light_index += claims.index
        outcome.light_weak_index += claims.weak_index
        outcome.lies += [f"{here}, without parameters: {one}" for one in claims.lies]


def _judge_mutation(planted: Planted, machine: Machine, outcome: FaultOutcome, rng: random.Random) -> None:
    how, warp, damaged = mutate(planted, rng)
    outcome.mutations += 1
    parameters = rng.random() < 0.5
    asked = ask(planted, warp, parameters=parameters)
    if asked is None:
        outcome.mutations_with_fewer_words += 1
        return
    claims = check(planted, asked[0], machine, asked[1], damaged, whole=False)
    outcome.suspects += claims.suspect
    outcome.mutations_with_fewer_words += not claims.value
    if claims.lies:
        outcome.others[how] += 1
        outcome.other_answers.append(
            f"{how}{', parameters' * parameters} sm_{planted.program.arch} {planted.name}+{planted.stopped.offset:#x}: "
            + claims.lies[0]
        )
