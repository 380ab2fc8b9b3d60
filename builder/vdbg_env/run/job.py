"""Turn an invocation into the job of a supervisor: the same for this machine, a container and a rank."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import re2

import vdbg_env
from vdbg_env.common.patterns import MatcherSpec
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.record.redactor import Pseudonyms, as_literals, secret_values
from vdbg_env.run.guarded import Guarded
from vdbg_env.runbook.model import SYNTHETIC, HangAction, Matcher, ServerDriver
from vdbg_env.runbook.state import OURS, Invocation
from vdbg_env.supervisor import helpers
from vdbg_env.supervisor.job import HangCommand, Job
from vdbg_env.supervisor.process_tree import KINDS

PACKAGES = Path(vdbg_env.__file__).parents[1]
RE2 = Path(re2.__file__).parent  # given to a supervisor, which is started without any package
LIBRARIES = (str(RE2.parent),)  # searched by a supervisor after its standard library
SUPERVISOR = Path("vdbg_env") / "supervisor"  # below the folder that holds the package


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What every step of a run has in common.

    `env` is the environment that a step's changes are merged into; where `inherits` is set, it is itself merged into
    that of the supervisor, which in a container the engine made, and of which `inherited` is what is known beforehand.
    `mark` names the run. `python` is what the supervisor is started with, `packages` the folder with our package, and
    `libraries` those with RE2, all as seen where steps run. `hang_tools` names what to run for a hang action, with
    `{pid}` for a process; `gpu_probe` prints the load of each GPU again and again; `disk_floor` is in bytes;
    `sensitive` are values that must not be kept, in addition to those of variables with a telling name; `cgroups` are
    the kinds that may hold a step's processes; `guarded` is given by `vdbg-env guard` alone.
    """

    env: Mapping[str, str]
    cwd: Path
    mark: str
    inherits: bool = False
    inherited: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    packages: Path = PACKAGES
    libraries: tuple[str, ...] = LIBRARIES
    hang_tools: Mapping[HangAction, HangCommand] = field(default_factory=dict)
    gpu_probe: tuple[str, ...] = ()
    disk_floor: int = 0
    sensitive: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = KINDS
    pseudonyms: Pseudonyms | None = None
    guarded: Guarded | None = None

    @property
    def interpreter(self) -> tuple[str, ...]:
        """The start of each of our commands: no user's packages, no variable that changes Python."""
        return (self.python, "-I", "-S")

    @property
    def supervisor(self) -> tuple[str, ...]:
        """The command of a supervisor, which gets its job on its standard input."""
        return (*self.interpreter, str(self.packages / SUPERVISOR / "__main__.py"), *self.libraries)


def mark_of(settings: StepSettings, invocation: Invocation, directory: Path) -> str:
    """Return what names an attempt on one rank among all of this machine."""
    return f"{settings.mark}/{invocation.step}/{directory.parent.name}/{directory.name}"


def job_for(invocation: Invocation, directory: Path, settings: StepSettings) -> Job:
    """Turn an invocation into a supervisor's job."""
    guarded = settings.guarded
    if guarded:
        invocation = guarded.without_the_users(invocation, settings.env)
    env = {**settings.env, **OURS, **invocation.hooks}
    for name, value in invocation.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    env[helpers.MARK] = mark_of(settings, invocation, directory)
    watch = invocation.watch
    literals = (
        *secret_values(settings.inherited),
        *secret_values(env, invocation.argv),
        *as_literals(settings.sensitive),
    )
    return Job(
        directory=str(directory),
        argv=invocation.argv,
        env=env,
        inherit=settings.inherits,
        unset=tuple(name for name, value in invocation.env.items() if value is None),
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
        matchers=tuple(_matcher(m, invocation.decisive) for m in invocation.matchers),
        literals=tuple(os.fsdecode(x) for x in literals),
        pseudonym_key=settings.pseudonyms.key.hex() if settings.pseudonyms else "",
        pseudonym_hosts=settings.pseudonyms.hosts if settings.pseudonyms else (),
        disk_floor=settings.disk_floor,
        driver=_driver(invocation.driver, settings) if invocation.driver else (),
        server=invocation.server,
        listens=invocation.listens,
        alarm=invocation.alarm,
        cgroups=settings.cgroups,
        guard=os.getpid() if guarded else 0,
        live=guarded.streams[1:] if guarded else (),
        stdin=guarded.standard_input if guarded else -1,
        starts=guarded.starts if guarded else -1,
    )


def _matcher(matcher: Matcher, decisive: tuple[str, ...]) -> MatcherSpec:
    return MatcherSpec(
        name=matcher.name,
        pattern=matcher.pattern,
        source=matcher.source,
        take=matcher.take,
        stop=matcher.stop,
        decisive=matcher.name in decisive,
    )


def _driver(driver: ServerDriver, settings: StepSettings) -> tuple[str, ...]:
    document = {
        "ready_url": driver.ready.http,
        "ready_timeout_s": driver.ready.timeout_s,
        "replay": driver.replay if driver.replay == SYNTHETIC else str(settings.cwd / driver.replay),
        "concurrency": driver.concurrency,
    }
    return (*settings.interpreter, str(settings.packages / SUPERVISOR / "request_driver.py"), json.dumps(document))


def _signal_number(name: str) -> int:
    return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value


# What is run to look at a workload that hangs, and to see whether its GPUs are at work.


_DUMP_LIMIT_S = 600.0
_RAS_LIMIT_S = 30.0
PROBE_PERIOD_S = 2


def hang_tools(
    programs: ProgramRunner, *, python: str = sys.executable, packages: Path = PACKAGES
) -> dict[HangAction, HangCommand]:
    """Return the commands for the hang actions that can be done where steps run; `programs` are those available there.

    The core-dump pipes are fired by a separate process, because a supervisor outlives the engine that could.
    """
    place = f"import sys; sys.path.insert(0, {str(packages)!r})"
    fire = f"{place}; from vdbg_env.crash.dump import main; sys.exit(main(int(sys.argv[1])))"
    ras = f"{place}; from vdbg_env.run.nccl_ras import main; sys.exit(main())"
    tools: dict[HangAction, HangCommand] = {
        "nccl-ras": HangCommand(name="nccl-ras", argv=(python, "-I", "-S", "-c", ras), timeout_s=_RAS_LIMIT_S),
        "gpu-coredump": HangCommand(
            name="gpu-coredump", argv=(python, "-I", "-S", "-c", fire, "{pid}"), timeout_s=_DUMP_LIMIT_S
        ),
    }
    spy = programs.which("py-spy")
    if spy:
        tools["py-spy"] = HangCommand(
            name="py-spy", argv=(spy, "dump", "--pid", "{pid}"), each="python", stopped=("--nonblocking",)
        )
    return tools


def gpu_probe(programs: ProgramRunner, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that prints the load of each GPU the workload may use, again and again; none without one."""
    program = programs.which("nvidia-smi")
    if program is None:
        return ()
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    only = (f"--id={visible}",) if visible and "-1" not in visible else ()
    query = "--query-gpu=index,utilization.gpu"
    return (program, *only, query, "--format=csv,noheader,nounits", f"--loop={PROBE_PERIOD_S}")
