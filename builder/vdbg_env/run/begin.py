"""What was asked for, the place where its steps start, and the run that it begins anew or resumes from its record."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Protocol, cast

from platformdirs import user_state_path
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gpucore.lineinfo import LineinfoReport, Verdict, verify
from vdbg_env.common import plug_ins, yaml_source
from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BAD_INPUT, BadInput, HostNotAble, quoted
from vdbg_env.common.flags import flag, named_values, read_by
from vdbg_env.common.programs import ProgramRunner, Programs, read_gpus, toolkit_release
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument, YamlSource
from vdbg_env.crash.files import BinarySource, SourceFiles
from vdbg_env.engine.request import RunRequest, settled
from vdbg_env.engine.targets import Targets, existing_dump_store
from vdbg_env.image.settings import DATA, PACKAGES, Mount, StepContainer, StepImage, parse_size
from vdbg_env.record.redactor import Pseudonyms, Redactor
from vdbg_env.record.run_directory import RunHead, part_of
from vdbg_env.record.runs import complete_run
from vdbg_env.run.guarded import Guarded
from vdbg_env.run.job import StepSettings, gpu_probe, hang_tools
from vdbg_env.run.library import RunbookLibrary
from vdbg_env.run.placement import DISK_FLOOR, PlacementRequest, StepPlace, StepPlacement
from vdbg_env.run.stale import RUNTIMES, installed_versions, torch_on_disk, workload_libraries, workload_python
from vdbg_env.runbook import workload
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import SYNTHETIC, TOOLS, Runbook, duration_s
from vdbg_env.runbook.state import Facts
from vdbg_env.runbook.workload import Inputs

_LOWEST_PORT, _TRIES = 10_000, 64
_LABEL_CUDA = "dev.vdbg-env.cuda"
_LABEL_SOURCE = "org.opencontainers.image.source"
_VLLM = "pkg:pypi/vllm@"
_RECORD = TypeAdapter(StepContainer)


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
    """The containers requested; image and GPU of `run` may still have to be found, as for `vdbg-env run`."""

    run: RunRequest
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    memory: int | None = None
    folder: str | None = None


def step_container(request: ContainerRequest, notice: Callable[[str], None]) -> StepContainer:
    """Return what a run's containers have in common; image and GPU are found where the request names none.

    Raises BadInput where there is no image, HostNotAble where Docker does not respond or the dump volume is too full.
    """
    from vdbg_env.engine.client import connect  # a run on this machine needs no client of an engine
    from vdbg_env.engine.containers import DockerContainers

    watched = request.run.settings.dumps if request.run.dump_quota is not None else None
    return StepContainer(
        settings=settled(
            request.run,
            DockerContainers(connect()),
            existing_dump_store(watched) if watched else None,
            notice,
            record=True,
        ),
        mounts=request.mounts,
        user=request.user,
        memory=request.memory,
        folder=request.folder,
    )


def with_image_facts(facts: Facts, image: StepImage | None) -> Facts:
    """Return the facts completed by the labels that `vdbg-env build` gave an image."""
    if image is None:
        return facts
    from vdbg_env.image.plan import LABEL_PROOF

    labels = dict(image.labels)
    proof = labels.get(LABEL_PROOF)
    source = labels.get(_LABEL_SOURCE, "")
    return replace(
        facts,
        on="docker",
        cuda=facts.cuda or labels.get(_LABEL_CUDA),
        vllm=facts.vllm or (source.removeprefix(_VLLM) if source.startswith(_VLLM) else None),
        lineinfo=facts.lineinfo if proof is None else proof.startswith("full"),
    )


def container_record(place: StepPlace, redactor: Redactor) -> dict[str, Any]:
    """Return what `run.json` keeps of a place, without secrets, enough to continue in the same one; empty for here."""
    if place.container is None or place.image is None:
        return {}
    settings = place.container.settings
    env = redactor.env(dict(settings.env))
    kept = replace(place.container, settings=replace(settings, env=tuple((n, str(v)) for n, v in env.items())))
    return {
        "image": {"name": place.image.name, "id": place.image.image_id, "digest": place.image.digest},
        "container": _RECORD.dump_python(kept, mode="json", exclude_defaults=True),
    }


def resumed_container(head: RunHead, asked: ContainerRequest | None) -> StepContainer | None:
    """Return the containers a run was begun in, of the image it was begun with; None when it was begun here.

    Of a new request only the values of variables count: the record keeps no secret. Raises BadInput when one is
    missing, or when another place is requested.
    """
    if not head.container:
        if asked:
            raise BadInput(
                f"the steps of run {head.run!r} ran on this machine, and not in containers",
                next_step="leave out --on and --image, or begin a new run without --resume",
            )
        return None
    recorded = part_of(head, "container", StepContainer)
    given = dict(asked.run.settings.env) if asked else {}
    if asked and asked.run.image not in {None, head.image.get("name"), head.image.get("id")}:
        raise BadInput(
            f"run {head.run!r} was begun in containers of {head.image.get('name')}, not of {asked.run.image}",
            next_step="leave out --image, or begin a new run without --resume",
        )
    env = tuple((name, given.get(name, value)) for name, value in recorded.settings.env)
    for name, value in env:
        if "[redacted" in value:
            raise BadInput(
                f"the record of run {head.run!r} holds no secrets, and its variable {name} had one",
                next_step=f"give it again, from your own environment: --env {name}",
            )
    settings = replace(recorded.settings, image=str(head.image.get("id", "")), env=env)
    return replace(recorded, settings=settings)


# The request of `vdbg-env runbook`, and the linted runbook with final inputs that follows from it.


NO_PODS = "vdbg-env no longer starts pods itself"
IN_A_POD = "run it inside a pod that you have: vdbg-env render --format k8s --for FILE --runbook NAME DIR"


@dataclass(frozen=True, kw_only=True)
class RunbookRequest:
    """What was asked for: the flags of `vdbg-env runbook` as fields, and what goes with them.

    `container` is None where steps run here. With `at_once` nothing is looked up before the first step is started. What
    the run `from_run` has seen is not run again. `folder` is where COMMAND starts and `recorded` what that run's inputs
    were, both of a recorded run that COMMAND is taken from; `typed_in` is where relative paths of `inputs` start. Below
    `disk_floor` bytes of free space no step is started, and one that runs is ended.
    """

    runbook: str = ""
    argv: tuple[str, ...] = ()
    files: tuple[Path, ...] = flag("-f", "--file", default=(), help="Look in this runbook file first; repeatable.")
    inputs: Mapping[str, str] = flag(
        "-i", "--input", default=dict, multiple=True, callback=named_values, metavar="NAME=VALUE",
        help="Set an input (`vdbg-env runbooks show NAME` lists them); repeatable.",
    )  # fmt: skip
    run_dir: Path | None = flag(help="The folder to record this run in.")
    record: Path | None = flag(help="Also write a recording for --replay.")
    replay: Path | None = flag(
        path={"exists": True, "file_okay": False}, help="Run nothing; take each step's result from this recording."
    )
    resume: str | None = flag(
        metavar="RUN",
        help="Continue an interrupted run, or `latest`; NAME and COMMAND are in its record.",
        shell_complete=complete_run,
    )
    from_run: str | None = flag(
        "--from", metavar="RUN", shell_complete=complete_run,
        help="Start from an earlier run: reuse its command, placement and results, and run only what is still open.",
    )  # fmt: skip
    total_s: float | None = flag(
        "--total-time", callback=read_by(duration_s), metavar="DURATION",
        help="End the whole run after this time (status 124).",
    )  # fmt: skip
    disk_floor: int | None = flag(
        callback=read_by(lambda text: parse_size(text, "--disk-floor")), metavar="SIZE",
        help="Stop when less disk space than this is free. [default: 1g]",
    )  # fmt: skip
    batch: bool = flag(default=False, help="Ask no questions; take the default answers.")
    bisect: bool = flag(default=False, help="Exit as `git bisect run` expects: 1 reproduced, 0 not, 125 unclear.")
    plan: bool = flag(default=False, help="Show each step's final command line and variables; start nothing.")
    pseudonyms: bool = flag(
        default=False, help="Replace host names and addresses by pseudonyms, consistently across your runs."
    )
    json: bool = flag(default=False, help="Print the report (or the plan) as JSON on stdout.")
    container: ContainerRequest | None = None
    placement: PlacementRequest | None = None
    at_once: bool = False
    folder: str = ""
    recorded: Mapping[str, str] = field(default_factory=dict)
    typed_in: str = ""


def with_recorded_workload(request: RunbookRequest, head: RunHead) -> RunbookRequest:
    """Return the request with the workload of another run, where it started and its inputs, unless it names a command.

    Raises BadInput where the record has no whole command line.
    """
    if request.argv:
        return request
    if not head.workload or any("[redacted" in word for word in head.workload):
        raise BadInput(
            f"the record of run {head.run!r} has no whole command line: a secret in it was left out",
            next_step=f"give it again: vdbg-env runbook {request.runbook} --from {quoted(head.run)} -- COMMAND ...",
        )
    if not all(map(_can_be_started, head.workload)):
        raise BadInput(
            f"the record of run {head.run!r} has a command line that cannot be started", cause="run.json was edited"
        )
    container = request.container
    if container and head.container:
        container = replace(container, folder=part_of(head, "container", StepContainer).folder)
    recorded = {name: text for name, value in head.inputs.items() if (text := _as_given(value)) is not None}
    return replace(request, argv=head.workload, folder=head.folder, container=container, recorded=recorded)


def _as_given(value: Any) -> str | None:
    """Return a recorded input as it is given on a command line; None for one that is not, or was redacted."""
    if value is None or isinstance(value, list) or "[redacted" in str(value):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def starts_here(request: RunbookRequest, head: RunHead) -> bool:
    """Whether commands start in a folder of this machine: not in containers, which have another one."""
    if request.resume:
        return not head.container
    return request.container is None


def folder_gone(request: RunbookRequest, run: str) -> BadInput:
    """Return the error for a recorded run whose folder is not on this machine."""
    begun = f"vdbg-env runbook {request.runbook}"
    again = f"{begun} -- COMMAND"
    if request.from_run:
        again = f"{begun} --from {quoted(run)} -- {shlex.join(request.argv)}; or --image, where it ran in a container"
    return BadInput(
        f"the command of run {run!r} started in {request.folder}, and there is no such folder",
        cause="it was removed or renamed, or the run was recorded on another machine or in a container",
        next_step=f"make it again; or, where the command finds its files: {again}",
    )


def _can_be_started(word: str) -> bool:
    try:
        return b"\0" not in word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


class _Workload(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    argv: list[str] = Field(min_length=1)


class _Project(BaseModel):
    """A project's `vdbg.yaml`: the workload of its runbooks, and values of their inputs."""

    model_config = ConfigDict(extra="forbid", strict=True)
    workload: _Workload | None = None
    inputs: dict[str, str] = {}


def prepare(
    request: RunbookRequest,
    library: RunbookLibrary,
    environment: Mapping[str, str],
) -> tuple[Runbook, Inputs]:
    """Find and lint the runbook and make its inputs final, with those of the current folder's `vdbg.yaml`.

    Without a command line its workload is taken. Raises BadInput and BadDocument.
    """
    runbook = library.load(request.runbook)
    project = library.project()
    settings = yaml_source.validate(_Project, project) if project else _Project()
    if project:
        _check_names(settings, runbook, library, project)
    argv = request.argv or tuple(settings.workload.argv if settings.workload else ())
    others = {**settings.inputs, **request.recorded}
    given = {name: text for name, text in others.items() if name in runbook.inputs} | dict(request.inputs)
    if request.folder:
        paths = (name for name in request.inputs if name in runbook.inputs and runbook.inputs[name].type == "path")
        typed = {name: request.inputs[name] for name in paths if request.inputs[name] != SYNTHETIC}
        given |= {name: str(PurePath(request.typed_in, path)) for name, path in typed.items()}
    return runbook, _at_its_port(final_inputs(runbook, given, argv, environment))


def _check_names(settings: _Project, runbook: Runbook, library: RunbookLibrary, project: YamlSource) -> None:
    """Raise BadDocument for an input that no runbook has; the file is for all of them."""
    unknown = [name for name in settings.inputs if name not in runbook.inputs]
    known = library.input_names() if unknown else frozenset()
    wrong = (
        project.complaint(
            ("inputs", name), f"no runbook has an input {name!r}", key=True, suggestion=nearest(name, known)
        )
        for name in unknown
        if name not in known
    )
    if complaints := tuple(wrong):
        raise BadDocument(complaints, next_step="vdbg-env runbooks show NAME lists the inputs of a runbook")


def _at_its_port(inputs: Inputs) -> Inputs:
    """Return the inputs with the server's port put into the workload's command line, a free one for `auto`."""
    asked = inputs.get("port")
    if asked is None or not inputs.workload.argv:
        return inputs
    text = str(asked)
    if text != "auto" and not (text.isdecimal() and 0 < int(text) < 1 << 16):
        raise BadInput(f"input 'port' is a port's number or auto, not {text!r}", next_step="-i port=auto")
    if inputs.get("url") is not None:
        raise BadInput(
            "the inputs 'port' and 'url' both say where the server listens",
            next_step="leave out url: it is read from the command line, into which the port is put",
        )
    port = free_port() if text == "auto" else int(text)
    argv = workload.with_port(inputs.workload.argv, port)
    if argv is None:
        raise BadInput(
            f"where the port goes in this command is not known: {shlex.join(inputs.workload.argv)}",
            cause="it has no --port, and is no server that this program knows",
            next_step="write the server's own command line after --, or leave out -i port",
        )
    return Inputs({**inputs, "argv": list(argv), "port": str(port)})


def free_port() -> int:
    """Return a port that no process has, and that the kernel gives to none by itself; raises HostNotAble."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32768
    for _ in range(_TRIES):
        port = _LOWEST_PORT + secrets.randbelow(max(1, first - _LOWEST_PORT))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise HostNotAble("no free port was found", next_step="name one: -i port=PORT")


def recorded_placement(head: RunHead) -> PlacementRequest | None:
    """Return how the ranks of a run were started; raises BadInput for pods, which no version starts any longer."""
    if head.in_pods:
        raise BadInput(
            f"the ranks of run {head.run!r} were pods (--on k8s), and that placement is gone",
            cause=NO_PODS,
            next_step=f"{IN_A_POD}. What was seen stays readable: vdbg-env runs report {quoted(head.run)}",
        )
    return part_of(head, "placement", PlacementRequest) if head.placement else None


def resumed_placement(head: RunHead, asked: PlacementRequest | None) -> PlacementRequest | None:
    """Return the placement a run was begun with; raises BadInput where another one is requested.

    What is not requested is as it was. Arguments for the launcher may be others: they change no rank.
    """
    recorded = recorded_placement(head)
    if asked is None:
        return recorded
    if recorded is None or not _agrees(asked, recorded):
        raise BadInput(
            f"the ranks of run {head.run!r} were started in another way",
            cause="its attempts would not have the same ranks",
            next_step="leave out --on, --nodes and --ranks, or begin a new run without --resume",
        )
    return replace(recorded, arguments=asked.arguments or recorded.arguments)


def _agrees(asked: PlacementRequest, recorded: PlacementRequest) -> bool:
    """Return whether what is requested is as it was."""
    pairs = ((asked.ranks, recorded.ranks), (asked.nodes, recorded.nodes), (asked.scratch, recorded.scratch))
    return asked.on == recorded.on and all(one in (None, other) for one, other in pairs)


# What is known of the place where a run's steps will run, before the first one starts.


def gather_facts(
    request: RunbookRequest, place: StepPlace, runbook: Runbook, argv: tuple[str, ...], *, interactive: bool
) -> Facts:
    """Return what is known of a place and of what the workload `argv` will find there.

    Of a replay only this machine is looked at: the workload ran elsewhere. Whether its libraries carry lines is looked
    up where the runbook requires it, for that reads all of them; of an image its label tells. For a step that is to be
    started at once no process is started to look something up.
    """
    if request.at_once:
        python_path = place.environment.get("PYTHONPATH", "")
        return Facts(torch=torch_on_disk(place.programs, argv), data_dir=place.data_dir, python_path=python_path)
    programs, here = place.programs, place.image is None
    gpus, driver = _gpus(programs)
    versions = {} if request.replay else _versions(programs, argv, here=here)
    wants_lines = runbook.requires.lineinfo and here and not request.replay
    facts = Facts(
        on="replay" if request.replay else place.on,
        nodes=place.nodes,
        tools=frozenset(tool for tool in TOOLS if programs.which(tool)),
        gpus=gpus,
        driver=driver,
        cuda=_cuda(programs, versions),
        vllm=versions.get("vllm"),
        torch=versions.get("torch"),
        lineinfo=_lines(programs, place.binaries, argv) if wants_lines else None,
        interactive=interactive,
        nameless=request.pseudonyms,
        python_path=place.environment.get("PYTHONPATH", ""),
        data_dir=place.data_dir,
    )
    return with_image_facts(facts, place.image)


def _versions(programs: ProgramRunner, argv: tuple[str, ...], *, here: bool) -> dict[str, str]:
    """Return what the workload's Python has installed; nothing where it cannot be asked."""
    python = workload_python(programs, argv, here=here)
    try:
        return installed_versions(programs, python, ("vllm", "torch", *RUNTIMES)) if python else {}
    except HostNotAble:
        return {}


def _cuda(programs: ProgramRunner, versions: Mapping[str, str]) -> str | None:
    """Return the release of CUDA the workload runs with: of the runtime its Python brings, else of the toolkit here."""
    brought = next((versions[name] for name in RUNTIMES if name in versions), None)
    if brought:
        return ".".join(brought.split(".")[:2])
    return toolkit_release(programs)


def _lines(programs: ProgramRunner, binaries: BinarySource, argv: tuple[str, ...]) -> bool | None:
    """Return whether all device code of the workload's own libraries carries lines; None where that is not known."""
    reports = []
    try:
        for target in workload_libraries(programs, argv):
            with binaries.open(target) as files:
                reports += [verify(file.data, file.name) for file in files]
    except (*BAD_INPUT, HostNotAble):  # a library that cannot be read is one too
        return None
    known = {Verdict.FULL: True, Verdict.PARTIAL: False, Verdict.NONE: False}
    return known.get(LineinfoReport(files=tuple(reports)).verdict)


def _gpus(programs: ProgramRunner) -> tuple[int | None, str | None]:
    """Return the number of GPUs and the driver's version; no nvidia-smi is no GPU, one that fails says nothing."""
    try:
        reading = read_gpus(programs)
    except HostNotAble:
        return None, None
    if not reading.is_installed:
        return 0, None
    return (len(reading.gpus), reading.gpus[0].driver) if reading.gpus else (None, None)


# Which host names of a run get pseudonyms, by the user's key, which makes them the same in every run.


_PSEUDONYM = re.compile(r"(?:host|ip)-[0-9a-f]{8}")
# Where launchers put the names of machines: the shell, Slurm, torchrun, Kubernetes manifests.
_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR", "MASTER_ADDR", "NODE_NAME")
_NOT_NAMES = {"", "localhost"}


def pseudonyms(environment: Mapping[str, str], further: Iterable[str] = ()) -> Pseudonyms:
    """Return pseudonyms for this machine's name, for the hosts an environment names, and for `further` names.

    A name that is a pseudonym already is left out: a run must not get pseudonyms of pseudonyms.
    """
    known = {socket.gethostname(), *(environment.get(name, "") for name in _VARIABLES), *further}
    names = {part for name in known for part in (name, name.partition(".")[0])} - _NOT_NAMES
    return Pseudonyms(_pseudonym_key(), tuple(sorted(name for name in names if _is_name(name))))


def _pseudonym_key() -> bytes:
    """Return this user's key, made at first use; next to a run it would undo its purpose."""
    path = user_state_path("vdbg-env", appauthor=False) / "pseudonym.key"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(32)
        file.write(key)
    return key


def has_pseudonym(text: str) -> bool:
    """Whether a recorded text has a pseudonym where a name or an address was."""
    return _PSEUDONYM.search(text) is not None


def _is_name(text: str) -> bool:
    return not _PSEUDONYM.fullmatch(text) and any(letter.isalpha() for letter in text)  # addresses are found by form


# The bundled sample crash: what a runbook runs when it is given no workload at all.
#
# Where steps run with a GPU and nvcc, the program itself is built and run. Elsewhere a recording is replayed, which
# says where it was made. Either way the command proves that this machine, or this image, can lead from a crash to its
# line.


SAMPLE = "inlined_templates"
_BUILD_TIME_S = 300.0
_SOURCES = SHIPPED_DATA / "images" / "samples"


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """The request to continue with, and one sentence that says what is run, None when the user named a workload."""

    request: RunbookRequest
    notice: str | None = None


def sample_folder(path: Path) -> Path:
    """Make the folder that the sample is built in if there is none, and return its real path; raises HostNotAble."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostNotAble(
            f"{path.absolute()} cannot be made: {error.strerror}",
            cause="the folder is read-only, full, or belongs to another user",
            next_step="cd to another folder, or name one for runs: export VDBG_ENV_RUNS=DIR",
        ) from error
    return path.resolve()


def names_workload(request: RunbookRequest) -> bool:
    """Whether a request says itself what is run, without the project's settings."""
    return bool(request.argv or request.resume or request.replay or "argv" in request.inputs)


def with_sample_mounted(request: RunbookRequest, folder: Path) -> RunbookRequest:
    """Return the request with its containers given what building and running the sample in `folder` needs."""
    if request.container is None:
        return request
    place, source = str(folder), str(_SOURCES)
    mounts = (Mount(source=place, target=place), Mount(source=source, target=source, read_only=True))
    container = replace(request.container, mounts=(*request.container.mounts, *mounts))
    return replace(request, container=container)


def with_sample(request: RunbookRequest, recording: Path, programs: ProgramRunner, folder: Path) -> Bundled:
    """Return a request for the bundled sample, or for its `recording` where it cannot be built.

    `folder` is where the program is built, `programs` are those of where steps run. Raises HostNotAble when nvcc fails.
    """
    where = "in the image" if request.container else "here"
    nvcc = programs.which("nvcc")
    gpu = _has_gpu(programs)
    if nvcc and gpu:
        program = _build(programs, nvcc, folder)
        notice = f"no workload is given: the bundled sample {SAMPLE} was built {where} and crashes on this GPU"
        return Bundled(request=replace(request, argv=(program,)), notice=notice)
    why = f"there is no nvcc {where} to build it" if gpu else f"no GPU responds {where}"
    notice = f"no workload is given, and {why}: this is the replay of the bundled sample {SAMPLE}"
    replayed = replace(request, argv=(f"./{SAMPLE}",), replay=recording, batch=True, container=None)
    return Bundled(request=replayed, notice=notice)


def _has_gpu(programs: ProgramRunner) -> bool:
    try:
        return bool(read_gpus(programs, timeout_s=30).gpus)
    except HostNotAble:
        return False


def _build(programs: ProgramRunner, nvcc: str, folder: Path) -> str:
    source = _SOURCES / f"{SAMPLE}.cu"
    program = str(folder / SAMPLE)
    done = programs.run(
        [nvcc, "-std=c++17", "-lineinfo", "-arch=native", "-o", program, str(source)], timeout_s=_BUILD_TIME_S
    )
    if done.code != 0:
        raise HostNotAble(
            f"the bundled sample could not be built: nvcc exited with {done.code}",
            cause="nvcc does not support the host compiler",
            next_step=f"vdbg-env runbook NAME -- COMMAND ..., or try: nvcc {quoted(source)}",
            details=tuple(done.stderr.splitlines()[-3:]),
        )
    return program


# Open the places where steps are started: this machine, containers of an image, and those of plug-ins.


@dataclass(frozen=True, kw_only=True)
class Places:
    """Opens places for a process with this `environment`.

    Commands start in `other_folder`, or in the current one where that is None. A step is ended while `disk_floor` bytes
    of the disk are still free. `guarded` is given by `vdbg-env guard` alone.
    """

    environment: Mapping[str, str]
    guarded: Guarded | None = None
    other_folder: Path | None = None
    disk_floor: int = DISK_FLOOR

    @property
    def folder(self) -> Path:
        """The folder of this machine that commands start in."""
        return self.other_folder or Path.cwd()

    @property
    def programs(self) -> Programs:
        """The helper programs of this machine."""
        return Programs(self.other_folder)

    def settings(self, programs: ProgramRunner, **fields: Any) -> StepSettings:
        """Return what the steps of a run have in common where these programs are; `fields` are those of the place."""
        environment = {**fields.get("inherited", {}), **fields["env"]}
        return StepSettings(
            **{
                "cwd": self.folder,
                "hang_tools": hang_tools(programs),
                "gpu_probe": gpu_probe(programs, environment),
                "disk_floor": self.disk_floor,
                **fields,
            }
        )

    def here(self, *, ranks: int | None = None) -> StepPlace:
        """Return this machine; an attempt has `ranks` of them, or as many as its step asks for where that is None."""
        from vdbg_env.run.local import LocalProcesses
        from vdbg_env.run.ranks import LocalRanks

        programs = self.programs

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            settings = self.settings(
                programs,
                env=self.environment,
                mark=str(run),
                sensitive=sensitive,
                pseudonyms=names,
                guarded=self.guarded,
            )
            return LocalRanks(LocalProcesses(settings), ranks)

        return StepPlace(
            programs=programs,
            reading=lambda _: programs,
            binaries=Targets(),
            environment=self.environment,
            data_dir=str(SHIPPED_DATA / "runbooks"),
            sources=self._sources(),
            placement=placement,
            close=lambda: None,
            folder=str(self.folder),
        )

    def containers(self, container: StepContainer, *, name: str | None, notice: Callable[[str], None]) -> StepPlace:
        """Return containers of an image, once a first one has run; `name` is what the user calls the image.

        Raises BadInput, HostNotAble and EngineFailed when steps could not be started there.
        """
        from vdbg_env.engine.client import connect
        from vdbg_env.run.attempt import OneRank
        from vdbg_env.run.container import (
            ContainerBinaries,
            ContainerPrograms,
            ContainerSources,
            ContainerSteps,
            StepContainers,
            look,
        )

        steps = StepContainers(connect, container, runbooks=SHIPPED_DATA / "runbooks", tell=notice)
        image = look(steps, TOOLS, name=name)
        given = dict(container.settings.env)
        inside = ContainerPrograms(steps, image, asked=TOOLS, machine=self.programs)
        packages = Path(PACKAGES)

        def placement(run: Path, sensitive: tuple[str, ...], names: Pseudonyms | None) -> StepPlacement:
            settings = self.settings(
                inside,
                env=given,
                cwd=Path(image.folder),
                mark=str(run),
                inherits=True,
                inherited=dict(image.env),
                python=image.python,
                packages=packages,
                libraries=(),
                hang_tools=hang_tools(inside, python=image.python, packages=packages),
                sensitive=sensitive,
                pseudonyms=names,
            )
            return OneRank(ContainerSteps(steps, image, settings, here=self.folder))

        return StepPlace(
            programs=inside,
            reading=inside.reading,
            binaries=ContainerBinaries(steps, image, Targets()),
            environment={**dict(image.env), **given},
            data_dir=DATA,
            sources=ContainerSources(steps, image, self._sources()),
            placement=placement,
            close=steps.close,
            folder=str(self.folder),
            container=container,
            image=image,
            in_words={"steps run in": f"containers of {image.name}", "image": image.digest or image.image_id},
        )

    def ranks(self, asked: PlacementRequest | None) -> StepPlace:
        """Return the place of the ranks asked for: this machine, or that of a plug-in; raises BadInput."""
        if asked is None or asked.on == "local":
            return self.here(ranks=asked.ranks if asked else None)
        return plug_in(asked.on).place(self, asked)

    def _sources(self) -> SourceFiles:
        return SourceFiles((str(self.folder), str(SHIPPED_DATA / "images" / "samples")), ())


class PlugIn(Protocol):
    """What a plug-in's module has: a place for ranks on other machines, and the ways to get a run there."""

    def place(self, places: Places, asked: PlacementRequest) -> StepPlace:
        """Return the place where the ranks asked for are started; raises BadInput outside of one."""
        ...

    def needs_allocation(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment has to get machines before it can start ranks on them."""
        ...

    def allocate(self, request: RunbookRequest, words: tuple[str, ...], say: Callable[[str], None]) -> int:
        """Get the machines and run the command line of these words on them, in place of this process."""
        ...

    def queue(
        self,
        request: RunbookRequest,
        *,
        setup: str,
        arguments: tuple[str, ...],
        show_only: bool,
        say: Callable[[str], None],
    ) -> str:
        """Queue the whole run as a job and return what to print, or with `show_only` the text of the job alone."""
        ...  # fmt: skip


def plug_in(name: str) -> PlugIn:
    """Return the module of the plug-in for `--on NAME`; raises BadInput where none is installed."""
    if module := plug_ins.plug_in(plug_ins.PLACEMENTS, name):
        return cast(PlugIn, module)
    raise BadInput(f"no placement {name!r} is installed", next_step="--on local, docker or slurm")
