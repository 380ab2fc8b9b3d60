"""What there is to know of a machine before it is judged: plain values, None where it could not be found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

UNLIMITED = -1


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A resource limit in bytes, `UNLIMITED` for none."""

    soft: int
    hard: int


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The container engine: either what it says about itself, or why it does not answer.

    `no_buildkit` is why no build can be sent to its own BuildKit, `memlock` the hard limit in bytes that it can give a
    container, `root_free` the free bytes where it keeps images.
    """

    version: str | None = None
    no_buildkit: str | None = None
    podman: bool = False
    buildx: str | None = None
    gpu_by: Literal["cdi", "runtime", "none"] = "none"
    gpu_why: str = ""
    memlock: int | None = None
    root: str | None = None
    root_free: int | None = None
    problem: str | None = None
    next_step: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """The GPUs as nvidia-smi names them; `cuda` is the newest CUDA the driver knows, `memory` their sum in bytes."""

    names: tuple[str, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    memory: int = 0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One machine; sizes in bytes. `tools` holds each tool's version, "" where it starts and tells none.

    `trees_held_by` says what would hold the processes of a step whose supervisor is killed; `cgroup` is where.
    """

    python: tuple[int, int, int]
    engine: EngineFacts = field(default_factory=EngineFacts)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    toolkit: str | None = None
    ptrace_scope: int | None = None
    core: Limit = Limit(soft=0, hard=UNLIMITED)
    core_pattern: str | None = None
    memlock: Limit = Limit(soft=0, hard=0)
    dump_place: str = "/"
    dump_free: int | None = None
    shm: int | None = None
    trees_held_by: str | None = None
    cgroup: str | None = None
    tools: Mapping[str, str | None] = field(default_factory=dict)
