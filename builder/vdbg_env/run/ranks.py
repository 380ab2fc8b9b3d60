"""The ranks of an attempt: start them here, follow them wherever they run, end those that have no reason to run on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from vdbg_env.common.files import NotAFile, open_file, read_document
from vdbg_env.common.stop import PATIENCE_S, ToldToStop, in_background
from vdbg_env.evidence.finding import Artifact, Ended, EndedBy, Observation
from vdbg_env.record.masking import mask_artifact, redact_text
from vdbg_env.record.progress import from_document
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import write_json
from vdbg_env.run.attempt import (
    HOST,
    READ_LIMIT_S,
    READ_MORE_S,
    Check,
    InThread,
    OneRank,
    Stopped,
    digest_of,
    on_this_host,
)
from vdbg_env.run.orders import ENDED, KEY, NODE, SEAL, STOP, Orders, sealed
from vdbg_env.run.placement import Layout, StartedAttempt, StartedStep, StepPlacement, StepRunner
from vdbg_env.run.rank_record import observe
from vdbg_env.runbook.machine import master_port, ranked
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.watch import GROWTH, GrowingFiles

# What the ranks of an attempt wrote into its folder, for placements whose ranks run on other nodes.


SILENT_S = 3.0 * control_files.BEAT_S  # a supervisor that did not touch its file for so long is dead
_FORGED = "something else had written an end of this rank while it ran, which was passed over"


class RankRecords:
    """The records in one attempt's folder."""

    def __init__(self, directory: Path, orders: Orders) -> None:
        self._directory = directory
        self._orders = orders
        self._forged: set[int] = set()

    def read_ends(self, seen: dict[int, Observation], ranks: int) -> None:
        """Add the observations that the attempt's `ranks` have written since, each by its number.

        What is no rank's is passed over: the supervisor's own record, or its silence, counts. A rank that has ended
        writes over what another one's workload wrote in its name.
        """
        with suppress(FileNotFoundError):  # a workload can remove the folder
            for path in (self._directory / ENDED).iterdir():
                if path.name.isdecimal() and (rank := int(path.name)) < ranks and rank not in seen:
                    with suppress(NotAFile, ValueError):
                        document = read_document(path)
                        key = str(document.pop(KEY, "")) if isinstance(document, dict) else ""
                        found = from_document(Observation, document)
                        if found.rank != rank:
                            continue
                        if not self._is_sealed(rank, key):
                            self._forged.add(rank)
                            continue
                        note = (_FORGED,) if rank in self._forged else ()
                        seen[rank] = replace(found, notes=(*found.notes, *note))

    def _is_sealed(self, rank: int, key: str) -> bool:
        """Return whether a key is the one that the rank sealed before its workload began."""
        for folder in self._directory.glob(f"*-{rank}"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if read_document(folder / NODE)[SEAL] == sealed(key):
                    return True
        return False

    def any_started(self) -> bool:
        """Return whether a rank has made its folder."""
        return any(path.is_dir() for path in self._directory.glob("*-*"))

    def folder(self, rank: int) -> Path | None:
        """Return the folder of a rank; None where it made none."""
        found = sorted(path for path in self._directory.glob(f"*-{rank}") if path.is_dir())
        return found[-1] if found else None

    def half_written(self, folder: Path) -> Observation | None:
        """Return what is known of a rank whose supervisor wrote the workload's end, and which died before its own."""
        if not (folder / control_files.ENDED).exists():
            return None
        literals = tuple(os.fsencode(text) for text in self._orders.others.literals)
        seen = from_document(Observation, observe(self._orders, folder, None, literals, (), 0))
        where = self._orders.scratch
        note = f"it died before it could move its dumps: they are on {seen.host}, below {where}"
        return replace(seen, notes=(*seen.notes, note)) if where else seen

    def without_end(self, rank: int, ended: Ended, *, host: str = "", notes: tuple[str, ...] = ()) -> Observation:
        """Return the observation of a rank that left none; `host` where it is known."""
        folder = self.folder(rank)
        host = folder.name.rpartition("-")[0] if folder else host
        return Observation(
            step=self._orders.step,
            attempt=self._orders.attempt,
            rank=rank,
            host=host or "unknown",
            ended=ended,
            duration_s=0.0,
            directory=str(folder.relative_to(self._directory.parents[2])) if folder else "",
            notes=notes,
        )

    def lost(self, rank: int, why: str) -> Observation:
        """Return the observation of a rank that was lost with its node."""
        return self.without_end(rank, Ended(by=EndedBy.NODE_LOST, message=why))

    def silent_for(self, folder: Path) -> float:
        """Return the seconds since a supervisor last touched its file, both by the file server's clock."""
        now = self._directory / ".now"
        now.touch()
        try:
            # One of the future is not a beat: a supervisor that lives sets it to now.
            return abs(now.stat().st_mtime - (folder / control_files.LOCK).stat().st_mtime)
        except FileNotFoundError:
            return float("inf")
        finally:
            now.unlink()


# When the ranks of an attempt that still run are ended, and what their ends then mean.


NAME = "ending.json"  # in the attempt's folder: why its ranks were asked to end, for an engine that takes over
_LOOK_S = 1.0  # how often the sizes of dumps are read


class EndingRule:
    """Decides for one attempt; times are of the monotonic clock.

    A rank that failed ends the attempt: the others get `on_first_failure.wait` to end by themselves, and as long as
    one of their dumps grew in the last `quiet_s` seconds, up to `watch.dump_wait`. When the requests of rank 0 have
    been sent, all are ended.
    """

    def __init__(self, invocation: Invocation, directory: Path, *, quiet_s: float = 2.0) -> None:
        self._invocation = invocation
        self._path = directory / NAME
        globs = (*(rule.glob for rule in invocation.artifacts), GROWTH)
        self._dumps = GrowingFiles(str(directory), tuple(f"*/{glob}" for glob in globs))
        self._quiet_s = quiet_s
        self._failed_at: float | None = None
        self._looked_at = 0.0
        self._growing = False
        self.why = _recorded(self._path)

    def due(self, went_well: Mapping[int, bool], ranks: int) -> bool:
        """Return whether the ranks that still run are to be ended now; `went_well` has those that have ended."""
        if self.why or not went_well or len(went_well) == ranks:
            return False
        if all(went_well.values()):
            if self._invocation.driver is None or 0 not in went_well:
                return False
            self._ask(EndedBy.STOPPED)
            return True
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        waited = now - self._failed_at
        if waited < self._invocation.placement.on_first_failure.wait_s:
            return False
        if waited < self._invocation.watch.dump_wait_s and self._dumps_grow(now):
            return False
        self._ask(EndedBy.PEER)
        return True

    def meant(self, seen: Observation) -> Observation:
        """Return what was seen of a rank with the reason why we ended it in place of the signal it got."""
        if not self.why or seen.ended.by is not EndedBy.CANCEL:
            return seen
        return replace(seen, ended=replace(seen.ended, by=EndedBy(self.why), message=None))

    def _dumps_grow(self, now: float) -> bool:
        if now >= self._looked_at + _LOOK_S:
            self._looked_at = now
            self._growing = self._dumps.growing(now, quiet_s=self._quiet_s)
        return self._growing

    def _ask(self, why: EndedBy) -> None:
        self.why = why.value
        write_json(self._path, {"by": self.why})


def _recorded(path: Path) -> str:
    try:
        return EndedBy(read_document(path)["by"]).value
    except (FileNotFoundError, NotAFile, ValueError, KeyError, TypeError):  # none, or not an engine's
        return ""


# An attempt of several ranks: the one loop that follows them to their ends, wherever they run.


POLL_S = 0.1
AGAIN_S = 2.0  # how often what is away is asked again


class RunningRanks(Protocol):
    """The ranks of one attempt, where they run."""

    def look(self) -> Mapping[int, Observation]:
        """Return what was seen of each rank that has ended; raises HostNotAble when none could be started."""
        ...

    def end(self, *, firmly: bool) -> None:
        """Ask the ranks that still run to end, with their grace unless `firmly`; return at once."""
        ...

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Clean up after the last rank, and return what was seen with what is known only now."""
        ...


class RemoteRanks(RunningRanks):
    """Ranks on other nodes, known by the records that they write, and ended through their cluster."""

    def __init__(self, directory: Path, records: RankRecords, ranks: int) -> None:
        self._records = records
        self._ranks = ranks
        self._seen: dict[int, Observation] = {}
        self._request = EndRequest(directory, self._ask_to_end)

    def look(self) -> Mapping[int, Observation]:
        """Return the ends that ranks wrote, and those of ranks that will write none; see `RunningRanks.look`.

        Raises ToldToStop where the cluster does not let them be ended, and none has started: that one would end.
        """
        self._request.pursue()
        written = dict(self._seen)
        self._records.read_ends(written, self._ranks)
        if len(written) < self._ranks and self._request.unanswered and not self._records.any_started():
            raise ToldToStop
        for rank in written.keys() - self._seen.keys():
            if (found := self._explained(written[rank])) is not None:
                self._seen[rank] = found
        for rank in range(self._ranks):
            if rank not in written and (found := self._without_end(rank)) is not None:
                self._seen[rank] = found
        return self._seen

    def end(self, *, firmly: bool) -> None:
        """Have every rank ended, with its grace unless `firmly`."""
        self._request.ask(firmly=firmly)

    def _ask_to_end(self, times: int) -> bool:
        """Ask the cluster so often to end the ranks, and return whether it was asked; see `EndRequest`."""
        raise NotImplementedError

    def _explained(self, written: Observation) -> Observation | None:
        """Return an end with its reason, None while that may still become known."""
        return written

    def _without_end(self, rank: int) -> Observation | None:
        """Return what is known of a rank that wrote no end; None while it may still write one."""
        raise NotImplementedError


class FollowedAttempt:
    """A StartedAttempt of `count` ranks; the rule ends those that have no reason to run on."""

    def __init__(self, ranks: RunningRanks, count: int, rule: EndingRule) -> None:
        self._ranks = ranks
        self._count = count
        self._rule = rule
        self._cancelled = False

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait until every rank has ended, or is known to be lost; raises HostNotAble when none could be started."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while len(seen := self._ranks.look()) < self._count:
            if self._rule.due({rank: one.went_well for rank, one in seen.items()}, self._count):
                self._ranks.end(firmly=False)
            left = POLL_S if until is None else min(POLL_S, until - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)
        ends = self._ranks.closed([seen[rank] for rank in range(self._count)])
        return tuple(ends if self._cancelled else map(self._rule.meant, ends))

    def cancel(self, *, firmly: bool = False) -> None:
        """Have every rank ended, with its grace unless `firmly`."""
        self._cancelled = True
        self._ranks.end(firmly=firmly)


class Repeated:
    """A call in a thread, one at a time and with a pause after each: nothing waits for one."""

    def __init__(self) -> None:
        self._running: Future[None] | None = None
        self._next = 0.0

    def again(self, call: Callable[[], None]) -> None:
        """Start a call, unless one runs or has just ended; raises what the one that has ended raised."""
        if self._running is not None and self._running.done():
            ended, self._running = self._running, None
            self._next = time.monotonic() + AGAIN_S
            ended.result()
        if self._running is None and time.monotonic() >= self._next:
            self._running = in_background(call)


class EndRequest:
    """Ask ranks on other nodes to end: through the cluster, and by a file, as the cluster may be away.

    `send` gets how often they are still to be asked, and returns whether they were; it is called again until they
    were. Times are of the monotonic clock.
    """

    def __init__(self, directory: Path, send: Callable[[int], bool]) -> None:
        self._directory = directory
        self._send = send
        self._sending = Repeated()
        self._sent = 0
        self.times = 0
        self.asked_at: float | None = None
        self.sent_at: float | None = None

    def ask(self, *, firmly: bool) -> None:
        """Ask for the end, a second time where it is to come at once."""
        times = 2 if firmly else 1
        if times > self.times:
            self.times = times
            self.asked_at = self.asked_at or time.monotonic()
            with suppress(OSError):  # a full disk must not keep the cluster from being asked
                stop = open_file(self._directory / STOP, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                with os.fdopen(stop, "w") as file:
                    file.write(str(times))
        self.pursue()

    def pursue(self) -> None:
        """Have sent what was asked for and not sent yet."""
        if self.times > self._sent:
            self._sending.again(partial(self._send_up_to, self.times))

    @property
    def unanswered(self) -> bool:
        """Whether the cluster was asked a while ago, and has not answered yet."""
        asked_at = self.asked_at
        return asked_at is not None and self.sent_at is None and time.monotonic() > asked_at + PATIENCE_S

    def _send_up_to(self, times: int) -> None:
        if self._send(times - self._sent):
            self.sent_at = self.sent_at or time.monotonic()
            self._sent = times


# Several ranks on this machine: each is a process tree under a supervisor, all are one attempt.


_PORT = "master_port"  # in the attempt's folder, for an engine that takes over


class LocalRanks:
    """A StepPlacement of `ranks` that `runner` starts, or as many as the step asks for where that is None."""

    def __init__(self, runner: StepRunner, ranks: int | None = None) -> None:
        self._runner = runner
        self._ranks = ranks
        self._one = OneRank(runner)

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks; a single one has the folder that it always had."""
        ranks = self._count(invocation)
        return self._one.layout(invocation) if ranks == 1 else Layout(ranks=ranks)

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Start all ranks, the first one first; see `StepPlacement.start`."""
        ranks = self._count(invocation)
        if ranks == 1:
            return self._one.start(invocation, directory)
        steps = [self._started(invocation, directory, rank) for rank in range(ranks)]
        return FollowedAttempt(LocalSteps(steps), ranks, EndingRule(invocation, directory))

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over all ranks, and start those that the other engine had not started; see `StepPlacement.adopt`."""
        ranks = self._count(invocation)
        if ranks == 1:
            return self._one.adopt(invocation, directory)
        found = [self._adopted(invocation, directory, rank) for rank in range(ranks)]
        if not any(found):
            return None
        steps = [step or self._started(invocation, directory, rank) for rank, step in enumerate(found)]
        return FollowedAttempt(LocalSteps(steps), ranks, EndingRule(invocation, directory))

    def _count(self, invocation: Invocation) -> int:
        return self._ranks or invocation.placement.ranks

    def _started(self, invocation: Invocation, directory: Path, rank: int) -> StartedStep:
        folder = _folder(directory, rank)
        folder.mkdir(exist_ok=True)
        return self._runner.start(_of_rank(invocation, folder, rank, self._count(invocation)), folder)

    def _adopted(self, invocation: Invocation, directory: Path, rank: int) -> StartedStep | None:
        folder = _folder(directory, rank)
        return (
            self._runner.adopt(_of_rank(invocation, folder, rank, self._count(invocation)), folder)
            if folder.is_dir()
            else None
        )


class LocalSteps:
    """RunningRanks, each a step of this machine."""

    def __init__(self, steps: Sequence[StartedStep]) -> None:
        self._running = dict(enumerate(steps))
        self._seen: dict[int, Observation] = {}

    def look(self) -> Mapping[int, Observation]:
        """See `RunningRanks.look`."""
        for rank, step in tuple(self._running.items()):
            if (found := step.wait(0.0)) is not None:
                self._seen[rank] = found
                del self._running[rank]
        return self._seen

    def end(self, *, firmly: bool) -> None:
        """Have those that still run ended."""
        for step in self._running.values():
            step.cancel(firmly=firmly)

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Return what was seen."""
        return seen


def _folder(directory: Path, rank: int) -> Path:
    return directory / f"{HOST}-{rank}"


def _port(directory: Path) -> int:
    """Return the port at which the ranks of an attempt meet, free when the first of them was started."""
    path = directory / _PORT
    with suppress(OSError, ValueError):
        return int(path.read_text())
    first = master_port(str(directory))
    port = next((one for one in range(first, first + 1000) if _is_free(one)), first)
    path.write_text(str(port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _of_rank(invocation: Invocation, folder: Path, rank: int, ranks: int) -> Invocation:
    """Return what one rank runs."""
    both = ranked(invocation, ranks=ranks, nodes=1, master="127.0.0.1", port=_port(folder.parent))
    return on_this_host(both.others if rank else both.first, folder, rank)


# Steps whose artifacts get pseudonyms for hosts and addresses as soon as the step has ended.
#
# The output gets them on its way to the disk (`supervisor`); what the workload writes into its step's folder by itself,
# such as logs of NCCL, can be changed only afterwards. In binary files pseudonyms have the length of what they replace.


_HEAD = 8192  # a NUL in the first bytes is the mark of a binary file
_KEPT = (
    "not all artifacts have pseudonyms, as the run was being ended: vdbg-env runs redact --hosts replaces what is left"
)


class PseudonymousSteps:
    """A StepPlacement over another."""

    def __init__(self, placement: StepPlacement, redactor: Redactor) -> None:
        self._placement = placement
        self._redactor = redactor

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks of the other; see `StepPlacement.layout`."""
        return self._placement.layout(invocation)

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Start an attempt; see `StepPlacement.start`."""
        return _Attempt(self._placement.start(invocation, directory), directory, self._redactor)

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over an attempt; see `StepPlacement.adopt`."""
        attempt = self._placement.adopt(invocation, directory)
        return attempt and _Attempt(attempt, directory, self._redactor)


class _Attempt:
    def __init__(self, attempt: StartedAttempt, directory: Path, redactor: Redactor) -> None:
        self._attempt = attempt
        self._run = directory.resolve().parents[2]
        self._redactor = redactor
        self._naming: InThread[tuple[Observation, ...]] | None = None
        self._cancelled = False

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait for the end; what was left behind has its pseudonyms before it is returned."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        if self._naming is None:
            seen = self._attempt.wait(timeout_s)
            if seen is None:
                return None
            self._naming = InThread(lambda check: tuple(self._with_pseudonyms(one, check) for one in seen))
            if self._cancelled:
                self._naming.stop(READ_LIMIT_S)
        return self._naming.result(None if until is None else max(0.0, until - time.monotonic()))

    def cancel(self, *, firmly: bool = False) -> None:
        """Have all ranks ended; see `StartedAttempt.cancel`."""
        self._cancelled = True
        if self._naming is None:
            self._attempt.cancel(firmly=firmly)
        else:
            self._naming.stop(0.0 if firmly else READ_MORE_S)

    def _with_pseudonyms(self, seen: Observation, check: Check) -> Observation:
        notes: list[str] = []
        try:
            artifacts = {
                name: tuple(self._shown(one, notes, check) for one in found) for name, found in seen.artifacts.items()
            }
        except Stopped:
            artifacts, notes = dict(seen.artifacts), [*notes, _KEPT]
        return replace(seen, artifacts=artifacts, notes=(*seen.notes, *notes))

    def _shown(self, artifact: Artifact, notes: list[str], check: Check) -> Artifact:
        path = self._run / artifact.path
        with path.open("rb") as file:
            is_text = b"\0" not in file.read(_HEAD)
        if is_text:
            changed = redact_text(path, self._redactor, check=check)
        else:
            looked = mask_artifact(path, (), pseudonyms=self._redactor.pseudonyms, check=check)
            notes += [f"{path.name}: {looked.note}"] if looked.note else []
            changed = looked.masked > 0
        if not changed or not path.exists():  # it was withheld
            return artifact
        return replace(artifact, size=path.stat().st_size, sha256=digest_of(path, check))
