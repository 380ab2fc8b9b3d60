from dataclasses import replace

import pytest

from tests.support.golden import assert_golden
from vdbg_env.run import doctor
from vdbg_env.run.doctor import GIB, TOOLS, UNLIMITED, Check, EngineFacts, GpuFacts, HostFacts, Limit, judge

ABLE = HostFacts(
    python=(3, 12, 4),
    engine=EngineFacts(
        version="28.2.2", buildx="v0.24.0", gpu_by="cdi", gpu_why="the engine lists GPUs",
        memlock=UNLIMITED, root="/var/lib/docker", root_free=900 * GIB,
    ),
    gpu=GpuFacts(names=("NVIDIA H200",) * 8, driver="580.95.05", cuda="13.0", memory=8 * 141 * GIB),
    toolkit="13.0",
    ptrace_scope=0,
    core=Limit(soft=UNLIMITED, hard=UNLIMITED),
    core_pattern="/dumps/core.%h.%p",
    memlock=Limit(soft=UNLIMITED, hard=UNLIMITED),
    dump_place="/dumps",
    dump_free=4000 * GIB,
    shm=64 * GIB,
    trees_held_by="cgroup v2",
    cgroup="/sys/fs/cgroup",
    tools={"cuda-gdb": "13.0", "compute-sanitizer": "2025.3", "cuobjdump": "13.0", "nvdisasm": "13.0", "py-spy": ""},
)  # fmt: skip
BARE = HostFacts(
    python=(3, 11, 2),
    engine=EngineFacts(problem="cannot reach unix:///var/run/docker.sock", next_step="systemctl start docker"),
    ptrace_scope=1,
    core=Limit(soft=0, hard=UNLIMITED),
    core_pattern="|/usr/share/apport/apport %p",
    memlock=Limit(soft=8 << 20, hard=8 << 20),
    dump_place="/home/me",
    dump_free=15 * GIB,
    shm=64 << 20,
    trees_held_by="process list",
)


def check(facts: HostFacts, name: str) -> Check:
    (found,) = (c for c in judge(facts).checks if c.id == name)
    return found


@pytest.mark.parametrize(("name", "facts"), [("able", ABLE), ("bare", BARE)])
def test_the_report_reads_as_its_golden(name: str, facts: HostFacts) -> None:
    assert_golden(f"cli/doctor-{name}.txt", doctor.as_text(judge(facts)))


def test_an_able_machine_has_nothing_to_mend() -> None:
    found = judge(ABLE)
    assert found.status == "ok"
    assert all(c.fix is None for c in found.checks)
    assert {c.id for c in found.checks} >= {*TOOLS, "engine", "buildx", "gpu", "container-gpu", "driver", "dump-disk"}


@pytest.mark.parametrize(
    ("toolkit", "driver", "status"),
    [("13.0", "13.0", "ok"), ("12.9", "13.0", "ok"), ("13.2", "13.0", "warn"), ("13.0", "12.9", "fail")],
)
def test_a_toolkit_newer_than_the_driver_is_told(toolkit: str, driver: str, status: str) -> None:
    assert check(replace(ABLE, toolkit=toolkit, gpu=replace(ABLE.gpu, cuda=driver)), "driver").status == status


def test_a_gpu_no_container_can_see_fails_and_a_machine_without_one_only_warns() -> None:
    blind = replace(ABLE, engine=replace(ABLE.engine, gpu_by="none", gpu_why="no runtime"))
    assert check(blind, "container-gpu").status == "fail"
    assert check(BARE, "gpu").status == "warn"
    broken = replace(BARE, gpu=GpuFacts(problem="Failed to initialize NVML: Driver/library version mismatch"))
    assert check(broken, "gpu").status == "fail"


def test_podman_is_called_so_and_needs_no_buildx() -> None:
    podman = replace(ABLE, engine=EngineFacts(version="4.3.1", podman=True, no_buildkit="Podman has no BuildKit"))
    assert check(podman, "engine").found == "Podman 4.3.1"
    assert "buildx" not in {c.id for c in judge(podman).checks}


@pytest.mark.parametrize(("scope", "status"), [(None, "ok"), (0, "ok"), (1, "warn"), (2, "warn"), (3, "fail")])
def test_ptrace_scope_is_judged(scope: int | None, status: str) -> None:
    assert check(replace(ABLE, ptrace_scope=scope), "ptrace").status == status


def test_the_disk_for_dumps_is_held_against_the_memory_of_the_gpus() -> None:
    assert check(replace(ABLE, dump_free=500 * GIB), "dump-disk").status == "warn"
    assert check(replace(ABLE, dump_free=1 * GIB), "dump-disk").status == "fail"
    assert check(replace(ABLE, gpu=GpuFacts(), dump_free=30 * GIB), "dump-disk").status == "ok"


def test_every_warning_says_why_and_what_to_type() -> None:
    bad = [c for c in judge(BARE).checks if c.status != "ok"]
    assert len(bad) > 8
    assert all(c.why and c.fix for c in bad)


def test_what_could_not_be_found_out_is_not_judged() -> None:
    ids = {c.id for c in judge(HostFacts(python=(3, 11, 0))).checks}
    assert not ids & {"dump-disk", "shm", "core-pattern", "driver", "container-gpu", "engine-memlock"}
