"""Create, start and remove containers: the one place that does, with the same restrictions for all of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import requests
from docker import APIClient, errors, types
from docker.utils import socket as frames

from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, Interrupted, VdbgError, quoted
from vdbg_env.common.programs import Completed
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine.client import GONE, OUR_LABEL, Engine, engine_errors, explain, no_such_image
from vdbg_env.engine.dump_folder import FolderDumps
from vdbg_env.engine.request import GpuAccess, StoredImage
from vdbg_env.image.plan import LABEL_DIGEST
from vdbg_env.image.settings import DUMPS, SECCOMP_FILE, DumpVolume, Gpu, RunSettings, Ulimit
from vdbg_env.record.run_directory import disarm
from vdbg_env.supervisor.proc import boot_id, process

# Turn run settings into the host side of a container, as the engine's API takes it.


def host_options(engine: Engine, settings: RunSettings) -> dict[str, Any]:
    """Return the arguments of the client's `create_host_config`; a missing dump volume is created."""
    options: dict[str, Any] = {
        "cap_drop": ["ALL"],
        "cap_add": list(settings.capabilities),
        "security_opt": _security(engine, settings),
        "ulimits": [types.Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in settings.ulimits],
        "pids_limit": settings.pids,
        # A mount of this form fails on a missing folder; the older `binds` would create it.
        "mounts": [
            types.Mount(type="bind", source=m.source, target=m.target, read_only=m.read_only) for m in settings.mounts
        ],
    }
    if settings.network == "none":
        options["network_mode"] = "none"
    elif engine.is_podman:  # what `podman run` takes; over the socket the default is a bridge, which needs root
        options["network_mode"] = "private"
    if settings.ipc == "host":
        options["ipc_mode"] = "host"
    else:
        options["shm_size"] = settings.shm_bytes
    if settings.memory is not None:
        options |= {"mem_limit": settings.memory, "memswap_limit": settings.memory}
    if settings.ports:
        options["port_bindings"] = {port: ("127.0.0.1", port) for port in settings.ports}
    if request := gpu_request(settings.gpu):
        options["device_requests"] = [request]
    if settings.dumps:
        options["mounts"].insert(0, _dump_mount(engine, settings.dumps))
    return options


def gpu_request(gpu: Gpu) -> types.DeviceRequest | None:
    """Return the engine's request for these GPUs."""
    match gpu.by:
        case "cdi":
            return types.DeviceRequest(driver="cdi", count=0, device_ids=list(gpu.names))
        case "runtime" if gpu.devices:
            return types.DeviceRequest(device_ids=list(gpu.devices), capabilities=[["gpu"]])
        case "runtime":
            return types.DeviceRequest(count=-1, capabilities=[["gpu"]])
        case _:
            return None


@contextmanager
def without_set_ids(dumps: DumpVolume | None) -> Iterator[None]:
    """Disarm the files of a dump folder that changed within the block; no container gets CAP_MKNOD unless asked to."""
    since = time.time_ns()
    try:
        yield
    finally:
        if dumps is not None and dumps.kind == "bind":
            disarm(Path(dumps.source), since_ns=since)


def _security(engine: Engine, settings: RunSettings) -> list[str]:
    # Folders of the user are closed to containers under SELinux, and must not be relabelled.
    labels = ["label=disable"] if settings.mounts else []
    options = ["no-new-privileges", *labels]
    match settings.seccomp:
        case "ptrace":
            return [f"seccomp={_seccomp_profile(engine)}", *options]
        case "unconfined":
            return ["seccomp=unconfined", *options]
        case "default":
            return options


def _seccomp_profile(engine: Engine) -> str:
    """Return the profile as the engine takes it: Docker takes its text, Podman the path of a file on its machine."""
    file = SHIPPED_DATA / "templates" / SECCOMP_FILE
    return str(file) if engine.is_podman else json.dumps(json.loads(file.read_bytes()))


def _dump_mount(engine: Engine, dumps: DumpVolume) -> types.Mount:
    if dumps.kind == "bind":
        try:
            # Closed to others: root of a container may leave anything here.
            missing = not Path(dumps.source).exists()
            Path(dumps.source).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot create the dump folder {dumps.source}: {error.strerror}",
                next_step="name a folder that you may write to",
            ) from error
        if missing:
            FolderDumps(Path(dumps.source)).adopt()
    else:
        with suppress(errors.APIError):  # it exists already
            engine.client.create_volume(dumps.source, labels={f"{OUR_LABEL}.purpose": "dumps"})
    return types.Mount(target=DUMPS, source=dumps.source, type=dumps.kind)


# Connect a container to this program's streams, as a terminal or as plain output.


@contextlib.contextmanager
def open_streams(client: APIClient, container: str, *, interactive: bool) -> Iterator[Any]:
    """Attach to a container that has not started yet: nothing that it prints is lost."""
    parameters = {"stdout": 1, "stderr": 1, "stream": 1, "stdin": int(interactive)}
    stream: Any = client.attach_socket(container, params=parameters)
    try:
        yield stream
    finally:
        # The client returns one layer of three, and closing it leaves the others open; it has no public way to them.
        for layer in (getattr(stream, "_response", None), stream, socket_of(stream)):
            if layer is not None:
                layer.close()


def copy_streams(client: APIClient, container: str, stream: Any, *, interactive: bool) -> None:
    """Copy a container's output here until it ends; on a terminal, copy the keys typed there too."""
    if interactive:
        with _raw_terminal(), _following_size(client, container):
            _talk(socket_of(stream))
    else:
        _print(stream)


def _print(stream: Any) -> None:
    for number, data in frames.frames_iter(stream, tty=False):  # type: ignore[no-untyped-call]
        target = sys.stderr if number == frames.STDERR else sys.stdout
        target.buffer.write(data)
        target.buffer.flush()


def _talk(connection: socket.socket) -> None:
    """Copy both ways until the container closes its side."""
    keyboard = sys.stdin.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(keyboard, selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.fd == keyboard:
                    typed = os.read(keyboard, 4096)
                    if typed:
                        connection.sendall(typed)
                    else:
                        selector.unregister(keyboard)
                    continue
                shown = connection.recv(1 << 16)
                if not shown:
                    return
                os.write(sys.stdout.fileno(), shown)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the container, Ctrl-C too, and restore the terminal."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setraw(keyboard, termios.TCSADRAIN)  # the default would throw away what was typed ahead
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _following_size(client: APIClient, container: str) -> Iterator[None]:
    def resize(_number: int = 0, _frame: FrameType | None = None) -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(errors.APIError):  # the container has just ended
            client.resize(container, height=size.lines, width=size.columns)

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def socket_of(stream: Any) -> socket.socket:
    """Return the socket below the client's stream, which is a private attribute for unix sockets."""
    found: socket.socket = getattr(stream, "_sock", stream)
    return found


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
            next_step=f"ls -ld {quoted(path)}; vdbg-env doctor shows which engine it is",
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


# Run debug containers, and find the images and GPUs for them.


Tell = Callable[[str], None]
_NOT_FOUND = 127  # the status by which an init, like a shell, says that there is no such program
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerContainers:
    """`ContainerRunner` on Docker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def images(self) -> tuple[StoredImage, ...]:
        """See `ContainerRunner.images`."""
        with engine_errors(self._engine.endpoint):
            found = self._engine.client.images(filters={"label": LABEL_DIGEST})
        images = (
            StoredImage(
                image_id=image["Id"],
                names=tuple(t for t in image.get("RepoTags") or () if t != "<none>:<none>"),
                created=float(image["Created"]),
                size=int(image["Size"]),
                labels=dict(image.get("Labels") or {}),
            )
            for image in found
        )
        return tuple(sorted(images, key=lambda image: image.created, reverse=True))

    def gpu_access(self) -> GpuAccess:
        """See `ContainerRunner.gpu_access`."""
        with engine_errors(self._engine.endpoint):
            info = self._engine.client.info()
        return gpu_access(info, has_gpu=has_gpu())

    def run(self, settings: RunSettings, tell: Tell) -> int:
        """See `ContainerRunner.run`."""
        client = self._engine.client
        begun = started(self._engine, _debug(settings), _note(tell), attach=True)
        with without_set_ids(settings.dumps), begun as (container, stream):
            try:
                copy_streams(client, container, stream, interactive=settings.interactive)
                status = int(client.wait(container, timeout=None)["StatusCode"])
                if status == _NOT_FOUND and settings.command:
                    self._name_missing(container, settings, tell)
                return status
            except (KeyboardInterrupt, Interrupted):
                tell(f"stopping the container: it gets {settings.stop_grace_s} s to write its dumps; again ends it now")
                self._stop(container, settings.stop_grace_s)
                raise
            except GONE as error:
                raise explain(error, self._engine.endpoint) from error

    @contextmanager
    def started(self, settings: RunSettings, tell: Tell) -> Iterator[str]:
        """Start a container in the background, and remove it when the block ends."""
        with started(self._engine, _debug(settings), _note(tell)) as (container, _):
            yield container

    def execute(self, container: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Completed:
        """Run one more program in a started container and return what it printed."""
        client = self._engine.client
        with engine_errors(self._engine.endpoint):
            made = client.exec_create(container, list(argv), environment=dict(env or {}))
            out, err = client.exec_start(made["Id"], demux=True)
            code = client.exec_inspect(made["Id"])["ExitCode"]
        return Completed(
            argv=tuple(argv),
            code=code,
            stdout=(out or b"").decode("utf-8", "replace"),
            stderr=(err or b"").decode("utf-8", "replace"),
        )

    def _name_missing(self, container: str, settings: RunSettings, tell: Tell) -> None:
        """Say it in words where the image lacks the program: its init names neither the image nor a way out."""
        client, program = self._engine.client, settings.command[0]
        with suppress(errors.APIError):
            found = client.inspect_container(container)
            if found["Path"] != program:  # an entry point was started, which speaks for itself
                return
            given = dict(text.partition("=")[::2] for text in found["Config"].get("Env") or ())
            folders = str(given.get("PATH", _USUAL_PATH)).split(":")
            places = [program] if "/" in program else [f"{folder}/{program}" for folder in folders if folder]
            if not any(self._has(container, place) for place in places):
                tell(f"error: {settings.image} has no program {program!r}")
                tell(f"  usual cause: it is not installed in this image, or not on its PATH ({':'.join(folders)})")
                tell(f"  try: vdbg-env run --image {settings.image} -- sh -c 'echo $PATH', or another --image")

    def _has(self, container: str, path: str) -> bool:
        try:
            data, _ = self._engine.client.get_archive(container, path)
        except errors.NotFound:
            return False
        deque(data, maxlen=0)  # read to its end, or the connection stays open
        return True

    def _stop(self, container: str, grace_s: int) -> None:
        """Ask the container to stop and wait; a second interrupt goes through and ends it at once."""
        with suppress(errors.APIError, requests.exceptions.ReadTimeout):
            self._engine.client.stop(container, timeout=grace_s)


def _debug(settings: RunSettings) -> NewContainer:
    return NewContainer(settings=settings, purpose="debug", stdin=settings.interactive)


def _note(tell: Tell) -> Callable[[Ulimit], None]:
    return lambda limit: tell(f"note: the engine does not set the {limit.name} limit: {limit.fallback}")


def has_gpu() -> bool:
    """Say whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*")) or Path("/dev/nvidia0").exists()


def gpu_access(info: Mapping[str, Any], *, has_gpu: bool) -> GpuAccess:
    """Choose how containers get GPUs from the engine's own information.

    A registered runtime does not prove that there is a GPU; a CDI device that the engine lists does.
    """
    devices = [str(d.get("ID", "")) for d in info.get("DiscoveredDevices") or () if d.get("Source") == "cdi"]
    if any(device.startswith("nvidia.com/gpu") for device in devices):
        return GpuAccess(by="cdi", why="the engine lists nvidia.com/gpu devices")
    registered = "nvidia" in (info.get("Runtimes") or {})
    if registered and has_gpu:
        return GpuAccess(by="runtime", why="the nvidia runtime is registered and a GPU is present")
    if registered:
        return GpuAccess(by="none", why="the nvidia runtime is registered, but no GPU is present")
    if has_gpu:
        return GpuAccess(
            by="none", why="a GPU is present, but the engine knows neither CDI devices nor the nvidia runtime"
        )
    return GpuAccess(by="none", why="no GPU is present")
