"""The one command that `vdbg-env guard` runs in this process's place, its cores, and how its failure is announced."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from gpucore.arming import CoreSize
from vdbg_env.common import stop
from vdbg_env.common.console import size_text
from vdbg_env.common.errors import BadInput, HostNotAble, VdbgError
from vdbg_env.common.files import read_document
from vdbg_env.common.flags import flag, read_by
from vdbg_env.common.programs import Programs, read_gpus
from vdbg_env.evidence.finding import Ended, EndedBy, Observation
from vdbg_env.image.settings import parse_size
from vdbg_env.record.run_directory import GUARD, RunDirectory
from vdbg_env.runbook.model import duration_s
from vdbg_env.runbook.state import OURS, Invocation
from vdbg_env.runbook.workload import MEMORY_MAP
from vdbg_env.supervisor import control_files, helpers
from vdbg_env.supervisor.job import FAILED
from vdbg_env.supervisor.watch import FORWARDED, STOPS

_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_UNKNOWN_MEMORY = 80 << 30  # bytes, where a GPU is there and nvidia-smi says nothing of it
_ABOVE = 10  # descriptors below are often given a meaning by their number


@dataclass(frozen=True, kw_only=True)
class GuardFlags:
    """The flags of `vdbg-env guard`: sizes in bytes, times in seconds.

    Without `hang_after` nothing counts as a hang. `hook` is a line of the shell that gets the JSON line.
    `exit_status_on_crash` is returned after a crash or a hang in place of the command's own status; None keeps that.
    """

    runs: Path | None = flag(help="The folder to record runs in.")
    keep: int = flag(
        default=20, show_default=True, between=(1, None), metavar="N", help="Keep the newest N guarded runs."
    )
    keep_size: int | None = flag(
        callback=read_by(lambda text: parse_size(text, "--keep-size")),
        metavar="SIZE", help="Keep no older guarded runs than fit into this, such as 50g. [default: no limit]",
    )  # fmt: skip
    log_limit: int = flag(
        default="64m", show_default=True, callback=read_by(lambda text: parse_size(text, "--log-limit")),
        metavar="SIZE", help="Keep at most this much of each output stream.",
    )  # fmt: skip
    disk_floor: int = flag(
        default="1g", show_default=True, callback=read_by(lambda text: parse_size(text, "--disk-floor")),
        metavar="SIZE", help="Record nothing while less disk space than this is free.",
    )  # fmt: skip
    hang_after: float | None = flag(
        default="15m", show_default=True, callback=read_by(lambda text: None if text == "off" else duration_s(text)),
        metavar="DURATION",
        help="Hung is: no progress for this long while work waits or a GPU is at full load. `off` disables.",
    )  # fmt: skip
    core: CoreSize = flag(
        default="default", show_default=True,
        help="What GPU core dumps hold: registers and code; also shared and local memory; or all memory.",
    )  # fmt: skip
    full_core: bool = flag(default=False, help="The same as --core full.")
    memory_map: bool = flag(
        "--memory-map/--no-memory-map", default=True, show_default=True,
        help="Record which tensor is at which address, to name the one that a crash hit.",
    )  # fmt: skip
    exit_status_on_crash: int | None = flag(
        between=(1, 255), metavar="N",
        help="Exit status after a crash or hang, to have a supervisor restart it. [default: the command's own]",
    )  # fmt: skip
    hook: str | None = flag(
        metavar="LINE", help="Shell command to run after a failure, with the JSON line on standard input."
    )
    termination_log: Path | None = flag(
        help="File for Kubernetes' termination message. [default: /dev/termination-log if it exists]"
    )
    print_environment: bool = flag(
        default=False, help="Print the variables for COMMAND and how to disable each; start nothing."
    )

    @property
    def core_size(self) -> CoreSize:
        """What GPU core dumps keep."""
        return "full" if self.full_core else self.core


@dataclass(frozen=True, kw_only=True)
class Room:
    """The volume that cores go to: its folder, the bytes free for them, and the memory of a GPU, 0 without one."""

    folder: str
    free: int
    gpu_memory: int = 0


class Guarded:
    """The streams and signals of this process, for the one workload that it guards.

    Entered, it takes every signal that can be passed on, and keeps those that arrive before the workload's supervisor
    is there. Those that arrive after its end are for this program, which then has two seconds: `pending` returns them.
    """

    def __init__(self, settings: GuardFlags) -> None:
        self.settings = settings
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._directory = Path()
        self._early: list[int] = []
        self._before: dict[int, Any] = {}
        self._entered = 0
        self._came: list[int] = []
        self._streams: tuple[int, ...] = ()
        self._start, self.starts = os.pipe()  # gets a byte right before the command starts
        self._started: bool | None = None
        self._to_stderr = ("stdout", "stderr") if _in_one_place(1, 2) else ("stderr",)

    @property
    def streams(self) -> tuple[int, ...]:
        """The descriptors of standard input, output and error, as the supervisor gets them."""
        if not self._streams:
            self._streams = tuple(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for number in (0, 1, 2))
        return self._streams

    @property
    def standard_input(self) -> int:
        """What the workload reads; a terminal stays with this process, as the workload has another session."""
        return -1 if os.isatty(self.streams[0]) else self.streams[0]

    @property
    def own_variables(self) -> Mapping[str, str]:
        """What each step's processes are marked with, whatever the runbook sets."""
        return {**OURS, helpers.MARK: "RUN:STEP"}

    @property
    def started(self) -> bool:
        """Whether the command has been started; waits until that was said or cannot be any longer."""
        if self._started is None and self._supervisor is not None:
            self._started = os.read(self._start, 1) != b""
        return bool(self._started)

    def wait(self) -> Ended:
        """Wait for the end of the command, whatever has become of its record."""
        assert self._supervisor
        self._supervisor.wait()
        try:
            document = read_document(self._directory / control_files.ENDED)
            return Ended(by=EndedBy(document["by"]), code=document["code"], signal=document["signal"])
        except (OSError, ValueError, KeyError, TypeError):
            return self._ended_without_record()

    def unfinished_line(self) -> bool:
        """Return whether the last line of what goes to standard error has no end; an unknown one may have none."""
        try:
            output = read_document(self._directory / control_files.ENDED)["output"]
            return any(output[name]["unfinished"] for name in self._to_stderr)
        except (OSError, ValueError, KeyError, TypeError):
            return self.started

    def lost(self) -> str:
        """Return why output was lost on its way, as on a full disk below a redirection; empty where all arrived."""
        return self._of_streams(lambda stream: stream.get("lost"))

    def unrecorded(self) -> str:
        """Return how much of the output is not in the record, and so cannot be read; empty where all of it is."""
        return self._of_streams(lambda stream: stream["dropped"] and f"{stream['dropped']} of {stream['bytes']} bytes")

    def _of_streams(self, tell: Callable[[dict[str, Any]], object]) -> str:
        """Return what there is to tell of each stream by its name; empty where the record has no end."""
        try:
            output = read_document(self._directory / control_files.ENDED)["output"]
            return "; ".join(f"{name}: {said}" for name, stream in output.items() if (said := tell(stream)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ""

    def seen(self, observation: Observation) -> Observation:
        """Return how it ended for a run that must not repeat it: what loses its supervisor the kernel kills.

        Raises HostNotAble where the command has not been started.
        """
        by = observation.ended.by
        if by in {EndedBy.ENGINE_LOST, EndedBy.NOT_STARTED} and not self.started:
            why = observation.ended.message or ""
            lost = "its supervisor ended before it started the command, as on a full disk"
            raise HostNotAble(why if by is EndedBy.NOT_STARTED or why.startswith(FAILED) else lost)
        if by is not EndedBy.ENGINE_LOST:
            return observation
        return replace(observation, ended=replace(self._ended_without_record(), message=observation.ended.message))

    def _ended_without_record(self) -> Ended:
        """Return the end that the supervisor exited with: its record may have been moved, removed or replaced."""
        assert self._supervisor
        status = self._supervisor.returncode
        if status is None or status < 0:
            return Ended(by=EndedBy.SIGNAL, signal=signal.SIGKILL)
        return Ended(by=EndedBy.EXIT, code=status)

    def attached(self, supervisor: subprocess.Popen[bytes], directory: Path) -> None:
        """Pass signals to this supervisor from now on, also those that it has received already."""
        self._supervisor, self._directory = supervisor, directory
        for number in (*self.streams, self.starts):
            os.close(number)  # the supervisor has them: its reader must see the end of the workload's output
        self._streams = ()
        while self._early:
            supervisor.send_signal(self._early.pop(0))

    def without_the_users(self, invocation: Invocation, environment: Mapping[str, str]) -> Invocation:
        """Return the invocation without what the user has set otherwise: the command runs as it is."""
        theirs = {*environment, *(also for name, also in _ALSO.items() if name in environment)}
        env = {name: value for name, value in invocation.env.items() if name not in theirs}
        watch = invocation.watch.model_copy(
            update={"output_idle_s": self.settings.hang_after, "gpu_pinned_s": self.settings.hang_after}
        )
        output = invocation.output.model_copy(update={"limit": self.settings.log_limit})
        return replace(invocation, env=env, hooks=self.hooks(invocation, environment), watch=watch, output=output)

    def hooks(self, invocation: Invocation, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return what has the command write its memory map; nothing where the user does not want it or has set it."""
        return invocation.hooks if self.settings.memory_map and MEMORY_MAP not in environment else {}

    def pending(self) -> tuple[int, ...]:
        """Return the signals that arrived after the workload's end; all others are the workload's."""
        return tuple(self._came)

    def told_to_stop(self) -> bool:
        """Return whether a signal arrived after the workload's end."""
        return bool(self._came)

    def __enter__(self) -> Guarded:
        self._entered += 1
        if self._entered > 1:
            return self
        stop.forget()
        for number in FORWARDED:
            if not stop.is_below_nohup(number):
                self._before[number] = signal.signal(number, self._received)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._reap)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        runs = self.started
        for number, handler in self._before.items():
            # All that is left is to return the command's status, and Python ends without its handlers.
            signal.signal(number, signal.SIG_IGN if runs and number in STOPS else handler)
        while not runs and self._early:  # sent to the command, which this process is to be now
            os.kill(os.getpid(), self._early.pop(0))

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._supervisor is None:
            self._early.append(number)
        elif self._supervisor.poll() is None:
            self._supervisor.send_signal(number)
        elif number in STOPS:
            self._came.append(number)
            stop.told(number)

    def _reap(self, _number: int, _frame: FrameType | None) -> None:
        """Take the status of what process 1 of a container adopted (`docker exec` leaves it); ours is waited for."""
        own = self._supervisor
        while os.getpid() == 1 and own is not None and own.returncode is None:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid == own.pid:
                return
            os.waitpid(ended.si_pid, 0)


def core_room(folder: Path, floor: int, *, whole: bool) -> Room:
    """Return the room that cores have in a folder above a floor of free space, and the memory of a GPU.

    Only for `whole` memory nvidia-smi is asked for its size: it may take seconds, and a command is to be started.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    memory = 0
    if any(Path(device).exists() for device in _DEVICES):
        memory = _UNKNOWN_MEMORY
        with suppress(HostNotAble):
            sizes = [gpu.memory_total or 0 for gpu in read_gpus(Programs(), timeout_s=10).gpus] if whole else []
            memory = max(sizes, default=0) or memory
    return Room(folder=str(there), free=max(0, shutil.disk_usage(there).free - floor), gpu_memory=memory)


def _in_one_place(*descriptors: int) -> bool:
    try:
        return len({os.fstat(number)[1:3] for number in descriptors}) == 1
    except OSError:  # one is closed
        return False


def forget_old_runs(home: Path, keep: int, keep_size: int | None = None) -> tuple[str, ...]:
    """Remove all but the newest `keep` runs of guards in a folder, and return their names; one that runs stays.

    Those that tell of no failure go first: a command that is started often would lose its crash. One that is restarted
    for ever would fill the disk with its crashes. With `keep_size` they go in the same order until what is left takes
    no more than so many bytes. What cannot be removed stays: the command is started all the same, on a full disk too.
    """
    try:
        old = sorted(path for path in home.glob(f"*-{GUARD}-????") if path.is_dir() and not path.is_symlink())
    except OSError:  # a folder that this user may not enter
        return ()
    surplus = len(old) - keep
    sizes = {} if keep_size is None else {path: _size_of(path) for path in old}
    excess = sum(sizes.values()) - (keep_size or 0)
    if surplus <= 0 and (keep_size is None or excess <= 0):  # no report is read for nothing: a command waits for this
        return ()
    removed = []
    for number, path in enumerate(sorted(old, key=_tells_of_a_failure)):
        if number >= surplus and (keep_size is None or excess <= 0):
            break
        run = RunDirectory(path)
        try:
            if run.read_head().runbook != GUARD:
                continue
            with run.alone():
                run.remove()
        except (VdbgError, OSError):
            continue
        excess -= sizes.get(path, 0)
        removed.append(path.name)
    return tuple(removed)


def _size_of(folder: Path) -> int:
    """Return the bytes that the files of a folder take on the disk; what cannot be looked at counts as nothing."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(f"{parent}/{name}").st_blocks * 512
    return size


def _tells_of_a_failure(run: Path) -> bool:
    """Return whether a run's report does; one without a report, or with one that cannot be read, may."""
    try:
        return RunDirectory(run).read_report().get("verdict") not in {"passed", "inconclusive"}
    except BadInput:
        return True


# Say that a guarded command has failed: a file, a program.
#
# Each is given a time, and none can keep the guard longer: its command is to be started again.


_HOOK_S = 60.0
_SHELL = "/bin/sh"
_MOST_SAID = 4096  # bytes of what a hook says


class Announcer:
    """Says that something has failed; each verb returns what went wrong with that, in words, or None.

    A hook has `hook_s` seconds.
    """

    def __init__(self, *, hook_s: float = _HOOK_S) -> None:
        self._hook_s = hook_s

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file, made where it is not there; Kubernetes reads its own as a whole."""
        try:
            # A workload may have put a pipe in its place, which would be waited for.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"{path} could not be written: {error.strerror}"
        return None

    def run(self, line: str, text: str) -> str | None:
        """Run a line of the shell with the text on its standard input; what it leaves behind is not waited for."""
        # Not a file on disk: a container may have none that it can write.
        with os.fdopen(os.memfd_create("what a hook says"), "w+b") as said:
            try:
                with stop.Held() as held:
                    process = subprocess.Popen(
                        [_SHELL, "-c", line],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=said,
                        start_new_session=True,
                    )
                    try:
                        held.release()
                        process.communicate(text.encode() + b"\n", timeout=self._hook_s)
                    except BaseException:  # its time is over, or ours
                        with suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGKILL)
                        process.wait()
                        raise
            except subprocess.TimeoutExpired:
                return f"the hook `{line}` was ended: it took more than {self._hook_s:g} s"
            except OSError as error:
                return f"the hook `{line}` failed: {error}"
            said.seek(0)
            last = said.read(_MOST_SAID).decode("utf-8", "replace").strip().rpartition("\n")[2]
        told = f": {last}" if last else ", without a word"
        return f"the hook `{line}` ended with {process.returncode}{told}" if process.returncode else None


# What guard puts into the environment of its command, how each is switched off, and whether the cores have room.


# Bytes of one rank's core. Two published ones without global memory had 232 and 523 MB; light ones have some MB.
_NEEDED: Mapping[CoreSize, int] = {"light": 256 << 20, "default": 1 << 30}
_OFF = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "0",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "0",
    "CUDA_COREDUMP_SHOW_PROGRESS": "0",
    "PYTHONFAULTHANDLER": "",
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "",
    MEMORY_MAP: "off",
}
# By each name that PyTorch 2.8 gave to a variable of before, and the other way round; it prefers its own.
_RENAMED = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
_ALSO = _RENAMED | {old: new for new, old in _RENAMED.items()}
_WHY = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "a GPU core when a kernel faults",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "a GPU core of a hang",
    "CUDA_COREDUMP_FILE": "where cores go; your own is not read by the report",
    "CUDA_COREDUMP_PIPE": "where a core of a hang is asked for",
    "CUDA_COREDUMP_SHOW_PROGRESS": "the driver says on stderr what it dumps",
    "CUDA_COREDUMP_GENERATION_FLAGS": "what a core leaves out: --core light|default|full",
    "PYTHONFAULTHANDLER": "Python's stacks when a process gets a fatal signal",
    "TORCH_FR_BUFFER_SIZE": "the flight recorder of collectives",
    "TORCH_FR_DUMP_TEMP_FILE": "where it is written",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "the flight recorder of collectives, before PyTorch 2.8",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "written when its watchdog gives up",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "where it is written, before PyTorch 2.8",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "vLLM hands these on to Ray's workers",
    MEMORY_MAP: "where each process with a GPU says which tensor is at which address",
    "PYTHONPATH": "the plug-in that writes it, before your own path",
    "SPT_NOENV": "a process that renames itself keeps its environment",
    "VDBG_ENV_STEP": "by which the command's processes are found again",
}


def fitting(size: CoreSize, ranks: int, room: Room) -> tuple[CoreSize, str | None]:
    """Return the size of cores that has room for all ranks, or the smallest, and words where that is another one."""
    if not room.gpu_memory or _needed(size, ranks, room) <= room.free:
        return size, None
    cores = f"{ranks} GPU cores" if ranks > 1 else "a GPU core"
    words = f"{cores} ({size}) may need {size_text(_needed(size, ranks, room))}, and {size_text(room.free)} is free in "
    words += f"{room.folder} above --disk-floor: "
    if size == "light" or _needed("light", ranks, room) > room.free:
        return "light", words + "a core may be lost; make room, or give --runs on a larger volume"
    return "light", words + "--core light is taken, which leaves out all memory"


def _needed(size: CoreSize, ranks: int, room: Room) -> int:
    return ranks * _NEEDED.get(size, room.gpu_memory)


def listed(variables: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """Yield each variable as a line, with what it is for and how it is switched off; `given` is the user's own."""
    for name, value in sorted(variables.items()):
        why = _WHY.get(name, "")
        if name in given:
            yield f"{name}={given[name]}  # {why}; set by you, and left as it is"
        elif name in _OFF:
            yield f"{name}={value}  # {why}; off: {name}={_OFF[name]}"
        else:
            yield f"{name}={value}  # {why}"
