"""Take one line of a log out of its wrappings: container formats, colours, the prefixes of launchers and of vLLM.

Wrappings are peeled from the outside in, each at most once or twice, so the work per line is bounded:
journald, Kubernetes (CRI) and Docker's JSON files, Compose and kubectl labels, `srun -l` and `mpirun` rank labels,
`torchrun` labels, then vLLM's own `(EngineCore pid=7) ERROR 11-03 23:14:03 [core.py:710] ` in every generation.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

MAX_LINE = 64 << 10  # a longer line is looked at up to here; the reason of a crash is early in it


class LogLine(NamedTuple):
    """One line without its wrappings; `process`, `pid`, `rank`, `level` and `stamp` are None where the line has none.

    `writer` is what its wrappings name (pod, process, PID, rank), the same for all lines of a process; `label` is what
    kubectl or Compose put before it, `mark` a text that all lines of the writer have, and others may have, empty
    without a writer.
    `body` still has its level (`INFO:     Shutting down`), `text` has not. `stamp` sorts by time within one log
    (`MM-DD HH:MM:SS`), `container` is the stamp of the wrapping.
    """

    text: str
    body: str
    process: str | None = None
    pid: int | None = None
    writer: str | None = None
    label: str | None = None
    mark: str = ""
    rank: int | None = None
    level: str | None = None
    stamp: str | None = None
    container: str | None = None


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])|\x9b[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_WRAPPING = re.compile(
    # Of CRI; of a journal with `-o short-iso` and of rsyslog: host and program, which has its number or is the kernel;
    # of `aws logs tail`: the stream.
    rf"({_ISO}) (?:(?:stdout|stderr) [FP] |[\w.-]{{1,255}} (?:[\w./@-]{{1,255}}\[\d{{1,10}}\]|kernel): |"
    r"(?<=\.\d{6}\+00:00 )[^\s/:]{1,255}(?:/[^\s/:]{1,255}){1,8} )?"
    r"|([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) \S{1,255} [^\s:\[]{1,255}(?:\[\d{1,10}\])?: "  # a journal
    rf"|(\d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?) |\[({_ISO})\] "  # the second of Buildkite
    r"|\[[A-Z][a-z]{2} ([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) \d{4}\] "  # `dmesg -T`
    # kubectl, Compose, Loki; stern and kubetail, where a label of vLLM follows or the pod is one of a deployment.
    r"|(?P<label>\[(?:pod|container)/[^\]\s]{1,512}\]|[A-Za-z0-9][\w.-]{0,127} {1,40}\||"
    r"\{(?:[A-Za-z_]\w{0,63}=\"[^}]{0,999})?\}|"
    r"(?:[a-z][a-z0-9.-]{0,127} [a-z0-9-]{1,63}|\[[a-z][a-z0-9.-]{0,127}(?: [a-z0-9-]{1,63})?\])"
    r"(?= \([A-Z][\w.:/+-]{0,63} (?:pid|rank)=)|"
    r"[a-z][a-z0-9.-]{0,127}-[0-9a-f]{8,10}-[a-z0-9]{5} [a-z0-9-]{1,63}) "
    # A clock, the seconds and line number of a notebook that was run as a job, a quotation, a build by Docker.
    r"|(?:\[\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) |\d{1,7}\.\d{1,3}s \d{1,9} |> (?=\S)"
    r"|#\d{1,4} \d{1,7}\.\d{1,4} "
)
# How a line begins that is in one of these wrappings, or in JSON.
_MAY_BE_WRAPPED = re.compile(
    r"[\d\[{#>]|[A-Z][a-z]{2} [ \d]\d \d\d:|[A-Za-z][\w.-]{0,127} (?: {0,39}\||[a-z0-9-]{1,63} \()|"
    r"[a-z][a-z0-9.-]{0,127}-[0-9a-f]{8,10}-"
).match
_IN_JSON = re.compile(r'"(?:message|textPayload|msg)": ?"').search
_MESSAGES = ("log", "MESSAGE", "message", "textPayload", "msg")
_TIMES = ("time", "__REALTIME_TIMESTAMP", "timestamp", "asctime", "ts")
_LAUNCHER = re.compile(  # `srun -l`, mpirun, torchrun
    r"(\d{1,5}): |\[\d{1,6},(\d{1,6})\](?:<std(?:out|err)>)?:? ?|\[(?:default|rank|trainer|worker)?(\d{1,6})\]: ?"
)

# (EngineCore pid=1), (EngineCore_DP0 pid=1), (VllmWorker rank=0 pid=1), (RayWorkerWrapper pid=1, ip=10.0.0.1), ...
_PROCESS = re.compile(r"\(([A-Za-z][\w.:/+-]{0,63})((?:,? (?:pid|rank|ip|TP|PP|DP)=[\w.:]{1,64})+)\)")
_USUAL_PROCESS = re.compile(r"\(([A-Za-z][\w.:/+-]{0,63}) pid=([0-9]{1,64})\)")
_LABEL = 400  # characters of a label, at most
_RAY_REPEAT = re.compile(r" ?\[repeated \d+x across cluster\]\s*$")
_FIELD = re.compile(r"(\w+)=([\w.:]+)")
_WORLD_RANK = re.compile(r"(?:^|_)(?:Worker_?)?(?:TP|EP|rank)(\d{1,5})|^VllmWorker-(\d{1,5})", re.IGNORECASE)
_DP_ONLY = re.compile(r"_(?:DP)?(\d{1,5})$")
_STAGE = re.compile(r"_PP\d")
_NUMBERED = re.compile(r"[-_ ]?(?:(?:DP|PP|TP|EP|CP)?\d+[-_]?)+$|_(?:DP|PP|TP|EP|CP)\d+.*$")
_DEPTHS = {"Worker": 2, "EngineCore": 1}  # of processes of vLLM
_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)[ :]\s*"
    r"(?:(\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?) (?:\[[^\]\s]{1,200}:\d+\]|[\w./-]{1,200}:\d+\]) ?)?"
)
_HEAD = re.compile(  # of a line of vLLM, up to the bracket that closes its place
    r"(?:(\([^()]{1,398}\)) )?((DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) (\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?) "
    r"\[[^\]\s]{1,200}:\d+)"
)
_PLAIN_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL): {1,8}")
# What is left of other loggers' lines once their stamp is gone: `- INFO - name: `, `| ERROR    | mod:func:1 - `,
# `ERROR serialization.py:462 -- `, `ERROR 2025-04-05T00:01:19.2Z `; SGLang's `[2025-01-29 08:52:44 TP7] `; torch's
# `[rank2]:E0716 18:21:22.792000 132331 torch/_guards.py:283] [14/1] `, whose C++ twin is kept as it is.
_NAMES = r"DEBUG|INFO|WARNING|ERROR|CRITICAL"
_OTHER_LEVELS = (
    re.compile(rf"- (?:\S{{1,120}} - )?({_NAMES}) - (?:[\w.]{{1,120}}: (?=(?:{_NAMES})\b))?"),
    re.compile(rf"\| ({_NAMES}) *\| \S{{1,200}} - "),
    re.compile(rf"({_NAMES}) [\w.]{{1,120}}:\d+ -- "),
    re.compile(rf"({_NAMES}) {_ISO} "),
)
_SGLANG = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)((?: (?:DP|TP|PP|EP)\d{1,4})*)\] ")
_GLOG = re.compile(
    r"(?:\[rank(?P<rank>\d{1,6})\]:)?(?P<open>\[?)(?P<level>[IWEF])(?P<day>\d{3,4}) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}) "
    r"(?:\d{1,10} )?[\w./-]{1,200}:\d+\] (?:\[\d+/\d+(?:_\d+)?\] )*"
)
# `[INFO|trainer.py:2] 2025-01-01 10:00:00,088 >> ` of transformers, `[INFO] [launch.py:256:main] ` of DeepSpeed.
_MAY_BEGIN_WITH_A_LEVEL = re.compile(rf"(?:{_NAMES}|FATAL)[ :]|- |\| |\[[A-Z]").match
_BRACKETED = re.compile(
    r"\[(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
    rf"(?:\|[^\]]{{1,120}}\] (?:{_ISO} )?>> |\] (?:\[[^\]]{{1,120}}\] )?)"
)
# How a log that was pasted into a text begins its lines: the blanks before what only a logger or launcher writes.
_INDENTED = re.compile(
    rf"[ \t]{{1,40}}(?=\([A-Z][\w.:/+-]{{0,63}} (?:rank=\d+ )?pid=|\[rank\d{{1,6}}\]:|(?:{_NAMES}) \d\d-\d\d |{_ISO} )"
).match
_BLANK = frozenset(" \t")
_BEGIN_A_LINE_OF_VLLM = "(DIWECF"
_BEGIN_MORE = "[("  # of a prefix, after one
_BEGIN_A_RANK = "[0123456789"
_BEGIN_A_LEVEL = "DIWECF[-|"
_BEGIN_A_GLOG = "[IWEF"
_BEGIN_A_PREFIX = "(" + _BEGIN_A_RANK + _BEGIN_A_LEVEL + "{#>"
# Anywhere in the prefix of a line of a logger that is not known.
_SOME_LEVEL = re.compile(
    r"^.{0,80}?(?:^|[\s|\[<(\]])(DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)(?:[\s|\]>):]|$)"
    r"|^\{.{0,300}?\"(?:level(?:name)?|severity)\": ?\"(?i:(debug|info|warning|warn|error|critical|fatal))\""
)
_PREFIX, _MAY_NAME_A_LEVEL = 100, re.compile("INFO|WARN|ERROR|DEBUG|CRITICAL|FATAL|NOTICE").search
_SAME_LEVEL = {"NOTICE": "INFO", "WARN": "WARNING"}
_GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_TORCH_RANK = re.compile(r"\[rank ?(\d{1,6})\]")
_RANK_OF_FILE = re.compile(r"(?:^|[^A-Za-z])[Rr]ank[-_.]?(\d{1,6})(?!\d)")
_ANY_RANK = re.compile(r"\b(?:[Rr]ank |rank=|PG \d+ Rank |VllmWorker-)(\d{1,6})\b")


def decode(data: bytes) -> str:
    """Return bytes of a log as text; bytes that are not UTF-8 become a replacement mark, so nothing is ever refused."""
    return data[:MAX_LINE].decode("utf-8", "replace")


def plain(text: str) -> str:
    """Return `text` without ANSI sequences and control characters; of a line redrawn with CR, the last drawing."""
    if "\r" in text:
        drawings = [part for part in text.split("\r") if part.strip()]
        text = drawings[-1] if drawings else ""
    if "\x1b" in text or "\x9b" in text:
        text = _ANSI.sub("", text)
    return text if text.isprintable() else _CONTROL.sub("", text)


def unwrap(raw: str) -> LogLine:
    """Take one raw line out of all its wrappings."""
    text = plain(raw)
    first = text[:1]
    if first in _BLANK and (indented := _INDENTED(text)):
        text = text[indented.end() :]
        first = text[:1]
    if first not in _BEGIN_A_PREFIX:
        return _unwrapped(text) if _MAY_BE_WRAPPED(text) else _without_prefix(text)
    if first in _BEGIN_A_LINE_OF_VLLM:  # where many lines begin alike
        head, _, said = text.partition("] ")
        if len(head) < _LABEL and said[:1] not in _BEGIN_MORE and not said[1:2].isdigit() and (begun := _begun(head)):
            _, body, process, pid, writer, label, mark, rank, level, stamp, container = begun
            rank = _rank_in(said, process) if rank is None else rank
            body += said
            said = _without_repeat(said).rstrip()
            return LogLine(said, body, process, pid, writer, label, mark, rank, level, stamp, container)
    return _unwrapped(text)


def _without_prefix(text: str) -> LogLine:
    return LogLine(_without_repeat(text).rstrip(), text, rank=_rank_in(text, None), level=_level_in(text))


def _without_repeat(text: str) -> str:
    return _RAY_REPEAT.sub("", text) if "across cluster]" in text else text


@lru_cache(1 << 10)
def _begun(head: str) -> LogLine | None:
    """Return what a line of vLLM says before its message, None where it does not have all that."""
    if match := _HEAD.fullmatch(head):
        label, body, level, stamp = match.groups()
        if label is None:
            return LogLine("x", f"{body}] ", level=level, stamp=stamp)
        if said := _process_of(label):
            process, pid, rank = said
            writer = " ".join([str(part) for part in said if part is not None])
            rank = rank_of_process(process) if rank is None else rank
            return LogLine("x", f"{body}] ", process, pid, writer, None, label, rank, level, stamp)
    line = _unwrapped(f"{head}] x")
    whole = line.text == "x" and line.level and line.stamp
    return line._replace(body=line.body.removesuffix("x")) if whole else None


def _unwrapped(whole: str) -> LogLine:
    text = whole
    container = label = rank = None
    mark = ""
    if not text.startswith("("):  # no wrapping begins so
        text, container, label = _out_of_container(text)
        mark = label or ""
        before = text
        text, rank = _out_of_launcher(text)
        if rank is not None:
            mark = _cut(before, text)
            text, inner, _ = _out_of_container(text)
            container = container or inner
    before = text
    text, process, pid, said_rank = _out_of_process(text)
    mark = _cut(before, text) if process else mark
    text, sglang, container = _out_of_sglang(text, container)
    if sglang and not process:
        process, mark = sglang, f"{sglang.replace('_', ' ')}]"
    body = text
    text, level, stamp = _out_of_level(text)
    if text.startswith("(") and process is None:  # Ray puts its own label before vLLM's, vLLM's before its level
        before = text
        text, process, pid, said_rank = _out_of_process(text)
        mark = _cut(before, text) if process else mark
    text, level, stamp, torch_rank = _out_of_glog(text, level, stamp)
    if torch_rank is not None and not mark:
        mark = f"[rank{torch_rank}]"
    if said_rank is not None:
        rank = said_rank
    elif torch_rank is not None:
        rank = torch_rank
    who = [str(part) for part in (label, process, pid, rank) if part is not None]
    return LogLine(
        text=_without_repeat(text).rstrip(),
        body=body,
        process=process,
        pid=pid,
        writer=" ".join(who) or None,
        label=label,
        mark=mark,
        rank=rank if rank is not None else _rank_in(text, process),
        level=level or _level_in(whole),
        stamp=stamp,
        container=container,
    )


def _cut(before: str, after: str) -> str:
    """Return what was taken off the beginning of a text."""
    return before[: len(before) - len(after)].strip()


def _level_in(line: str) -> str | None:
    """Return the level that the prefix of a line names, for a logger of any other form."""
    if not line.startswith("{") and not _MAY_NAME_A_LEVEL(line, 0, _PREFIX):
        return None
    match = _SOME_LEVEL.match(line)
    if match is None or "NCCL WARN" in line:  # NCCL fails with it
        return None
    level = (match[1] or match[2]).upper()
    return _SAME_LEVEL.get(level, level)


def _out_of_container(text: str) -> tuple[str, str | None, str | None]:
    stamp: str | None = None
    label: str | None = None
    for _ in range(4):  # `kubectl logs --prefix --timestamps` has two, a journal around Docker's JSON has two
        if not _MAY_BE_WRAPPED(text):
            break
        if text.startswith("{") and (inner := _out_of_json(text)) is not None:
            text, said = inner
            stamp = stamp or said
            continue
        match = _WRAPPING.match(text)
        if match is None:
            break
        text = text[match.end() :]
        if match.lastgroup:
            label = label or match["label"]
        elif match.lastindex:
            stamp = stamp or match[match.lastindex]
    return text, stamp, label


def _out_of_json(text: str) -> tuple[str, str | None] | None:
    """Docker's json-file driver writes {"log", "stream", "time"}, `journalctl -o json` writes {"MESSAGE", ...}.

    Loggers and clouds write {"message"}, {"msg"} or {"textPayload"}; one with a traceback in a field is left alone.
    """
    known = text.startswith(('{"log"', '{"stream"', '{"time"')) or '"MESSAGE"' in text
    if not known and not (text.startswith('{"') and "\\n" not in text.replace('\\n"', "") and _IN_JSON(text)):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = next((record[key] for key in _MESSAGES if key in record), None)
    if isinstance(message, list):  # journald writes a message that is no text as a list of bytes
        message = bytes(b for b in message if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
    if not isinstance(message, str):
        return None
    said = next((record[key] for key in _TIMES if key in record), None)
    message = message.encode("utf-8", "replace").decode()  # half of a surrogate pair can be written in JSON alone
    return plain(message.rstrip("\n")), said if isinstance(said, str) else None


def _out_of_launcher(text: str) -> tuple[str, int | None]:
    rank: int | None = None
    for _ in range(2):
        if text[:1] not in _BEGIN_A_RANK:
            break
        match = _LAUNCHER.match(text)
        if match is None:
            break
        text, rank = text[match.end() :], int(match[match.lastindex or 1])
    return text, rank


def _out_of_process(text: str) -> tuple[str, str | None, int | None, int | None]:
    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    for _ in range(2):
        if not text.startswith("("):
            break
        end = text.find(")", 0, _LABEL) + 1
        if not end or (said := _process_of(text[:end])) is None:
            break
        process = said[0]
        pid = pid if said[1] is None else said[1]
        rank = rank if said[2] is None else said[2]
        text = text[end:].removeprefix(" ")
    return text, process, pid, rank


@lru_cache(1 << 10)
def _process_of(label: str) -> tuple[str, int | None, int | None] | None:
    """Return the name, PID and rank in a label of a process."""
    if match := _USUAL_PROCESS.fullmatch(label):
        return match[1], int(match[2]), None
    if (match := _PROCESS.fullmatch(label)) is None:
        return None
    fields = dict(_FIELD.findall(match[2]))
    pid, rank = (int(said) if (said := fields.get(name, "")).isdigit() else None for name in ("pid", "rank"))
    return match[1], pid, rank


def _out_of_level(text: str) -> tuple[str, str | None, str | None]:
    if not _MAY_BEGIN_WITH_A_LEVEL(text):
        return text, None, None
    match = _LEVEL.match(text)
    if match and match[2]:
        return text[match.end() :], match[1], match[2]
    match = _PLAIN_LEVEL.match(text)
    if match:
        return text[match.end() :], match[1], None
    match = _BRACKETED.match(text)
    if match:
        return text[match.end() :], _SAME_LEVEL.get(match[1], match[1]), None
    match = next((found for pattern in _OTHER_LEVELS if (found := pattern.match(text))), None)
    if match is None:
        return text, None, None
    inner = _LEVEL.match(text, match.end())  # a launcher that logs what its server logs: the server's level counts
    if inner and inner[2]:
        return text[inner.end() :], inner[1], inner[2]
    return text[match.end() :], match[1], None


def _out_of_sglang(text: str, container: str | None) -> tuple[str, str | None, str | None]:
    """Take SGLang's stamp off; what it names after it, as `TP7`, is the process."""
    match = _SGLANG.match(text) if text.startswith("[") else None
    if match is None:
        return text, None, container
    return text[match.end() :], match[2].strip().replace(" ", "_") or None, container or match[1]


def _out_of_glog(text: str, level: str | None, stamp: str | None) -> tuple[str, str | None, str | None, int | None]:
    match = _GLOG.match(text) if text[:1] in _BEGIN_A_GLOG else None
    if match is None:
        return text, level, stamp, None
    rank = int(match["rank"]) if match["rank"] else None
    said = f"{match['day'][:-2]:0>2}-{match['day'][-2:]} {match['time']}"
    return text if match["open"] else text[match.end() :], level or _GLOG_LEVELS[match["level"]], stamp or said, rank


def role_of(process: str) -> str:
    """Return what a process is: `Worker` of `VLLM::Worker_TP1` and `VllmWorker-0`, `EngineCore` of `EngineCore_DP0`."""
    name = process.removeprefix("VLLM::")
    if "Worker" in name:
        return "Worker"
    return "EngineCore" if name.startswith("EngineCor") else _NUMBERED.sub("", name) or name


def depth_of(process: str | None) -> int:
    """Return how many processes of vLLM wait for this one: what one of them raises is an effect."""
    return _DEPTHS.get(role_of(process), 0) if process else 0


@lru_cache(1 << 10)
def rank_of_process(process: str) -> int | None:
    """Return the rank that a process is named after: 1 of `Worker_TP1`, `VllmWorker-1` and `Worker_DP1`.

    The number of an engine (`EngineCore_DP1`) counts engines. With pipeline stages the rank is not in the name.
    """
    if "EngineCor" in process or _STAGE.search(process):
        return None
    match = _WORLD_RANK.search(process) or _DP_ONLY.search(process)
    return int(match[match.lastindex or 1]) if match else None


def rank_of_file(name: str) -> int | None:
    """Return the rank that the name of a log has after the word, as `rank2.log` and `job-rank_2.txt`."""
    match = _RANK_OF_FILE.search(name.rpartition("/")[2])
    return int(match[1]) if match else None


def _rank_in(text: str, process: str | None) -> int | None:
    """The rank a line speaks of: its process's name (Worker_TP1) before a rank in its text."""
    if process and (rank := rank_of_process(process)) is not None:
        return rank
    if "ank" not in text and "VllmWorker-" not in text:
        return None
    match = _TORCH_RANK.match(text) or _ANY_RANK.search(text)
    return int(match[1]) if match else None


# A CUDA error reaches a log in a dozen wordings: of PyTorch old and new, Triton, vLLM's macros, NCCL. What they share
# is the error's text (cudaGetErrorString) or its name. Some programs (custom all-reduce, a watchdog) only pass it on.


# cudaGetErrorString's text -> the enum's name (CUDA 13.0 driver_types.h; same order as there).
ERROR_TEXTS: dict[str, str] = {
    "invalid argument": "cudaErrorInvalidValue",
    "out of memory": "cudaErrorMemoryAllocation",
    "initialization error": "cudaErrorInitializationError",
    "driver shutting down": "cudaErrorCudartUnloading",
    "invalid configuration argument": "cudaErrorInvalidConfiguration",
    "invalid pitch argument": "cudaErrorInvalidPitchValue",
    "invalid device symbol": "cudaErrorInvalidSymbol",
    "CUDA driver version is insufficient for CUDA runtime version": "cudaErrorInsufficientDriver",
    "no CUDA-capable device is detected": "cudaErrorNoDevice",
    "invalid device ordinal": "cudaErrorInvalidDevice",
    "device kernel image is invalid": "cudaErrorInvalidKernelImage",
    "invalid device context": "cudaErrorDeviceUninitialized",
    "invalid device function": "cudaErrorInvalidDeviceFunction",
    "no kernel image is available for execution on the device": "cudaErrorNoKernelImageForDevice",
    "uncorrectable ECC error encountered": "cudaErrorECCUncorrectable",
    "uncorrectable NVLink error detected during the execution": "cudaErrorNvlinkUncorrectable",
    "a PTX JIT compilation failed": "cudaErrorInvalidPtx",
    "the provided PTX was compiled with an unsupported toolchain.": "cudaErrorUnsupportedPtxVersion",
    "PTX JIT compiler library not found": "cudaErrorJitCompilerNotFound",
    "shared object initialization failed": "cudaErrorSharedObjectInitFailed",
    "invalid resource handle": "cudaErrorInvalidResourceHandle",
    "named symbol not found": "cudaErrorSymbolNotFound",
    "an illegal memory access was encountered": "cudaErrorIllegalAddress",
    "too many resources requested for launch": "cudaErrorLaunchOutOfResources",
    "the launch timed out and was terminated": "cudaErrorLaunchTimeout",
    "peer access is already enabled": "cudaErrorPeerAccessAlreadyEnabled",
    "peer access is not supported between these two devices": "cudaErrorPeerAccessUnsupported",
    "device-side assert triggered": "cudaErrorAssert",
    "hardware stack error": "cudaErrorHardwareStackError",
    "an illegal instruction was encountered": "cudaErrorIllegalInstruction",
    "misaligned address": "cudaErrorMisalignedAddress",
    "operation not supported on global/shared address space": "cudaErrorInvalidAddressSpace",
    "invalid program counter": "cudaErrorInvalidPc",
    "unspecified launch failure": "cudaErrorLaunchFailure",
    "too many blocks in cooperative launch": "cudaErrorCooperativeLaunchTooLarge",
    "operation not permitted": "cudaErrorNotPermitted",
    "operation not supported": "cudaErrorNotSupported",
    "system not yet initialized": "cudaErrorSystemNotReady",
    "system has unsupported display driver / cuda driver combination": "cudaErrorSystemDriverMismatch",
    "forward compatibility was attempted on non supported HW": "cudaErrorCompatNotSupportedOnDevice",
    "operation not permitted when stream is capturing": "cudaErrorStreamCaptureUnsupported",
    "operation failed due to a previous error during capture": "cudaErrorStreamCaptureInvalidated",
    "operation would result in a merge of separate capture sequences": "cudaErrorStreamCaptureMerge",
    "capture was not ended in the same stream as it began": "cudaErrorStreamCaptureWrongThread",
    "capturing stream has unjoined work": "cudaErrorStreamCaptureUnjoined",
    "dependency created on uncaptured work in another stream": "cudaErrorStreamCaptureIsolation",
    "operation would make the legacy stream depend on a capturing blocking stream": "cudaErrorStreamCaptureImplicit",
    "unknown error": "cudaErrorUnknown",
}


class CudaError(NamedTuple):
    """A CUDA error as one line reports it. `messenger`: its writer only reports an error of an earlier call."""

    name: str | None
    message: str
    messenger: bool


# How each program words it, the first that fits; True for one that only passes on another's error.
_WORDINGS: tuple[tuple[re.Pattern[str], bool], ...] = (
    # csrc/custom_all_reduce.cuh of vLLM, printed on stdout before exit(EXIT_FAILURE)
    (re.compile(r"Failed: C(?:uda|UDA) error \S+:\d+ '(?P<message>[^']*)'"), True),
    # ProcessGroupNCCL's watchdog
    (
        re.compile(r"watchdog thread terminated with exception: (?:\[Rank \d+\] )?CUDA error: (?P<message>.+)"),
        True,
    ),
    # torch: c10/cuda/CUDAException.cpp; torch.AcceleratorError since 2.8 (pytorch#152023), RuntimeError before
    (
        re.compile(r"(?:torch\.AcceleratorError|RuntimeError|c10::(?:Accelerator)?Error): CUDA error: (?P<message>.+)"),
        False,
    ),
    (re.compile(r"RuntimeError: CUDA driver error: (?P<message>.+)"), False),
    (re.compile(r"Triton Error \[CUDA\]: (?P<message>.+)"), False),
    # csrc/cumem_allocator.cpp of vLLM, and its wrapper of the CUDA runtime
    (re.compile(r"CUDA Error: (?P<message>.+) at \S+:\d+"), True),
    (re.compile(r"CUDART error: (?P<message>.+)"), True),
    (re.compile(r"NCCL WARN (?:Cuda failure|CUDA failure)(?: \d+)? '(?P<message>[^']*)'"), True),
    (re.compile(r"NCCL error: (?P<message>unhandled cuda error.*)"), True),
    # cuda-python, then any other program
    (re.compile(r"(?P<message>CUDA_ERROR_[A-Z_]+)"), False),
    (re.compile(r"(?i:cuda (?:runtime )?(?:error|failure))\b.*?: ?(?P<message>[^:]+)$"), False),
)


def parse_cuda_error(text: str) -> CudaError | None:
    """Return the CUDA error one line reports, or None."""
    for pattern, messenger in _WORDINGS:
        if found := pattern.search(text):
            message = found["message"].strip().rstrip("'\"")
            return CudaError(error_name(message), message, messenger)
    return None


_ENUM = re.compile(r"\b(cudaError\w+|CUDA_ERROR_[A-Z_]+)\b")
_LONGEST_FIRST = sorted(ERROR_TEXTS, key=len, reverse=True)


def error_name(message: str) -> str | None:
    """Return the enum name of an error's text; the driver API's names are returned unchanged."""
    if match := _ENUM.search(message):
        return match[1]
    text = next((known for known in _LONGEST_FIRST if known in message), None)
    return ERROR_TEXTS[text] if text else None
