#!/usr/bin/env python3
"""Behaves as a vLLM that crashes: its processes, its words, its flags and the driver's variables, without a GPU.

What is wrong is told in FAKE_VLLM, one word: `ima` (always an illegal access), the layer it needs (`full-graphs`,
`graphs`, `inductor`, `compile`, `compile-and-graphs`, `all-reduce`, `attention`), `race` (gone with blocking launches),
`no-core` (the driver writes none), `oom`, `other` (a misaligned address), `hang`, `well`, or `host` (no CUDA error).
With two workers: `one-rank` (one dies, the other spins in a collective for ever, and the engine gives up), `stuck-rank`
(the same, and the engine waits for both), `slow-core` (both die, and the second's core is still being written when all
others are gone), `two-hang` (both spin). `vllm serve` listens at --port; its engine does all that at the first request.

    FAKE_VLLM_CORE   the GPU core dump that "the driver" writes; a test builds it
    FAKE_VLLM_NOISE  bytes of ordinary log before the fault, or `binary` for bytes that are no text
    FAKE_VLLM_TITLE  rename each process as vLLM does, with setproctitle: `dropped` after a launcher took SPT_NOENV out
    FAKE_VLLM_NASTY  leave a process that ignores every signal, in a session of its own, without a parent

The texts are those of vLLM 0.33 and torch 2.14. The front end starts an EngineCore that does the crashing. With
CUDA_DEVICE_WAITS_ON_EXCEPTION it is held at the exception until SIGUSR1, which stands for a debugger that detaches.
"""

import http.server
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

IMA = "an illegal memory access was encountered"
FRAMES = """  File "/opt/vllm/v1/engine/core.py", line 1021, in run_engine_core
    engine_core.run_busy_loop()
  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 3417, in execute_model
    sampler_output = self._sample(logits, spec_decode_metadata)
"""
BLOCKING_FRAME = """  File "/opt/vllm/model_executor/layers/activation.py", line 88, in forward_cuda
    self.op(out, x)
"""


class Settings:
    """What flags and variables ask for, as vLLM would understand them."""

    def __init__(self, argv: list[str]) -> None:
        overlay = json.loads(os.environ.get("VDBG_VLLM_ENGINE_ARGS", "{}"))
        if overlay:
            print(f"vdbg-env: engine arguments applied: {json.dumps(overlay)}", file=sys.stderr, flush=True)
        compilation = dict(overlay.get("compilation_config", {}))
        for word in argv:
            if word.startswith("-cc."):
                name, _, value = word[4:].partition("=")
                compilation[name] = value
        self.eager = "--enforce-eager" in argv or bool(overlay.get("enforce_eager"))
        self.compile = not self.eager and str(compilation.get("mode", "3")) != "0"
        self.inductor = self.compile and compilation.get("backend") != "eager"
        self.graph_mode = "NONE" if self.eager else str(compilation.get("cudagraph_mode", "FULL_AND_PIECEWISE"))
        self.graphs = self.graph_mode != "NONE"
        self.full_graphs = self.graphs and self.graph_mode != "PIECEWISE"
        self.all_reduce = not ("--disable-custom-all-reduce" in argv or overlay.get("disable_custom_all_reduce"))
        given = any(w.startswith(("--attention-backend", "-ac.backend")) for w in argv)
        self.attention = not (given or "attention" in str(overlay))
        self.blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        self.dumps = os.environ.get("CUDA_ENABLE_COREDUMP_ON_EXCEPTION") == "1"
        self.held = os.environ.get("CUDA_DEVICE_WAITS_ON_EXCEPTION") == "1"
        self.triggered = os.environ.get("CUDA_ENABLE_USER_TRIGGERED_COREDUMP") == "1"

    def fails(self, fault: str) -> bool:
        """Whether this fault shows under these settings."""
        needs = {
            "full-graphs": self.full_graphs,
            "graphs": self.graphs,
            "inductor": self.inductor,
            "compile": self.compile,
            "compile-and-graphs": self.compile or self.graphs,
            "all-reduce": self.all_reduce,
            "attention": self.attention,
            "race": not self.blocking,
            "well": False,
        }
        return needs.get(fault, True)


def main(argv: list[str]) -> int:
    """Be the front end: start the engine, hear of its death, die too."""
    noise(os.environ.get("FAKE_VLLM_NOISE", ""))
    if os.environ.get("FAKE_VLLM_NASTY"):
        outlive()
    if argv[:1] == ["serve"]:
        code = serve(argv)
    else:
        env = dict(os.environ)
        if env.get("FAKE_VLLM_TITLE") == "dropped":
            env.pop("SPT_NOENV", None)
        code = subprocess.run([sys.executable, __file__, "EngineCore", *argv], env=env).returncode
    if code == 0:
        print("Processed 16 requests, throughput 41.2 requests/s", flush=True)
        return 0
    say_front("EngineCore encountered an issue. See stack trace (above) for the root cause.")
    print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", file=sys.stderr, flush=True)
    return 1


def serve(argv: list[str]) -> int:
    """Be the server: say that all is well, hand a request to the engine, and end when that is dead."""
    died: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code = subprocess.run([sys.executable, __file__, "EngineCore", *argv]).returncode
            self.answer(500 if code else 200)
            if code:
                died.append(code)
                threading.Thread(target=server.shutdown).start()

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(argv[argv.index("--port") + 1])), Handler)
    server.serve_forever()
    server.server_close()
    return died[0]


def engine_core(argv: list[str]) -> int:
    """Be the engine: log as it does, then do what FAKE_VLLM says."""
    fault, settings = os.environ.get("FAKE_VLLM", "ima"), Settings(argv)
    rename("VLLM::EngineCore")
    say("Initializing a V1 LLM engine (v0.33.0) with config: model='fake', dtype=torch.bfloat16")
    trace()
    nccl()
    if not settings.fails(fault):
        say("Avg generation throughput: 812.4 tokens/s, Running: 0 reqs")
        return 0
    match fault:
        case "hang":
            return hang(settings)
        case "one-rank" | "stuck-rank" | "slow-core" | "two-hang":
            return two_workers(argv, gives_up=fault not in {"stuck-rank", "two-hang"})
        case "oom":
            return traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", settings)
        case "host":
            return traceback("ValueError: not enough values to unpack", settings)
        case "other":
            return traceback("torch.AcceleratorError: CUDA error: misaligned address", settings)
    return illegal_access(settings, dumps=settings.dumps and fault != "no-core")


def illegal_access(settings: Settings, *, dumps: bool, slow_s: float = 0.2) -> int:
    """Fail as a kernel does: held for a debugger, with a core, or with a Python traceback alone."""
    if settings.held:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.sigwait([signal.SIGUSR1])
    if dumps:
        write_core(os.environ["FAKE_VLLM_CORE"], exception=True, slow_s=slow_s)
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        print(f"CUDA error: {IMA}", file=sys.stderr, flush=True)
        os.abort()
    return traceback(f"torch.AcceleratorError: CUDA error: {IMA}", settings)


def two_workers(argv: list[str], *, gives_up: bool) -> int:
    """Be an executor of two ranks: the first dies of the access, the second waits for it in a collective for ever."""
    workers = [subprocess.Popen([sys.executable, __file__, "Worker", str(rank), *argv]) for rank in range(2)]
    code = workers[0].wait()
    say_error(f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor.")
    if not gives_up:
        workers[1].wait()
    return 1


def worker(rank: int, argv: list[str]) -> int:
    """Be one rank."""
    settings = Settings(argv)
    rename(f"VLLM::Worker_TP{rank}")
    fault = os.environ["FAKE_VLLM"]
    if fault == "slow-core" or (rank == 0 and fault != "two-hang"):
        return illegal_access(settings, dumps=settings.dumps, slow_s=3.0 if rank else 0.2)
    return hang(settings)


def rename(title: str) -> None:
    """Take a name as `vllm.utils.system_utils.set_process_title` does, and stay long enough to be looked at."""
    if os.environ.get("FAKE_VLLM_TITLE"):
        import setproctitle

        setproctitle.setproctitle(title)
        time.sleep(0.6)


def trace() -> None:
    """Write the calls of a thread where VLLM_TRACE_FUNCTION asks for them, as `vllm/logger.py` does."""
    if os.environ.get("VLLM_TRACE_FUNCTION") != "1":
        return
    folder = os.path.join(os.environ["TMPDIR"], "vllm", "vllm-instance-1")  # noqa: PTH118
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    name = f"VLLM_TRACE_FUNCTION_for_process_{os.getpid()}_thread_1_at_2026-11-21_07:35:12.log"
    with open(os.path.join(folder, name), "w") as file:  # noqa: PTH118, PTH123
        at, core = "2026-11-21 07:35:12.000001", "/opt/vllm/v1/engine/core.py"
        print(f"{at} Call to step in {core}:301 from run_busy_loop in {core}:1021", file=file)
        print(
            f"{at} Call to all_reduce in /opt/vllm/distributed/parallel_state.py:512 from step in {core}:309", file=file
        )


def nccl() -> None:
    """Write what NCCL says of two ranks that do not meet where NCCL_DEBUG_FILE asks for it."""
    if os.environ.get("NCCL_DEBUG") != "INFO":
        return
    with open(filled_in(os.environ["NCCL_DEBUG_FILE"]), "w") as file:  # noqa: PTH123
        for rank in range(2):
            head = f"node7:{4711 + rank}:{4800 + rank} [{rank}] NCCL"
            print(f"{head} INFO comm 0x55 rank {rank} nranks 2 cudaDev {rank} - Init COMPLETE", file=file)
            print(
                f"{head} INFO Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via SHM/direct/direct", file=file
            )
            print(f"{head} INFO AllReduce: opCount {7 + rank:x} sendbuff 0x1 recvbuff 0x2 count 9 comm 0x55", file=file)
        print("node7:4711:4800 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'", file=file)


def traceback(error: str, settings: Settings) -> int:
    """Print a Python traceback as vLLM logs it; with blocking launches it names the launch, and says no more."""
    say_error("EngineCore encountered a fatal error.")
    frames = FRAMES + (BLOCKING_FRAME if settings.blocking else "")
    for line in ["Traceback (most recent call last):", *frames.splitlines(), error]:
        say_error(line)
    if "illegal" in error and not settings.blocking:
        say_error("Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/ for details.")
        say_error("CUDA kernel errors might be asynchronously reported at some other API call.")
        say_error("For debugging consider passing CUDA_LAUNCH_BLOCKING=1")
    return 1


def hang(settings: Settings) -> int:
    """Spin as a kernel that waits for ever would; the armed driver answers the pipe meanwhile."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if settings.triggered:
        pipe = filled_in(os.environ["CUDA_COREDUMP_PIPE"])
        os.mkfifo(pipe)
        descriptor = os.open(pipe, os.O_RDWR)
        threading.Thread(target=answer, args=(descriptor,), daemon=True).start()
    while True:
        time.sleep(60)


def answer(descriptor: int) -> None:
    """Write the dump once the pipe is fired."""
    os.read(descriptor, 1 << 20)
    write_core(os.environ["FAKE_VLLM_CORE"], exception=False)


def write_core(source: str, *, exception: bool, slow_s: float = 0.2) -> None:
    """Write a GPU core where the driver would, in about `slow_s` seconds, with the lines it prints while it does."""
    target = filled_in(os.environ["CUDA_COREDUMP_FILE"])
    with open(source, "rb") as file:  # noqa: PTH123
        data = file.read()
    if exception:
        driver("Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)")
        for line in ("  - Device: 0", "  - SM: 5", "  - Warp: 1"):
            driver(line)
    driver("Device 1/1 has finished state collection")
    driver(f"Writing ELF file to {target}")
    with open(target, "wb") as file:  # noqa: PTH123
        pieces = max(4, round(slow_s / 0.2))
        for at in range(0, len(data), max(1, len(data) // pieces)):
            file.write(data[at : at + max(1, len(data) // pieces)])
            file.flush()
            time.sleep(slow_s / pieces)
    driver("Writing done")
    driver("All done (took 00s)")


def filled_in(template: str) -> str:
    now = str(int(time.time()))
    return template.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())).replace("%t", now)


def noise(wanted: str) -> None:
    """Print much, or bytes that are no text."""
    if wanted == "binary":
        os.write(1, random.Random(5).randbytes(300_000))
    elif wanted:
        line = b"(EngineCore pid=4711) INFO 11-21 07:35:12 [loggers.py:248] Avg prompt throughput: 91.2 tokens/s\n"
        block = memoryview(line * 10_000)
        left = int(wanted)
        while left > 0:
            left -= os.write(1, block[:left])


def outlive() -> None:
    """Leave a process behind that nothing polite can end."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(60)
        os._exit(0)


def driver(text: str) -> None:
    print(f"[06:43:15.209195] coredump: {text}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    print(f"(EngineCore pid={os.getpid()}) INFO 11-21 07:35:12 [core.py:84] {text}", file=sys.stderr, flush=True)


def say_error(text: str) -> None:
    print(f"(EngineCore pid={os.getpid()}) ERROR 11-21 07:35:19 [core.py:710] {text}", file=sys.stderr, flush=True)


def say_front(text: str) -> None:
    print(f"(APIServer pid={os.getpid()}) ERROR 11-21 07:35:20 [async_llm.py:480] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["EngineCore"]:
        raise SystemExit(engine_core(sys.argv[2:]))
    if sys.argv[1:2] == ["Worker"]:
        raise SystemExit(worker(int(sys.argv[2]), sys.argv[3:]))
    raise SystemExit(main(sys.argv[1:]))
