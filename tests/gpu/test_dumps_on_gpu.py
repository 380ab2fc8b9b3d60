"""On a GPU: what each setting of the driver's core dumps does, how its pipe is fired, and what it costs to be armed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.gpu.evidence import SKIP_ALL, Evidence, end_session
from tests.gpu.programs import Programs
from tests.gpu.samples import samples
from tests.gpu.walking import first_fault, vdbg_env, wait_for
from vdbg_env.crash.dump import is_complete

pytestmark = pytest.mark.gpu

SAMPLES = {sample.name: sample for sample in samples()}
ON_EXCEPTION = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1"}
FLAGS = {
    "none": "",
    "skip nonrelocated images only": "skip_nonrelocated_elf_images",
    "global memory and nonrelocated images": "skip_nonrelocated_elf_images,skip_global_memory",
    "all five skips": SKIP_ALL,
    "all but nonrelocated images": SKIP_ALL.partition(",")[2],
    "gzip": f"{SKIP_ALL},gzip_compress",
    "faulted contexts only": f"{SKIP_ALL},faulted_contexts_only",
    "log only": f"{SKIP_ALL},log_only",
    "a flag nobody knows": f"{SKIP_ALL},no_such_flag",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_what_each_generation_flag_does(flags: str, programs: Programs, evidence: Evidence) -> None:
    sample = SAMPLES["inlined-templates"]
    name = "flags-" + re.sub(r"\W+", "-", flags)
    environment = {**ON_EXCEPTION, "CUDA_COREDUMP_GENERATION_FLAGS": FLAGS[flags]}
    ran = evidence.run(name, programs.command(sample), environment, limit_s=120)
    size = f"{ran.core.stat().st_size} bytes in {ran.core.name}" if ran.core else "no file"
    refused = re.findall(r"unknown coredump flag '(\w+)'", ran.output)
    evidence.measure("refused_flags", flags, refused)
    evidence.tell(f"flags: {flags}", f"{size} in {ran.seconds:.1f} s, exit status {ran.status}"
                  + (f", refused: {', '.join(refused)}" if refused else ""))  # fmt: skip
    if flags == "all five skips":
        assert ran.core and ran.status == -6, "the driver writes a core, then ends the program by abort()"
    if ran.core:
        fault = first_fault(vdbg_env("core", "--json", str(ran.core)).stdout)
        assert [frame["line"] for frame in fault["chain"][:1]] == [sample.planted]


@pytest.mark.parametrize("size", [1, 1 << 16, 1 << 20])
def test_how_much_fires_the_pipe(size: int, programs: Programs, evidence: Evidence, tmp_path: Path) -> None:
    command, pipe = programs.command(SAMPLES["spin-grid"]), tmp_path / "pipe"
    core = evidence.folder / "cores" / f"pipe-{size}.nvcudmp"
    core.parent.mkdir(exist_ok=True)
    transcript = tmp_path / "output"
    settings = {"CUDA_COREDUMP_PIPE": str(pipe), "CUDA_COREDUMP_FILE": str(core)}
    process = hanging(command, settings, transcript)
    taken, began = 0, time.monotonic()
    try:
        opened = wait_for(pipe.exists, 30)
        wait_for(lambda: "waiting" in transcript.read_text(errors="replace"), 20)
        time.sleep(1)  # until the kernel is on the GPU
        began = time.monotonic()
        if opened:
            taken = write(pipe, size)
        fired = wait_for(lambda: core.exists() and is_complete(core), 30)
        waited, alive = time.monotonic() - began, process.poll() is None
    finally:
        end_session(process)
    evidence.keep(f"text/pipe-{size}.txt", transcript.read_text(errors="replace"))
    evidence.measure("pipe", str(size), {"taken": taken, "fired": fired, "wait_s": waited, "alive": alive})
    evidence.tell(f"pipe, {size} bytes", f"{taken} taken, fired: {fired} after {waited:.1f} s, still alive: {alive}")
    if size == 1 << 20:
        assert fired, "a mebibyte must fire the pipe: it is what vdbg-env dump writes"


def test_what_pipe_and_file_are_called_when_no_name_is_given(
    programs: Programs, evidence: Evidence, tmp_path: Path
) -> None:
    process = hanging(programs.command(SAMPLES["spin-grid"]), {}, tmp_path / "output", folder=tmp_path)
    try:
        wait_for(lambda: any(path.is_fifo() for path in tmp_path.iterdir()), 30)
        pipes = [path for path in tmp_path.iterdir() if path.is_fifo()]
        time.sleep(1)
        dumped = vdbg_env("dump", str(process.pid), "--json")
    finally:
        end_session(process)
    evidence.keep("text/dump-command.json.txt", dumped.stdout + dumped.stderr)
    files = [path for path in tmp_path.iterdir() if path.is_file() and path.name != "output"]
    for kind, found in (("pipe", pipes), ("file", files)):
        evidence.measure("default_names", kind, found[0].name.replace(str(process.pid), "PID") if found else None)
    evidence.tell("default names", f"pipe {[p.name for p in pipes]}, file {[p.name for p in files]}")
    assert pipes and files, dumped.stdout + dumped.stderr


def test_what_it_costs_to_have_dumps_armed(programs: Programs, evidence: Evidence) -> None:
    program = programs.command(SAMPLES["clean"])
    bare = min(evidence.run("cost-bare", program, {}).seconds for _ in range(5))
    armed = min(evidence.run("cost-armed", program, ON_EXCEPTION).seconds for _ in range(5))
    evidence.tell("dumps armed", f"a clean program takes {armed:.2f} s armed, {bare:.2f} s bare (best of 5)")


def hanging(
    command: list[str], settings: dict[str, str], transcript: Path, *, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that will hang, with its pipe armed, and its output in a file."""
    environment = {
        **os.environ,
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": SKIP_ALL,
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        **settings,
    }
    with transcript.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder
        )


def write(pipe: Path, size: int) -> int:
    """Write what goes in without waiting and return how much that was; 0 where nobody reads."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        return os.write(descriptor, b"\0" * size)
    finally:
        os.close(descriptor)
