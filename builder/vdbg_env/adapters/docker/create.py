"""Create, start and remove containers: the one place that does, with the same restrictions for all of them."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from docker import errors, types

from vdbg_env.adapters.docker.attach import open_streams
from vdbg_env.adapters.docker.client import GONE, OUR_LABEL, Engine, engine_errors, explain, no_such_image
from vdbg_env.adapters.docker.host_config import host_options
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError
from vdbg_env.image.settings import DUMPS, Gpu, RunSettings, Ulimit
from vdbg_env.supervisor.processes.proc import boot_id, process

_PODMANS = {"nofile", "nproc"}  # it asks for a million of each, which it may not have itself
PURPOSE = f"{OUR_LABEL}.purpose"
OWNER = f"{OUR_LABEL}.owner"  # the process that made a container, and removes it unless it is killed
_HELPERS = {"look", "look-inside", "dumps"}
_ABANDONED_S = 7 * 24 * 3600.0  # how long an ended container may wait for an owner that nothing is known of

# setrlimit(2)'s numbers, by which runc reports a limit that it could not set; crun reports its name.
_RLIMITS = {"3": "stack", "4": "core", "6": "nproc", "7": "nofile", "8": "memlock"}
_RLIMIT_REFUSED = re.compile(
    r"error setting rlimit(?:s for ready process: error setting rlimit)? type (\d+)|setrlimit `?RLIMIT_(\w+)"
)


@dataclass(frozen=True, kw_only=True)
class NewContainer:
    """A container to create.

    `purpose` and `labels` become labels. With `replaces_entrypoint` the command runs instead of the image's own entry
    point. `init` adds a first process that reaps children. `log` False keeps no copy of the output in the engine.
    """

    settings: RunSettings
    purpose: str
    labels: Mapping[str, str] = field(default_factory=dict)
    replaces_entrypoint: bool = False
    stdin: bool = False
    init: bool = True
    log: bool = True


def tool_container(image: str, argv: Sequence[str], purpose: str, **settings: Any) -> NewContainer:
    """Return a container for one program of an image: without network, GPU and capabilities."""
    bare = RunSettings(
        image=image, command=tuple(argv), capabilities=(), seccomp="default", ulimits=(), gpu=Gpu(by="none"),
        dumps=None, network="none", pids=4096,
    )  # fmt: skip
    return NewContainer(settings=replace(bare, **settings), purpose=purpose, replaces_entrypoint=True)


@contextmanager
def created(engine: Engine, wanted: NewContainer) -> Iterator[str]:
    """Create a container and remove it at the end, started or not."""
    container = _create(engine, wanted)
    try:
        yield container
    finally:
        _remove(engine, container)


@contextmanager
def started(
    engine: Engine,
    wanted: NewContainer,
    refused: Callable[[Ulimit], None],
    *,
    attach: bool = False,
    keep: bool = False,
    prepare: Callable[[str], object] = lambda _: None,
) -> Iterator[tuple[str, Any]]:
    """Start a container, attached before it prints anything; remove it at the end, unless `keep` and all went well.

    `prepare` gets the container before it starts. `refused` gets each limit that the engine may not set; the container
    is then created again without it. Such a refusal shows only at the start (runc sets the limits): dockerd cannot
    exceed its own without CAP_SYS_RESOURCE.
    """
    while True:
        container = _create(engine, wanted)
        done = False
        try:
            with ExitStack() as streams:
                limit = None
                prepare(container)
                try:
                    # Podman prepares a container, limits included, when it is attached to; Docker when it is started.
                    stream = streams.enter_context(_streams(engine, container, wanted)) if attach else None
                    engine.client.start(container)
                except errors.APIError as error:
                    limit = refused_limit(str(error))
                    if limit is None:
                        raise start_error(str(error), wanted.settings) or explain(error, engine.endpoint) from error
                except GONE as error:
                    raise explain(error, engine.endpoint) from error
                else:
                    for dropped in dropped_limits(engine, container, wanted.settings):
                        refused(dropped)
                    yield container, stream
                    done = keep
                    return
        finally:
            if not done:
                _remove(engine, container)
        wanted = replace(wanted, settings=_accepted(wanted.settings, limit, refused))


def dropped_limits(engine: Engine, container: str, settings: RunSettings) -> tuple[Ulimit, ...]:
    """Return the limits that were asked for and that the container does not have: rootless Podman sets none."""
    if not engine.is_podman or not settings.ulimits:
        return ()
    has = engine.client.inspect_container(container)["HostConfig"].get("Ulimits") or ()
    names = {str(limit.get("Name")).removeprefix("RLIMIT_").lower() for limit in has}
    return tuple(limit for limit in settings.ulimits if limit.name not in names)


def _accepted(settings: RunSettings, name: str, refused: Callable[[Ulimit], None]) -> RunSettings:
    """Return the settings without the limit that was refused, or, where it is not ours, with what this process has."""
    ours = next((limit for limit in settings.ulimits if limit.name == name), None)
    if ours is not None and name not in _PODMANS:
        refused(ours)
        return without(settings, ours)
    if ours is not None or name not in _PODMANS:
        raise EngineFailed(f"the engine may not set the limit {name} of a container", next_step="vdbg-env doctor")
    number = resource.RLIMIT_NOFILE if name == "nofile" else resource.RLIMIT_NPROC
    hard = min(value for value in (resource.getrlimit(number)[1], settings.pids) if value > 0)
    own = Ulimit(name="nofile" if name == "nofile" else "nproc", soft=hard, hard=hard, fallback="too few for a server")
    return replace(settings, ulimits=(*settings.ulimits, own))


def _streams(engine: Engine, container: str, wanted: NewContainer) -> AbstractContextManager[Any]:
    return open_streams(engine.client, container, interactive=wanted.stdin)


def _remove(engine: Engine, container: str) -> None:
    with suppress(errors.APIError, *GONE):  # already removed, or gone with its engine
        engine.client.remove_container(container, force=True, v=True)


def without(settings: RunSettings, limit: Ulimit) -> RunSettings:
    """Return the settings without one limit."""
    return replace(settings, ulimits=tuple(other for other in settings.ulimits if other != limit))


def refused_limit(text: str) -> str | None:
    """Return the name of the limit that the engine reports as one it may not set."""
    found = _RLIMIT_REFUSED.search(text)
    return (_RLIMITS.get(found[1]) if found[1] else found[2].lower()) if found else None


def remove_abandoned(engine: Engine) -> None:
    """Remove what killed programs of this machine left: helper containers, and others that have ended.

    The container of a step outlives its program by design, and is its run's to remove; one that has ended goes after a
    week. What runs for a user (`vdbg-env run`) is never ended here.
    """
    engine.looked_for_abandoned = True
    for found in engine.client.containers(all=True, filters={"label": [OWNER, PURPOSE]}):
        labels, runs = found["Labels"], found["State"] in {"running", "paused", "restarting"}
        purpose = labels[PURPOSE]
        is_ours_to_end = not runs or purpose in _HELPERS
        is_left = is_ours_to_end and (
            (purpose != "step" and _is_dead(labels[OWNER])) or (not runs and _ended_for(engine, found) > _ABANDONED_S)
        )
        if is_left and is_own(engine, found):
            _remove(engine, found["Id"])


def is_own(engine: Engine, found: Mapping[str, Any]) -> bool:
    """Return whether a container of a list has its owner from us, not from its image.

    `docker commit` of our container gives the image our labels, and the image gives them to a user's containers.
    """
    try:
        image = engine.client.inspect_image(found["ImageID"])  # type: ignore[no-untyped-call]
    except errors.NotFound:  # it was removed by force: whose the container is cannot be known
        return False
    return bool((image["Config"].get("Labels") or {}).get(OWNER) != found["Labels"].get(OWNER))


def _ended_for(engine: Engine, found: Mapping[str, Any]) -> float:
    """Return the seconds since a container ended, or since it was made where it never ran."""
    made: float = found["Created"]
    if time.time() - made <= _ABANDONED_S:
        return 0.0
    try:
        ended = engine.client.inspect_container(found["Id"])["State"]["FinishedAt"]
    except errors.NotFound:
        return 0.0
    # One that ran for weeks has its end in none of the fields of a list. The year is 1 where it never ran.
    return time.time() - max(made, datetime.fromisoformat(ended).timestamp())


def _me() -> str:
    """Return what names this process, also to programs in other process namespaces, or after a reboot."""
    me = process(os.getpid())
    return f"{_place()} {os.getpid()} {me.start if me else 0}"


def _place() -> str:
    return f"{boot_id()} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116


def _is_dead(owner: str) -> bool:
    """Return whether an owner is known to have ended: one of another machine, or namespace, is not known."""
    place, _, of_process = owner.rpartition(" ")
    place, _, pid = place.rpartition(" ")
    if place != _place() or not pid.isdigit():
        return False
    found = process(int(pid))
    if found is not None:
        return str(found.start) != of_process
    try:
        os.kill(int(pid), 0)
    except OSError as error:
        return error.errno == errno.ESRCH  # or another user's, which /proc mounted with hidepid does not show
    return False


def _create(engine: Engine, wanted: NewContainer) -> str:
    client, settings = engine.client, wanted.settings
    if not engine.looked_for_abandoned:
        with engine_errors(engine.endpoint):
            remove_abandoned(engine)
    command = list(settings.command)
    options = host_options(engine, settings) | {"init": wanted.init}
    if not wanted.log:
        options["log_config"] = types.LogConfig(type="none")
    with engine_errors(engine.endpoint):
        try:
            made = client.create_container(
                settings.image,
                entrypoint=command[:1] if wanted.replaces_entrypoint else None,
                command=(command[1:] if wanted.replaces_entrypoint else command) or None,
                environment=dict(settings.env),
                name=settings.name,
                user=settings.user,
                working_dir=settings.folder,
                tty=settings.interactive,
                stdin_open=settings.interactive or wanted.stdin,
                ports=list(settings.ports) or None,
                labels={PURPOSE: wanted.purpose, OWNER: _me(), **wanted.labels},
                stop_timeout=settings.stop_grace_s,
                host_config=client.create_host_config(**options),
            )
        except errors.ImageNotFound as error:
            raise no_such_image(settings.image) from error
        except errors.APIError as error:
            if wanted.init and "container-init binary not found" in str(error):  # Podman without catatonit
                return _create(engine, replace(wanted, init=False))
            raise create_error(str(error)) or error from error
    return str(made["Id"])


def create_error(text: str) -> VdbgError | None:
    """Return the error for a container that could not be created, if its message is known."""
    if "bind source path does not exist" in text:
        path = text.rpartition("does not exist:")[2].strip(' ."()')
        return HostNotAble(
            f"the engine's machine does not have {path!r}",
            cause="a mistyped path, or an engine on another machine (DOCKER_HOST), or in a virtual one without it",
            next_step=f"ls -ld {shlex.quote(path)}; vdbg-env doctor shows which engine it is",
        )
    if "Duplicate mount point" in text:
        path = text.rpartition(":")[2].strip(' ."()')
        return BadInput(
            f"two things would be mounted at {path}",
            cause="/dumps is the place of the dump volume" if path == DUMPS else "--mount names it twice",
            next_step="--dumps FOLDER keeps dumps in that folder; --mount SRC:/ELSEWHERE shows it at another place",
        )
    return None


def start_error(text: str, settings: RunSettings) -> VdbgError | None:
    """Return the error for a container that could not be started, if its message is known."""
    if "could not select device driver" in text or "unresolvable CDI devices" in text:
        other = "runtime" if settings.gpu.by == "cdi" else "cdi"
        return EngineFailed(
            f"the engine cannot give the container GPUs by {settings.gpu.by}",
            cause="the NVIDIA container toolkit is not installed, or not configured for this engine",
            next_step=f"vdbg-env doctor; or --gpu {other}, or --gpu none for work that needs no GPU",
        )
    if "port is already allocated" in text or "address already in use" in text:
        return EngineFailed("a requested port is in use on this machine", next_step="choose another with --port")
    if "unable to find user" in text or "no matching entries in passwd" in text:
        return BadInput(
            f"{settings.image} has no user {settings.user!r}", next_step="--user with a number, as in --user 0"
        )
    program = (*settings.command, "")[0]
    if f'"{program}"' in text and ("executable file not found" in text or "no such file or directory" in text):
        return BadInput(
            f"{settings.image} has no {program}",
            cause="each step is supervised by a small program in its container, which needs Python 3.11 or later"
            if program == "python3"
            else "it is not installed in this image, or not on its PATH",
            next_step="an image of vdbg-env build has Python; else add it: RUN apt-get install -y python3"
            if program == "python3"
            else f"docker run --rm --entrypoint sh {settings.image} -c 'echo $PATH', to see where it looks",
        )
    if "is not a directory" in text or "not a directory" in text:
        return BadInput(f"{settings.image} cannot be mounted into: {text}", next_step="another target for --mount")
    return None
