"""A dockerd of a test's own: its disk, folders and network are not those of the machine's, so it may be killed."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vdbg_env.engine.client import Engine, connect

# All that the base image of these tests holds, with the libraries these programs need.
PROGRAMS = ("/bin/sh", "/bin/sleep", "/bin/echo", "/bin/dd", "/bin/cat")
TINY = "vdbg/tiny:local"


class OwnEngine:
    """A dockerd whose state is in `folder`, on the disk mounted at `root`; it can be started again after its end."""

    def __init__(self, folder: Path, root: Path, programs: Path | None) -> None:
        self.folder = folder
        self._programs = programs
        self.host = f"unix://{folder}/docker.sock"
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that answers."""
        assert self._process
        return self._process.pid

    def connect(self) -> Engine:
        return connect({"DOCKER_HOST": self.host})

    def start(self) -> None:
        """Start it where it does not run, after a kill too; skips the test where no second dockerd can run."""
        if self._process is not None and self._process.poll() is None:
            return
        # In a network of its own: a dockerd started with --bridge none removes docker0, which is the other engine's.
        argv = [
            "unshare", "--net", "dockerd", "--host", self.host, "--data-root", str(self._root),
            "--exec-root", str(self.folder / "exec"), "--pidfile", str(self.folder / "pid"),
            "--iptables=false", "--ip-forward=false", "--ip-masq=false",
        ]  # fmt: skip
        path = os.environ["PATH"]
        if self._programs is not None:
            (self.folder / "daemon.json").write_text('{"features": {"containerd-snapshotter": true}}')
            argv += ["--config-file", str(self.folder / "daemon.json")]  # a scanner of images runs on the bridge
            path = f"{self._programs}/usr/bin:{self._programs}/usr/sbin:{path}"
        else:
            argv += ["--bridge", "none"]
        # A killed containerd that was never waited for keeps its pid: a new dockerd would take it for a running one.
        for stale in ("pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self.folder / stale).unlink(missing_ok=True)
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PATH": path},
            )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(self.folder / "docker.sock")) == 0:
                    return
            time.sleep(0.3)
        said = (self.folder / "dockerd.log").read_text().strip().rpartition("\n")[2]
        pytest.skip(f"a second dockerd does not start here: {said[:300]}")

    def kill(self) -> None:
        """Kill it, and its containerd with it; containers and their shims live on."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """End it and all that it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        # Containers and their shims of a killed engine are still there and hold its disk.
        end_all_below(str(self.folder))


@contextmanager
def own_engine(*, disk_mib: int, programs: Path | None = None) -> Iterator[OwnEngine]:
    """Start a dockerd on a small disk of its own, and take both away at the end.

    With `programs` it is the one in that folder, with the containerd image store.

    Its folder has a short name: the path of a socket has at most 107 bytes, and containerd puts some in there.
    """
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root may start a second dockerd, and dockerd must be installed")
    folder = Path(tempfile.mkdtemp(prefix="vdbg-dockerd-"))
    disk, mount = folder / "disk", folder / "root"
    mount.mkdir()
    with disk.open("wb") as file:
        file.truncate(disk_mib << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", disk], capture_output=True, check=False)
    mounted = subprocess.run(["mount", "-o", "loop", disk, mount], capture_output=True, text=True, check=False)
    if made.returncode or mounted.returncode:
        shutil.rmtree(folder)
        pytest.skip(f"no disk of its own for a second dockerd: {mounted.stderr.strip()}")
    engine = OwnEngine(folder, mount, programs)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
        for place in [*(folder / "exec" / "netns").glob("*"), mount]:
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def make_base(engine: OwnEngine) -> None:
    """Import an image of a few programs of this machine."""
    tar = few_programs(engine.folder / "base")
    subprocess.run(["docker", "--host", engine.host, "import", "-", TINY], input=tar, check=True)


def few_programs(root: Path) -> bytes:
    """Return a tar of a few programs of this machine with their libraries, which are copied into a new folder first."""
    for program in PROGRAMS:
        ldd = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for path in [program, *(word for word in ldd.split() if word.startswith("/"))]:
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout


def end_all_below(folder: str) -> None:
    """Kill every process whose command line names the folder."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue
