"""A real API server and its etcd on this machine. Its programs are not part of the project: without them, tests skip.

The server is Kubernetes' own for custom resources, so it has no pods and jobs: `front` gives it those names.
"""

from __future__ import annotations

import http.client
import json
import lzma
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "kube"
PROGRAMS = {"etcd": "etcd-*.xz", "kube-crd-apiserver": "kube-crd-apiserver-*.xz"}
_OFF = (
    "NamespaceLifecycle", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook", "ValidatingAdmissionPolicy",
    "MutatingAdmissionPolicy",
)  # fmt: skip


def packed_programs() -> Path:
    return Path(os.environ.get("VDBG_KUBE_PROGRAMS") or ROOT.parent / "shared" / "kube")


def missing() -> str | None:
    """Return why there can be no API server here."""
    folder = packed_programs()
    absent = [name for name, pattern in PROGRAMS.items() if not any(folder.glob(pattern))]
    if absent:
        return f"no {' and no '.join(absent)} in {folder} (VDBG_KUBE_PROGRAMS names another folder)"
    if shutil.which("openssl") is None or shutil.which("unshare") is None:
        return "openssl and unshare are needed"
    return None if os.geteuid() == 0 else "each pod has its own mounts here, which needs root"


def unpacked(name: str) -> Path:
    """Return a program, unpacked once for each version of it."""
    packed = next(iter(sorted(packed_programs().glob(PROGRAMS[name]))))
    target = CACHE / f"{packed.stem}-{packed.stat().st_size}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(f".{os.getpid()}")
        with lzma.open(packed) as source, unfinished.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    return target


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ApiServer:
    """The two processes; `kill` and `start` again keeps what was stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._etcd_ports = (free_port(), free_port())
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._certificate()
        self._context = ssl.create_default_context(cafile=str(folder / "c.crt"))
        self._context.load_cert_chain(folder / "c.crt", folder / "c.key")

    def start(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        if self._etcd is None:
            self._etcd = self._run(
                "etcd", "--data-dir", "data", "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--unsafe-no-fsync",
                "--initial-cluster", f"default={peer}",
            )  # fmt: skip
        self._server = self._run(
            "kube-crd-apiserver", "--etcd-servers", client, "--secure-port", str(self.port),
            "--bind-address", "127.0.0.1", "--tls-cert-file", "c.crt", "--tls-private-key-file", "c.key",
            "--client-ca-file", "c.crt", "--authentication-skip-lookup", "--authentication-kubeconfig", "config",
            "--authorization-kubeconfig", "config", "--kubeconfig", "config",
            "--disable-admission-plugins", ",".join(_OFF),
        )  # fmt: skip
        self._wait()

    def kill(self) -> None:
        assert self._server
        self._server.send_signal(signal.SIGKILL)
        self._server.wait()

    def pause(self) -> None:
        """Have it accept connections and answer nothing, until `go_on`."""
        assert self._server
        self._server.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._server
        self._server.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in (self._server, self._etcd):
            if process and process.poll() is None:
                process.kill()
                process.wait()

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self._context, timeout=120)

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> tuple[int, Any]:
        connection = self.connection()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
            response = connection.getresponse()
            said = response.read()
            return response.status, json.loads(said) if said.startswith(b"{") else said.decode()
        finally:
            connection.close()

    def _wait(self) -> None:
        """Wait until it answers: its own readiness also asks for parts of a cluster that are not here."""
        end = time.monotonic() + 60
        while True:
            try:
                status, _ = self.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
                if status == 200:
                    return
            except OSError:
                pass
            assert time.monotonic() < end, (self.folder / "kube-crd-apiserver.log").read_text()[-2000:]
            time.sleep(0.1)

    def _run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [unpacked(name), *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _certificate(self) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", "c.key", "-out", "c.crt", "-days", "30", "-subj", "/O=system:masters/CN=admin",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            cwd=self.folder, check=True, capture_output=True,
        )  # fmt: skip
        (self.folder / "config").write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: a, user: u}}]\n"
            f'clusters: [{{name: a, cluster: {{server: "https://127.0.0.1:{self.port}", '
            "certificate-authority: c.crt}}]\n"
            "users: [{name: u, user: {client-certificate: c.crt, client-key: c.key}}]\n"
        )
