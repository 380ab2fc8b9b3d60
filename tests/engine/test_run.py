"""`run` and `shell` on a real engine: limits, tracing, streams, exit status, and nothing left behind."""

import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.build_orders import BASE
from tests.support.command_line import vdbg_env
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.engine.client import Engine
from vdbg_env.engine.containers import DockerContainers
from vdbg_env.engine.dump_volume import VolumeDumps, find_dumps
from vdbg_env.engine.targets import dump_store
from vdbg_env.image.settings import DumpVolume, Gpu, RunSettings

pytestmark = pytest.mark.engine

# Twenty bytes of a core, as /bin/sh prints them.
CORE = r"printf '\177ELF\002\001\001\000\000\000\000\000\000\000\000\000\004\000\076\000'"
SETTINGS = RunSettings(image=BASE, gpu=Gpu(by="none"), dumps=None, shm_bytes=1 << 30)


@pytest.fixture
def containers(docker_engine: Engine) -> DockerContainers:
    return DockerContainers(docker_engine)


@pytest.fixture
def volume(docker_engine: Engine) -> Iterator[str]:
    name = f"vdbg-test-{time.time_ns()}"
    yield name
    docker_engine.client.remove_volume(name)


def test_a_debugger_may_trace_and_cores_have_no_limit(containers: DockerContainers) -> None:
    told: list[str] = []
    with containers.started(replace(SETTINGS, command=("sleep", "60")), told.append) as container:
        ran = containers.execute(container, ["sh", "-c", "ulimit -c; ulimit -s; grep CapEff /proc/self/status"])
        words = ran.stdout.split()
        df = containers.execute(container, ["df", "-k", "/dev/shm"]).stdout.split()
    assert words[:2] == ["unlimited", "65536"]
    assert int(words[-1], 16) & (1 << 19), "CAP_SYS_PTRACE"
    assert str(1 << 20) in df
    assert all("memlock" in line for line in told)


def test_a_container_has_the_least_that_a_debugger_needs(containers: DockerContainers, tmp_path: Path) -> None:
    place = DumpVolume(source=str(tmp_path / "dumps"), kind="bind")
    script = (
        "grep -E 'CapEff|NoNewPrivs' /proc/self/status; cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max;"
        "mknod /dumps/disk b 8 0 && echo a device; cp /bin/true /dumps/true; chmod 6755 /dumps/true"
    )
    with containers.started(replace(SETTINGS, command=("sleep", "60"), dumps=place), lambda _: None) as container:
        said = containers.execute(container, ["sh", "-c", script]).stdout
    names = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_PTRACE": 19}
    assert f"CapEff:\t{sum(1 << bit for bit in names.values()):016x}" in said
    assert "NoNewPrivs:\t1" in said and "32768" in said and "a device" not in said
    assert stat.S_IMODE((tmp_path / "dumps").stat().st_mode) == 0o700
    containers.run(replace(SETTINGS, command=("chmod", "6755", "/dumps/true"), dumps=place), lambda _: None)
    assert stat.S_IMODE((tmp_path / "dumps" / "true").stat().st_mode) == 0o755


def test_seccomp_lets_ptrace_through_and_is_still_a_filter(containers: DockerContainers) -> None:
    with containers.started(replace(SETTINGS, command=("sleep", "60")), lambda _: None) as container:
        status = containers.execute(container, ["grep", "Seccomp:", "/proc/self/status"]).stdout
        # 4026531835 is no namespace of its own: unshare(CLONE_NEWUSER) is what the filter must still refuse.
        refused = containers.execute(container, ["unshare", "--user", "true"])
    assert status.split() == ["Seccomp:", "2"]
    assert refused.code != 0


def test_streams_and_exit_status_are_the_programs_own(docker_engine: Engine) -> None:
    ran = vdbg_env(
        "run", "--image", BASE, "--gpu", "none", "--dumps", "none", "--", "sh", "-c", "echo out; echo err >&2; exit 9"
    )
    assert (ran.status, ran.stdout) == (9, "out\n")
    assert "err\n" in ran.stderr


def test_a_folder_is_mounted_where_it_is_and_work_starts_there(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repro.sh").write_text("id -u; pwd; touch made")
    (tmp_path / "models").mkdir(mode=0o777)
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    flags = ["--gpu", "none", "--dumps", "none", "--user", "4711", "--mount", ".", "--mount", "./models:/models:ro"]
    ran = vdbg_env("run", "--image", BASE, *flags, "--", "sh", "-c", "sh repro.sh; touch /models/x")
    assert ran.stdout.split() == ["4711", str(tmp_path)]
    assert (ran.status, "Read-only" in ran.stderr) == (1, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made", "models", "repro.sh"]


def test_an_image_nobody_has_is_bad_input(docker_engine: Engine) -> None:
    ran = vdbg_env("run", "--image", "no/such:image", "--gpu", "none", "--", "true")
    assert ran.status == 2
    assert "no/such:image" in ran.stderr and "try:" in ran.stderr


def test_a_program_the_image_lacks_is_named_and_its_container_is_gone(docker_engine: Engine) -> None:
    ran = vdbg_env("run", "--image", BASE, "--gpu", "none", "--dumps", "none", "--", "no-such-program")
    assert ran.status == 127
    assert f"error: {BASE} has no program 'no-such-program'" in ran.stderr and "try:" in ran.stderr
    own = vdbg_env("run", "--image", BASE, "--gpu", "none", "--dumps", "none", "--", "sh", "-c", "no-such-program")
    assert (own.status, "has no program" in own.stderr) == (127, False)


@pytest.mark.parametrize("way", ["cdi", "runtime"])
def test_a_gpu_the_engine_cannot_give_is_explained(docker_engine: Engine, way: str) -> None:
    if vdbg_env("run", "--image", BASE, "--dumps", "none", "--", "test", "-e", "/dev/nvidia0").status == 0:
        pytest.skip("this machine has a GPU")
    ran = vdbg_env("run", "--image", BASE, "--gpu", way, "--dumps", "none", "--", "true")
    assert ran.status == 1
    assert f"GPUs by {way}" in ran.stderr and "container toolkit" in ran.stderr


def test_dumps_outlive_the_container_and_their_volume_is_labelled(
    containers: DockerContainers, docker_engine: Engine, volume: str
) -> None:
    settings = replace(
        SETTINGS, dumps=DumpVolume(source=volume), command=("sh", "-c", f"{CORE} | gzip > '/dumps/a core 1.gz'")
    )
    assert containers.run(settings, lambda _: None) == 0
    found = docker_engine.client.inspect_volume(volume)
    assert found["Labels"] == {"dev.vdbg-env.purpose": "dumps"}
    dumps = find_dumps(docker_engine, containers, volume)
    assert dumps is not None
    assert [(d.path, d.kind) for d in dumps.list()] == [("a core 1.gz", "compressed")]
    assert dumps.is_ours()


def test_a_volume_whose_folder_is_closed_to_us_is_read_through_a_container(
    containers: DockerContainers, docker_engine: Engine, volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VolumeDumps, "_image", lambda _: BASE)
    script = f"mkdir /dumps/sub; printf 'one' > '/dumps/sub/a b'; {CORE} | gzip > /dumps/core.gz; : > /dumps/e"
    containers.run(replace(SETTINGS, dumps=DumpVolume(source=volume), command=("sh", "-c", script)), lambda _: None)
    store = VolumeDumps(docker_engine, containers, volume, ours=False)
    in_place = find_dumps(docker_engine, containers, volume)
    assert in_place is not None
    assert [(d.path, d.size, d.kind) for d in store.list()] == [(d.path, d.size, d.kind) for d in in_place.list()]
    with store.read("sub/a b") as pieces:
        assert b"".join(pieces) == b"one"
    listed = {dump.path: dump for dump in store.list()}
    store.remove([listed["sub/a b"], replace(listed["e"], path="gone")])
    assert [(d.path, d.kind) for d in store.list()] == [("core.gz", "compressed"), ("e", "other")]
    assert not store.is_ours()
    store.adopt()
    assert store.is_ours()
    assert [d.path for d in store.list()] == ["core.gz", "e"]
    with pytest.raises(BadInput), store.read("sub/a b"):
        pass


def test_a_quota_lets_the_first_run_make_the_volume(volume: str) -> None:
    words = ("--image", BASE, "--gpu", "none", "--dumps", volume, "--dump-quota", "50g", "--", "true")
    assert [vdbg_env("run", *words).status for _ in range(2)] == [0, 0]


def test_a_folder_serves_as_dump_volume(containers: DockerContainers, tmp_path: Path) -> None:
    place = DumpVolume(source=str(tmp_path / "dumps"), kind="bind")
    containers.run(replace(SETTINGS, dumps=place, command=("sh", "-c", "echo x > /dumps/x")), lambda _: None)
    assert [d.path for d in dump_store(place).list()] == ["x"]


def test_an_interrupt_stops_the_container_with_its_grace(docker_engine: Engine) -> None:
    script = "trap 'echo dumping; sleep 1; echo dumped; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    argv = [sys.executable, "-m", "vdbg_env", "run", "--image", BASE, "--gpu", "none", "--dumps", "none", "--"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "builder")}
    with subprocess.Popen(
        [*argv, "bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopping the container" in err


def test_a_shell_talks_through_a_terminal(docker_engine: Engine) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "vdbg_env", "shell", "--image", BASE, "--gpu", "none", "--dumps", "none"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "builder"), "COLUMNS": "93", "LINES": "31"}
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(theirs)
        os.write(ours, b"stty size; tty; exit 7\n")
        shown = b""
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    shown += os.read(ours, 4096)
                except OSError:  # the other side of a closed terminal
                    break
        assert process.wait(timeout=120) == 7, shown
    os.close(ours)
    assert b"31 93" in shown and b"/dev/pts/0" in shown


def test_a_shell_without_a_terminal_points_to_run(docker_engine: Engine) -> None:
    ran = vdbg_env("shell", "--image", BASE)
    assert ran.status == 2
    assert "vdbg-env run" in ran.stderr


def test_a_dead_container_cannot_be_looked_into(containers: DockerContainers) -> None:
    with containers.started(replace(SETTINGS, command=("true",)), lambda _: None) as container:
        time.sleep(0.5)
        with pytest.raises(EngineFailed):
            containers.execute(container, ["true"])
