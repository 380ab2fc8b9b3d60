"""Random kernels through all witnesses: formula = interpreter = C++, and the base argument."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucore.explain import Program as Explained
from gpucore.explain import explain_place, why_json
from gpucore.sass.nvdisasm import read_listings
from tests.support.sass.kernels import random_kernel, unit
from tests.support.sass.launches import Kernel, Launch
from tests.support.sass.machine import Thread
from tests.support.sass.programs import Program, compare_accesses, compile_unit, load, thread_of
from tests.support.sass.witness import Explain, Outcome, Run, Witness, pointers_of, specials


def explainer(program: Program, name: str) -> Explain:
    """Return gpucore's answers for a kernel, as a program that reads its JSON has them."""
    (listing,) = read_listings(program.listing(name))
    explained = Explained(program.code, program.symbol(name).section, listing.instructions)

    def explain(offset: int, calls: tuple[int, ...]) -> Mapping[str, Any] | None:
        why = explain_place(explained, offset, calls)
        return None if why is None else dict(json.loads(json.dumps(why_json(why))))

    return explain


def prove_unit(
    nvcc: str, nvdisasm: str, folder: Path, arch: int, seeds: Sequence[int], launches: int = 6
) -> tuple[Outcome, int]:
    """Compile one unit of random kernels and compare every access of some launches; returns what it found.

    The number is how many kernels had a launch that C++ defines. A difference between the interpreter and C++ is among
    the wrong ones: nothing is proven where the two witnesses disagree.
    """
    kernels = [random_kernel(seed, f"k{seed:05d}") for seed in seeds]
    text, starts = unit(kernels)
    source = folder / f"unit{seeds[0]}.cu"
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    program = load(nvdisasm, compile_unit(nvcc, source, arch), arch)
    whole, proven = Outcome(), 0
    for kernel in kernels:
        name = program.find(kernel.name)
        witness = Witness(program.machine(name), explainer(program, name), program.labels(name))
        ran = 0
        for number in range(launches):
            launch = kernel.launch(random.Random(number))
            if launch is not None:
                ran += 1
                _prove(program, name, witness, kernel, launch, starts[kernel.name])
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
