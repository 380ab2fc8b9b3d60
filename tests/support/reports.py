"""Reports that tests show to the writers: a full one, a hang, a bare one, and one whose every text is hostile."""

from dataclasses import replace

from gpucore.dwarf import SourceFrame
from tests.support.memory_maps import KEYS, LAYER_BYTES, encoded
from vdbg_env.crash.memory_map import owner_json, owner_of, read_memory_map
from vdbg_env.evidence.finding import (
    Artifact,
    Ended,
    EndedBy,
    Finding,
    HowKnown,
    Level,
    Match,
    NextStep,
    WorkerEnvironment,
)
from vdbg_env.report.model import (
    Attempt,
    Provenance,
    Report,
    SourceExcerpt,
    StepReport,
    StepStatus,
    WarpGroup,
    WarpHistogram,
)
from vdbg_env.runbook.model import ArgvOverlay, Status
from vdbg_env.runbook.state import Verdict

WORKLOAD = ("vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192")
LEAF = SourceFrame(function="store<float>(float*, long, float)", file="/src/csrc/rope.cu", line=5)
ROW = SourceFrame(function="store_row<float, 4>(float*, long, float)", file="/src/csrc/rope.cu", line=9)
TOP = SourceFrame(function="rope<float, 4>(float*, int, long)", file="/src/csrc/rope.cu", line=13)
CHAIN = (LEAF, ROW, TOP)
KERNEL = "rope<float, 4>(float*, int, long)"
IMA = Match(
    matcher="ima",
    stream="stderr",
    line=412,
    offset=48_211,
    text="(EngineCore pid=4711) torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
)
SKIP = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_constbank_memory"


def _attempts(step: str, *reproduced: bool) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            step=step,
            attempt=number,
            ended=Ended(by=EndedBy.SIGNAL, signal=6, core=True) if shown else Ended(by=EndedBy.EXIT, code=0),
            duration_s=94.0 + number,
            reproduced=shown,
            output_bytes=48_930 + number,
            directory=f"steps/{step}/{number}/localhost-0",
        )
        for number, shown in enumerate(reproduced, 1)
    )


def _trial(
    step: str,
    name: str,
    *,
    shown: tuple[bool, ...],
    at: float,
    next_: str,
    message: str,
    env: dict[str, str | None] | None = None,
    append: tuple[str, ...] = (),
    artifacts: tuple[Artifact, ...] = (),
) -> StepReport:
    attempts = _attempts(step, *shown)
    return StepReport(
        id=step,
        name=name,
        status=StepStatus.FINISHED,
        outcome=Status.REPRODUCED if any(shown) else Status.NOT_REPRODUCED,
        message=message,
        next=next_,
        ended=attempts[-1].ended,
        argv=(*WORKLOAD, *append),
        argv_change=ArgvOverlay(append=append),
        env=env or {},
        env_change=env or {},
        started_s=at,
        duration_s=sum(a.duration_s or 0 for a in attempts),
        attempts=attempts,
        evidence=(IMA,) if any(shown) else (),
        artifacts=artifacts,
    )


STEPS = (
    StepReport(
        id="preflight", name="Is this machine able?", status=StepStatus.FINISHED, outcome=Status.PASS, next="baseline",
        message="no Xid in the kernel log, 412 GiB free, driver 580.82", builtin="preflight", started_s=0.0,
        duration_s=1.2,
    ),
    _trial("baseline", "Does it reproduce unchanged?", shown=(False, True), at=1.2, next_="blocking",
           message="illegal memory access in 1 of 2 attempts"),
    _trial("blocking", "Launch kernels one by one", env={"CUDA_LAUNCH_BLOCKING": "1"}, shown=(True,), at=192.2,
           next_="cudagraph-none", message="the fault stays, so it is no race between launches"),
    _trial("cudagraph-none", "No CUDA graphs", append=("-cc.cudagraph_mode=NONE",), shown=(False,), at=287.2,
           next_="coredump", message="gone without CUDA graphs"),
    _trial("coredump", "GPU core dump on the exception", shown=(True,), at=382.2, next_="read-core",
           env={"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_COREDUMP_GENERATION_FLAGS": SKIP,
                "PYTHONHASHSEED": None},
           message="one core of 3.1 MiB", artifacts=(
               Artifact(name="cores", path="steps/coredump/1/localhost-0/artifacts/cuda.n1.4711.nvcudmp",
                        size=3_250_586, sha256="9f" * 32),)),
    StepReport(
        id="read-core", name="Read the core", status=StepStatus.FINISHED, outcome=Status.PASS, next=None,
        message="fault in rope<float, 4> at rope.cu:5", builtin="analyse-core", started_s=477.2, duration_s=0.4,
        results={"kernel": KERNEL, "pc": "0x7fffd9001140"},
    ),
    StepReport(id="sanitizer", name="compute-sanitizer memcheck", status=StepStatus.NOT_REACHED),
)  # fmt: skip

FAULT = Finding(
    rule="gpu-core/warp-illegal-address",
    level=Level.ERROR,
    message="Warp Illegal Address at rope.cu:5 in store<float>, inlined into rope<float, 4>; 1 warp of block (0,0,0)",
    how_known=HowKnown.GPU_CORE,
    confidence=0.98,
    location=LEAF,
    chain=CHAIN,
    kernel=KERNEL,
    step="read-core",
    artifact="steps/coredump/1/localhost-0/artifacts/cuda.n1.4711.nvcudmp",
    next_step=NextStep("", "vdbg-env core steps/coredump/1/localhost-0/artifacts/cuda.n1.4711.nvcudmp"),
)
GRAPHS = Finding(
    rule="step-change/cuda-graphs",
    level=Level.WARNING,
    message="The fault goes away without CUDA graphs: look for a buffer that a captured graph still points at",
    how_known=HowKnown.STEP_CHANGE,
    confidence=0.6,
    step="cudagraph-none",
)

FULL = Report(
    run="20261121T031502-ima-7f3a",
    runbook="illegal-memory-access",
    title="CUDA illegal memory access",
    verdict=Verdict.REPRODUCED,
    why="the failure was reproduced in step 'baseline'",
    workload=WORKLOAD,
    started="2026-11-21T03:15:02Z",
    duration_s=477.6,
    steps=STEPS,
    findings=(FAULT, GRAPHS),
    environment={"GPU": "NVIDIA H200", "driver": "580.82.07", "CUDA": "13.0", "vLLM": "0.33.0", "host": "n1"},
    next_steps=(
        NextStep(text="Check the bound of `row` in rope at rope.cu:13, where the stray index enters"),
        NextStep(text="Prove a fix with the sanitizer", command="vdbg-env runbook sanitizer -- vllm serve …"),
    ),
    excerpts=(
        SourceExcerpt(
            file="/src/csrc/rope.cu",
            first=3,
            marked=5,
            lines=(
                "template <class T>",
                "__device__ __forceinline__ void store(T* p, long i, T v) {",
                "  p[i] = v;",
                "}",
                "",
            ),
        ),
        SourceExcerpt(
            file="/src/csrc/rope.cu",
            first=12,
            marked=13,
            lines=(
                "  long row = blockIdx.x * (long)blockDim.x + threadIdx.x;",
                "  if (row < rows) store_row<T, N>(q, row, T(row));",
                "}",
            ),
        ),
    ),
    tool_version="0.1.0",
)  # fmt: skip

HANG = Report(
    run="20261121T041502-hang-11ab",
    runbook="hang",
    title="Hang",
    verdict=Verdict.HANG,
    provenance=Provenance.SYNTHETIC,
    origin="a core made by the test's core builder, no GPU",
    workload=("./hang",),
    started="2026-11-21T04:15:02Z",
    duration_s=71.0,
    steps=(
        StepReport(
            id="baseline", name="Wait for silence", status=StepStatus.FINISHED, outcome=Status.HANG,
            message="no output for 60 s, GPU pinned at 100 %", ended=Ended(by=EndedBy.WATCH, signal=9),
            argv=("./hang",), started_s=0.0, duration_s=70.0,
            attempts=(Attempt(step="baseline", attempt=1, ended=Ended(by=EndedBy.WATCH, signal=9), duration_s=70.0,
                              reproduced=True,
                              workers=(WorkerEnvironment(pid=7, name="hang", seen={"CUDA_COREDUMP_PIPE": "/x"}),)),),
        ),
    ),
    findings=(
        Finding(rule="gpu-core/spin", level=Level.ERROR, how_known=HowKnown.GPU_CORE, confidence=0.9,
                message="4 warps spin in wait_flag while 3 wait for them at a barrier", kernel="exchange(int*, float*)",
                location=SourceFrame(function="wait_flag(int volatile*)", file="hang.cu", line=5), step="baseline"),
    ),
    histograms=(
        WarpHistogram(
            core="steps/baseline/1/localhost-0/artifacts/hang.nvcudmp",
            step="baseline",
            groups=(
                WarpGroup(pc=0x7FFFD9001140, count=5, kernel="exchange(int*, float*)", offset=0x140,
                          chain=(SourceFrame(function="wait_flag(int volatile*)", file="hang.cu", line=5),
                                 SourceFrame(function="exchange(int*, float*)", file="hang.cu", line=9))),
                WarpGroup(pc=0x7FFFD9001200, count=3, kernel="exchange(int*, float*)", offset=0x200, state="barrier",
                          chain=(SourceFrame(function="exchange(int*, float*)", file="hang.cu", line=11),)),
            ),
        ),
    ),
)  # fmt: skip

OWNER = owner_json(owner_of(read_memory_map(encoded()), KEYS + LAYER_BYTES + 4096, base=KEYS))
PICTURES = replace(
    FULL,
    findings=(
        replace(
            FAULT,
            address={"width": 4, "owner": {**OWNER, "others": []}},
            around={"grid": [4096, 6, 2], "first": [100, 2, 1], "from": [84, 0], "rows": [
                ".................................", "...............oooooo............",
                "...............oXXooo............", "...............oooooo............",
                ".................................", ".................................",
            ]},
        ),
    ),
    steps=(
        *STEPS,
        StepReport(
            id="ranks", status=StepStatus.FINISHED, outcome=Status.REPRODUCED, started_s=477.6, duration_s=40.0,
            attempts=tuple(
                Attempt(
                    step="ranks", attempt=1, rank=rank, host=f"n{rank // 8}", duration_s=seconds, part=part,
                    ended=Ended(by=EndedBy.EXIT, code=1),
                )
                for rank, (seconds, part) in enumerate(
                    [(31.5, "victim")] * 5 + [(30.0, "first failure")] + [(32.0, "victim")] * 12 + [(40.0, "well")] * 2
                )
            ),
        ),
    ),
)  # fmt: skip

BARE = Report(run="r1", runbook="illegal-memory-access", verdict=Verdict.INCONCLUSIVE, why="no step said anything")
