"""Looks at all that a GPU core dump needs before a kernel faults: its folder, name, flags and pipe, and the host.

By hand:  python3 dump_setup.py FOLDER      (the variables are those of the shell it is typed in)
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

from read_speed import file_system

GIB = 1 << 30
SMALLEST = 1 << 30  # bytes that a dump without memory may take, with room to spare
LONGEST = 1023  # characters the driver takes of a name (cuda-gdb manual, GPU core dump support)
SKIPS = (
    "skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory",
    "skip_constbank_memory",
)  # fmt: skip
FLAGS_SINCE = 555  # the driver branch of CUDA 12.5, the first to read CUDA_COREDUMP_GENERATION_FLAGS


def main() -> int:
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else ".").absolute()
    problems = [*of_folder(folder), *of_names(os.environ), *of_flags(os.environ), *of_pipe(), *of_host(os.environ)]
    for problem in problems:
        print(f"dump-setup: problem: {problem}", flush=True)
    if not problems:
        print("dump-setup: nothing stands in the way of a dump", flush=True)
    return 1 if problems else 0


def of_folder(folder: pathlib.Path) -> Iterator[str]:
    """Check that a dump can be written into a folder and fits; the driver makes no folders."""
    if not folder.is_dir():
        yield f"folder {folder} is not there, and the driver makes none"
        return
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="vdbg-dump-setup."):
            pass
    except OSError as error:
        yield f"folder {folder} cannot be written: {error.strerror}"
        return
    free, (kind, _) = shutil.disk_usage(folder).free, file_system(folder.resolve())
    print(f"dump-setup: folder {folder} can be written, {free / GIB:.1f} GiB free on {kind}", flush=True)
    if free < SMALLEST:
        yield f"folder {folder} has {free / GIB:.1f} GiB free, and a dump without memory takes up to 1 GiB"
    memory = gpu_memory()
    if memory and free < memory:
        print(f"dump-setup: a full dump of {memory / GIB:.0f} GiB of GPU memory does not fit there", flush=True)


def of_names(environment: Mapping[str, str]) -> Iterator[str]:
    """Check the templates of the dump's and the pipe's name."""
    if environment.get("CUDA_ENABLE_COREDUMP_ON_EXCEPTION") != "1":
        print("dump-setup: CUDA_ENABLE_COREDUMP_ON_EXCEPTION is not set here", flush=True)
    for name in ("CUDA_COREDUMP_FILE", "CUDA_COREDUMP_PIPE"):
        template = environment.get(name, "")
        if not template or template.startswith("|"):
            continue
        above = pathlib.Path(template).parent
        if "%p" not in template:
            yield f"{name} has no %p: processes overwrite each other's dump"
        if "%" in str(above):
            yield f"{name} has a % in its folder, which the driver does not make"
        elif not template.startswith("/"):
            yield f"{name} is relative: each process takes it from its own working directory"
        elif not above.is_dir():
            yield f"{name} names folder {above}, which is not there"
        if len(template) > LONGEST:
            yield f"{name} is {len(template)} characters long, and the driver takes {LONGEST}"


def of_flags(environment: Mapping[str, str]) -> Iterator[str]:
    """Say which parts a dump would hold, and what this driver does not know."""
    given = environment.get("CUDA_COREDUMP_GENERATION_FLAGS", "")
    flags = [flag.strip() for flag in given.split(",") if flag.strip()]
    lacking = [flag for flag in SKIPS if flag not in flags]
    if lacking:
        print(f"dump-setup: flags not set: {','.join(lacking)}", flush=True)
    if "skip_abort" in flags:
        yield "skip_abort is set: the driver may ignore the error and write nothing"
    driver = driver_version()
    branch = re.match(r"\d+", driver or "")
    if branch and int(branch[0]) < FLAGS_SINCE:
        yield f"driver {driver} is older than {FLAGS_SINCE}: it reads no CUDA_COREDUMP_GENERATION_FLAGS and dumps all"


def of_pipe() -> Iterator[str]:
    """Make a pipe where the driver would, and send a byte through it."""
    folder = pathlib.Path(os.environ.get("CUDA_COREDUMP_PIPE", "/tmp/x")).parent
    if not folder.is_dir():
        return  # reported with the names
    path = folder / f"vdbg-dump-setup.{os.getpid()}.pipe"
    try:
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, b"\0")
        works = os.read(reader, 1) == b"\0"
        os.close(reader)
        os.close(writer)
    except OSError as error:
        yield f"no pipe can be used in {folder}: {error.strerror}"
        return
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    if not works:
        yield f"a pipe in {folder} loses what is written to it"


def of_host(environment: Mapping[str, str]) -> Iterator[str]:
    """Name what keeps a driver from dumping at all, as far as a process can see it."""
    version = pathlib.Path("/proc/version").read_text().lower()
    if "microsoft" in version:
        yield "this is WSL: the driver there writes no dump on request"
    if environment.get("CUDA_MPS_PIPE_DIRECTORY") or pathlib.Path("/tmp/nvidia-mps").is_dir():
        yield "MPS may be on: one client's exception faults all clients of the server, and each of them dumps"
    if environment.get("CUDA_DEVICE_WAITS_ON_EXCEPTION") == "1":
        yield "CUDA_DEVICE_WAITS_ON_EXCEPTION=1 is set: the GPU waits for a debugger at the exception"


def gpu_memory() -> int | None:
    """Return the bytes of the largest GPU here, None without one."""
    sizes = [int(line) for line in nvidia_smi("memory.total") if line.isdecimal()]
    return max(sizes) << 20 if sizes else None


def driver_version() -> str | None:
    return next(iter(nvidia_smi("driver_version")), None)


def nvidia_smi(what: str) -> list[str]:
    """Return what nvidia-smi reports of each GPU; nothing where it is not here or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
