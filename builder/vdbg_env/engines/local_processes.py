"""Runs steps as process trees of this machine, each under a supervisor that needs this program for nothing.

Everything that must hold while a workload runs (its output, limits, watches and its end) is the supervisor's; here an
attempt is prepared, started or adopted, and what it left behind is read.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vdbg_env.engines.left_behind import observation
from vdbg_env.engines.needles import needles
from vdbg_env.engines.scribe import ending, helpers, lock_file, orders, process_tree
from vdbg_env.engines.supervisors import Supervisors
from vdbg_env.evidence.observation import Observation
from vdbg_env.record.redaction import Pseudonyms
from vdbg_env.record.secrets import as_literals, secret_values
from vdbg_env.runbook.invocation import HangAction, Invocation, Matcher, ServerDriver

_DRIVER = Path(orders.__file__).with_name("driver.py")
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """What every step on this machine has in common.

    `env` is the whole environment a step's delta is laid over; `hang_tools` says what to run for a hang action, with
    `{pid}` for a process; `gpu_probe` prints the load of each GPU again and again; `disk_floor` is in bytes;
    `sensitive` are values that must not be kept, beside those of variables with a telling name.
    """

    env: Mapping[str, str]
    cwd: Path
    mark: str
    hang_tools: Mapping[HangAction, orders.HangCommand] = field(default_factory=dict)
    gpu_probe: tuple[str, ...] = ()
    disk_floor: int = 0
    sensitive: tuple[str, ...] = ()
    pseudonyms: Pseudonyms | None = None


class LocalProcesses:
    """A StepRunner for this machine."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._supervisors = Supervisors()

    def start(self, invocation: Invocation, directory: Path) -> LocalStep:
        """Start an attempt; see `StepRunner.start`."""
        order = _order(invocation, directory.resolve(), self._settings)
        process = self._supervisors.start(directory.resolve(), orders.to_json(order))
        return LocalStep(invocation, directory.resolve(), order, process)

    def adopt(self, invocation: Invocation, directory: Path) -> LocalStep | None:
        """Take over an attempt: it runs, it has ended, or it is lost; see `StepRunner.adopt`."""
        where = directory.resolve()
        if not (where / ending.NAME).exists() and not lock_file.was_started(str(where)):
            return None
        return LocalStep(invocation, where, _order(invocation, where, self._settings), None)


class LocalStep:
    """A StartedStep under its supervisor; `process` is None when another engine started it."""

    def __init__(
        self, invocation: Invocation, directory: Path, order: orders.Orders, process: subprocess.Popen[bytes] | None
    ) -> None:
        self._invocation = invocation
        self._directory = directory
        self._order = order
        self._process = process

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait for `ended.json`; an end that nobody wrote is `engine_lost`, and what still runs of it is killed."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._directory / ending.NAME).exists():
            if not lock_file.is_held(str(self._directory)) and not (self._directory / ending.NAME).exists():
                self._sweep()
                break
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._sleep(left)
        if self._process is not None:
            self._process.wait()
        literals = tuple(os.fsencode(x) for x in self._order.literals)
        return observation(self._invocation, self._directory, literals)

    def cancel(self, *, firmly: bool = False) -> None:
        """Ask the supervisor to end the tree; a second asking is firm."""
        pid = lock_file.holder(str(self._directory))
        for _ in range(2 if firmly else 1):
            if pid is not None and lock_file.is_held(str(self._directory)):
                os.kill(pid, signal.SIGTERM)
                time.sleep(0.02 if firmly else 0)  # two signals at once would be seen as one

    def _sleep(self, left: float | None) -> None:
        """Sleep until the supervisor ends, or for a while where that cannot be waited for."""
        pid = lock_file.holder(str(self._directory))
        try:
            descriptor = os.pidfd_open(pid) if pid is not None else -1
        except OSError:
            descriptor = -1
        if descriptor < 0:
            time.sleep(_POLL_S if left is None else min(left, _POLL_S))
            return
        try:
            select.select([descriptor], [], [], left)
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Kill what a lost supervisor left: its first child died with it, that child's orphans did not."""
        mark = self._order.env[helpers.MARK].encode()
        for _ in range(200):
            left = process_tree.marked(helpers.MARK.encode(), mark)
            if not left:
                return
            process_tree.send(left, signal.SIGKILL)
            time.sleep(0.01)


def _order(invocation: Invocation, directory: Path, settings: LocalSettings) -> orders.Orders:
    """Turn an invocation into a supervisor's orders."""
    env = {**settings.env}
    for name, value in invocation.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    env[helpers.MARK] = f"{settings.mark}/{invocation.step}/{directory.parent.name}/{directory.name}"
    watch = invocation.watch
    literals = (*secret_values(env), *as_literals(settings.sensitive))
    return orders.Orders(
        directory=str(directory),
        argv=invocation.argv,
        env=env,
        cwd=str(settings.cwd),
        overlay=dict(invocation.env) if invocation.verify_env else {},
        timeout_s=invocation.timeout_s,
        kill_signal=_signal_number(invocation.kill.signal),
        grace_s=invocation.kill.grace_s,
        output_idle_s=watch.output_idle_s,
        gpu_idle_s=watch.gpu_idle_s,
        gpu_pinned_s=watch.gpu_pinned_s,
        gpu_probe=settings.gpu_probe,
        hang_stacks="stacks" in watch.on_hang,
        hang_commands=tuple(settings.hang_tools[a] for a in watch.on_hang if a in settings.hang_tools),
        dump_wait_s=watch.dump_wait_s,
        growing=tuple(rule.glob for rule in invocation.artifacts),
        output_limit=invocation.output.limit,
        output_keep=invocation.output.keep,
        matchers=tuple(_matcher(m) for m in invocation.matchers),
        literals=tuple(os.fsdecode(x) for x in literals),
        pseudonym_key=settings.pseudonyms.key.hex() if settings.pseudonyms else "",
        pseudonym_hosts=settings.pseudonyms.hosts if settings.pseudonyms else (),
        disk_floor=settings.disk_floor,
        driver=_driver(invocation.driver, settings.cwd) if invocation.driver else (),
    )


def _matcher(matcher: Matcher) -> orders.MatcherOrder:
    return orders.MatcherOrder(
        name=matcher.name,
        pattern=matcher.pattern,
        source=matcher.source,
        take=matcher.take,
        stop=matcher.stop,
        needles=needles(matcher.pattern),
    )


def _driver(wanted: ServerDriver, cwd: Path) -> tuple[str, ...]:
    document = {
        "ready_url": wanted.ready_url,
        "ready_timeout_s": wanted.ready_timeout_s,
        "replay": str(cwd / wanted.replay) if wanted.replay else None,
    }
    return (sys.executable, "-I", "-S", str(_DRIVER), json.dumps(document))


def _signal_number(name: str) -> int:
    return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
