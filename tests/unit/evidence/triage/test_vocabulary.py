"""Wordings of programs around vLLM, one line or two each, written after the programs' own sources."""

import pytest

from tests.support.triage import shipped, triage_bytes

PREFIX = "(EngineCore pid=7) ERROR 11-03 23:14:03 [core.py:1] "
XID = "[  812.500000] NVRM: Xid (PCI:0000:3b:00): "
AMDGPU = "[  812.500000] amdgpu 0000:0c:00.0: amdgpu: "

NAMED = {
    "rocm-aperture": (
        ":0:rocdevice.cpp :2984: 65 us: Callback: Queue 0x7f10 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_"
        "VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29\n",
        "illegal-memory-access",
    ),
    "amdgpu-page-fault": (
        f"{AMDGPU}[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32773)\n"
        f"{AMDGPU}  in page starting at address 0x00007f2000000000 from IH client 0x1b (UTCL2)\n",
        "illegal-memory-access",
    ),
    "amdgpu-fault-status": (f"{AMDGPU}GCVM_L2_PROTECTION_FAULT_STATUS:0x00801031\n", "illegal-memory-access"),
    "channel-ended-after-xid-31": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 31\n",
        "illegal-memory-access",
    ),
    "channel-ended-after-xid-13": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 13\n",
        "misaligned-address",
    ),
    "channel-ended-after-xid-94": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 94\n",
        "driver-problem",
    ),
    "channel-ended-after-xid-149": (
        f"{XID}45, pid=71, name=python3, Ch 00000004 caused by previous Xid 149\n",
        "driver-problem",
    ),
    "stub-driver": (f"{PREFIX}RuntimeError: CUDA error: CUDA driver is a stub library\n", "driver-problem"),
    "cuda-does-not-start": (f"{PREFIX}RuntimeError: CUDA error: initialization error\n", "driver-problem"),
    "symbol-not-on-device": (f"{PREFIX}RuntimeError: CUDA error: named symbol not found\n", "no-kernel-image"),
    "ptx-refused": (f"{PREFIX}RuntimeError: CUDA error: a PTX JIT compilation failed\n", "triton-compile"),
    "no-peer-access": (
        f"{PREFIX}RuntimeError: CUDA error: peer access is not supported between these two devices\n",
        "nccl-failure",
    ),
    "capture-of-another-thread": (
        f"{PREFIX}RuntimeError: CUDA error: attempt to terminate a thread-local capture sequence from another thread\n",
        "cuda-graph-capture",
    ),
    "uncaught-type-of-any-library": (
        "terminate called after throwing an instance of 'torch::jit::JITException'\nAborted (core dumped)\n",
        "host-crash",
    ),
    "key-alone": (
        f"{PREFIX}'layers.3.mlp.up_proj.weight.zeros'\n{PREFIX}Traceback (most recent call last):\n",
        "model-load",
    ),
    "check-of-tensorrt-llm": (
        "  what():  [TensorRT-LLM][ERROR] Assertion failed: beamWidth must be 1 (/src/cpp/runtime/a.cpp:31)\n",
        "not-a-gpu-failure",
    ),
    "fault-of-a-switch": (
        "nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 12 LTSSM Fault Up\n",
        "driver-problem",
    ),
    "firmware-is-silent": (
        "[  24.302] NVRM: GPU2 _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff 6070 timeout 5200\n",
        "driver-problem",
    ),
    "nvml-of-a-container": ("Failed to initialize NVML: Unknown Error\n", "driver-problem"),
    "gpu-of-another": (
        f"{PREFIX}RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n",
        "driver-problem",
    ),
    "node-lost": ("srun: error: Node failure on n7\n", "driver-problem"),
    "torch-for-the-processor": ("AssertionError: Torch not compiled with CUDA enabled\n", "version-mismatch"),
    "code-of-another-amd-gpu": (
        "rocdevice.cpp :2984: aborting with error : HSA_STATUS_ERROR_INVALID_ISA: The instruction set is invalid.\n",
        "no-kernel-image",
    ),
    "compiler-too-old": ("nvcc fatal   : Unsupported gpu architecture 'compute_120a'\n", "triton-compile"),
    "extension-not-built": ("RuntimeError: Error building extension 'fused_rope'\n", "triton-compile"),
    "memory-of-the-host": ("OSError: [Errno 12] Cannot allocate memory\n", "out-of-memory"),
    "memory-of-a-driver-call": (f"{PREFIX}RuntimeError: CUDA driver error: out of memory\n", "out-of-memory"),
    "memory-of-a-queue": ("aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: Code: 0x1008\n", "out-of-memory"),
    "argument-of-a-driver-call": (f"{PREFIX}RuntimeError: CUDA driver error: invalid argument\n", "launch-config"),
    "store-barrier": (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: k\n",
        "nccl-failure",
    ),
    "no-address-for-gloo": (
        "[enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. "
        "Unable to find address for: eth7\n",
        "nccl-failure",
    ),
    "mpi-signal-11": (
        "mpirun noticed that process rank 3 with PID 4242 on node n1 exited on signal 11 (Segmentation fault).\n",
        "host-crash",
    ),
    "mpi-signal-6": ("mpirun noticed that process rank 3 with PID 42 exited on signal 6 (Aborted).\n", "host-crash"),
    "task-killed": ("srun: error: n1: task 3: Killed\n", "host-crash"),
    "deepspeed-signal-9": (
        "[2026-11-03 23:14:03,885] [ERROR] [launch.py:434:sigkill_handler] ['python3'] exits with return code = -9\n",
        "host-crash",
    ),
    "deepspeed-signal-11": (
        "[2026-11-03 23:14:03,885] [ERROR] [launch.py:324:sigkill_handler] ['python3'] exits with return code = -11\n",
        "host-crash",
    ),
    "deepspeed-logs": ("[2026-11-03 23:14:03,885] [ERROR] [runner.py:9:main] no hosts are left\n", "not-a-gpu-failure"),
    "subprocess-signal-11": (
        "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGSEGV: 11>.\n",
        "host-crash",
    ),
    "check-of-a-library": ("[TM][FATAL] kernels/a.cu(21): Check failed: rows == batch \n", "host-crash"),
    "container-137": ("vllm-1 exited with code 137\n", "host-crash"),
    "container-139": ("vllm-1 exited with code 139\n", "host-crash"),
    "loader-killed": ("RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. \n", "host-crash"),
    "shell-bus-error": ("./run.sh: line 3:  71 Bus error               python serve.py\n", "host-crash"),
    "node-low-on-memory": (
        "  Warning  Evicted  3m  kubelet  The node was low on resource: memory. Threshold quantity: 100Mi\n",
        "host-crash",
    ),
    "raylet-kills": (
        "(raylet) node_manager.cc:3041: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 crashed\n",
        "host-crash",
    ),
    "pod-without-a-gpu": (
        "  Warning  FailedScheduling  2m  default-scheduler  0/5 nodes are available: 5 Insufficient nvidia.com/gpu.\n",
        "not-a-gpu-failure",
    ),
    "dynamo-unsupported": ("torch._dynamo.exc.Unsupported: call_function BuiltinVariable(str)\n", "not-a-gpu-failure"),
    "key-inside-a-sentence": (f"{PREFIX}KeyError: 'Key output.weight is in no shard'\n", "model-load"),
}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_the_first_line_names_the_failure(name: str) -> None:
    text, failure = NAMED[name]
    verdict = triage_bytes(text.encode())
    assert verdict.root_cause is not None
    assert (verdict.failure.name, verdict.root_cause.line) == (failure, 1)


def test_an_error_of_tensorrt_llms_logger_is_an_error_line() -> None:
    for line in (
        "[TensorRT-LLM][ERROR] tokenizer folder is empty\n",
        "[11/03/2026-23:14:03] [TRT-LLM] [RANK 1] [E] tokenizer folder is empty\n",
        "[11/03/2026-23:14:03] [E] tokenizer folder is empty\n",
    ):
        assert triage_bytes(line.encode()).failure.name == "not-a-gpu-failure"
        assert triage_bytes(line.replace("ERROR", "INFO").replace("[E]", "[I]").encode()).failure.name == "unknown"


def test_the_header_of_a_servers_traceback_says_little() -> None:
    header = b"ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
    verdict = triage_bytes(header)
    assert verdict.root_cause is not None
    assert verdict.confidence < 0.7
    cause = triage_bytes(header + b"ValueError: top_k must be -1 or more\n")
    assert cause.root_cause is not None
    assert cause.root_cause.line == 3


def test_the_line_of_code_that_raises_does_not_say_that_the_engine_died() -> None:
    verdict = triage_bytes(b"    raise AsyncEngineDeadError(\nvllm.engine.AsyncEngineDeadError: Task finished.\n")
    assert verdict.root_cause is not None
    assert verdict.root_cause.line == 2


def test_an_event_of_a_switch_that_is_not_fatal_is_no_sign_of_health() -> None:
    event = b"nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error\n"
    assert triage_bytes(event).failure.name == "unknown"


@pytest.mark.parametrize(
    "reason", ["No module named 'vllm._C'", "vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDevi"]
)
def test_a_warning_after_which_nothing_failed_is_shown_and_called_unknown(reason: str) -> None:
    line = f'WARNING 11-03 23:14:03 [_custom_ops.py:19] Failed to import from vllm._C with ImportError("{reason}")\n'
    verdict = triage_bytes(line.encode())
    assert verdict.root_cause is not None
    assert (verdict.failure.name, verdict.root_cause.line) == ("unknown", 1)
    assert [other.failure for other in verdict.alternatives] == ["version-mismatch"]
    dead = triage_bytes((line + PREFIX + "EngineCore failed to start.\n").encode())
    assert dead.failure.name == "version-mismatch"


@pytest.mark.parametrize(
    "line",
    [
        "You are using a model of type a to instantiate a model of type b. This is not supported and can yield errors.",
        "[transformers] Unrecognized keys in `rope_parameters` for 'rope_type'='default': {'sliding_attention'}",
        "E0000 00:00:1760469722.892123 4394 cuda_dnn.cc:8579] Unable to register cuDNN factory: one has already been",
        "I tensorflow/core/util/port.cc:153] You may see slightly different numerical results due to round-off errors",
    ],
)
def test_advice_that_libraries_print_at_every_start_is_no_failure(line: str) -> None:
    assert triage_bytes(f"loading\n{line}\n".encode()).failure.name == "unknown"


def test_an_optional_part_of_vllm_that_is_left_out_is_still_no_failure() -> None:
    line = (
        b"WARNING 11-03 23:14:03 [x.py:1] Failed to import from vllm._flashmla_C with ImportError('undefined symbol')\n"
    )
    assert triage_bytes(line).failure.name == "unknown"


@pytest.mark.parametrize("number", range(1, 230))
def test_each_xid_is_the_drivers_and_met_by_one_rule(number: int) -> None:
    verdict = triage_bytes(f"{XID}{number}, pid=71, name=python3, error: it failed\n".encode())
    assert verdict.root_cause is not None
    assert verdict.root_cause.rule.startswith("xid-")
    assert verdict.failure.name != "not-a-gpu-failure"
    line = f"{XID}{number}, pid=71"
    assert [rule.id for rule, _ in shipped().met_by(line, line)] == [verdict.root_cause.rule]


@pytest.mark.parametrize(
    ("number", "failed"),
    [
        *((number, True) for number in (43, 48, 64, 74, 79, 94, 95, 119, 120, 140, 143)),
        *((number, None) for number in (63, 92, 106, 154, 222)),
    ],
)
def test_an_xid_after_which_a_program_continues_is_a_guess(number: int, failed: bool | None) -> None:
    assert triage_bytes(f"{XID}{number}, pid=71, name=python3, Ch 1\n".encode()).failed is failed


def test_an_xid_without_a_process_is_doubted_unless_something_says_that_the_run_failed() -> None:
    line = f"{XID}31, Ch 0000000b, engmask 00000120, intr 10000000\n"
    around = f"step 1\n{line}step 2\n"
    doubted = triage_bytes(around.encode())
    assert (doubted.failure.name, doubted.failed) == ("illegal-memory-access", None)
    assert "names no process" in doubted.notes[0]
    for tied in (
        line,  # the log of the kernel alone
        around.replace("31, Ch", "31, pid=71, name=python3, Ch"),
        around + "RuntimeError: CUDA error: an illegal memory access was encountered\n",
        around + PREFIX + "EngineCore failed to start.\n",
    ):
        assert triage_bytes(tied.encode()).failed is True
    assert triage_bytes(around.replace(" 31,", " 79,").encode()).failed is True  # whoever used it


def test_the_core_that_the_driver_wrote_is_what_to_read_next() -> None:
    said = "[00:40:46.806153] coredump: "
    log = f"{said}Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\n"
    for rank in (0, 1, 1):
        log += f"(Worker pid=7) {said}Writing ELF file to /tmp/my cores/core.{rank}\n"
    assert triage_bytes(log.encode()).fix == "vdbg-env core '/tmp/my cores/core.0' '/tmp/my cores/core.1'"
    full = triage_bytes(f"{said}Writing ELF file to /tmp/c\nOSError: [Errno 28] No space left on device\n".encode())
    assert full.fix is not None
    assert full.fix.startswith("vdbg-env core /tmp/c; then `df -h`")


def test_a_sanitizer_that_found_nothing_is_a_sign_of_health() -> None:
    for summary in (b"ERROR SUMMARY: 0 errors", b"RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"):
        assert triage_bytes(b"========= COMPUTE-SANITIZER\nout: passed\n========= " + summary + b"\n").failed is False


@pytest.mark.parametrize("name", ["nixl._bindings.nixlBackendError", "nixl_cu12.nixlBackendError", "pkg.LoadError"])
def test_an_exception_of_a_module_whose_name_begins_with_a_small_letter_is_the_root(name: str) -> None:
    text = f"{PREFIX}Traceback (most recent call last):\n{PREFIX}    agent.check()\n{PREFIX}{name}: peer is gone\n"
    verdict = triage_bytes(text.encode())
    assert verdict.root_cause is not None
    assert (verdict.root_cause.line, verdict.root_cause.rule) == (3, "python-exception")


@pytest.mark.parametrize(
    "setting",
    ["  raiseOnError: true", "lastError: none", "noError: 0", "num_Error: 0", "stopOnException: false", "ignoreError",
     "continue_on_Error: False", "engine.raiseOnError: true", "spark.task.maxError: 3", "errors: 0"],
)  # fmt: skip
def test_a_setting_that_is_named_after_an_error_is_no_exception(setting: str) -> None:
    steps = "".join(f"INFO 11-26 10:00:{i:02} [loader.py:3] step {i}\n" for i in range(60))
    verdict = triage_bytes(f"{steps}config:\n{setting}\n{steps}".encode())
    assert (verdict.failure.name, verdict.failed) in {("unknown", None), ("not-a-gpu-failure", False)}
    raised = "Traceback (most recent call last):\nValueError: the model has no such head\n"
    verdict = triage_bytes(f"{steps}{setting}\n{steps}{raised}".encode())
    assert verdict.root_cause is not None
    assert verdict.root_cause.text == "ValueError: the model has no such head"


def test_the_error_before_an_exit_is_why_a_program_ended_itself() -> None:
    error = "[2026-11-24 16:48:30 +0000] [4397] [ERROR] no answer from the worker\n"
    for end in (
        "SystemExit: 1\n",
        "E1124 16:47:04.88 3950 torch/x.py:1] failed (exitcode: 7) local_rank: 1 (pid: 3962) of binary: python3\n",
    ):
        verdict = triage_bytes(f"step 1\n{error}step 2\n{end}".encode())
        assert verdict.root_cause is not None
        assert (verdict.failure.name, verdict.root_cause.line) == ("not-a-gpu-failure", 2)


def test_the_rows_of_a_table_are_not_joined_to_one_line() -> None:
    rule = "+" + "-" * 98 + "+\n"
    rows = ["| model   | READY |", "| decoder | UNAVAILABLE: RuntimeError: CUDA error: initialization error |"]
    verdict = triage_bytes((rule + "".join(f"{row:<99}|\n" for row in rows) + rule).encode())
    assert verdict.root_cause is not None
    assert verdict.root_cause.line == 3
