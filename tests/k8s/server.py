"""A real API server and its etcd on this machine. Its programs are not part of the project: without them, tests skip.

The server is Kubernetes' own for custom resources, so it has no pods and jobs, and no list of its groups: `Front` gives
kubectl that list.
"""

from __future__ import annotations

import http.client
import json
import lzma
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    wanted = PROGRAMS | {"definitions of JobSet and LeaderWorkerSet": "crd/leaderworkerset.yaml.xz"}
    absent = [name for name, pattern in wanted.items() if not any(folder.glob(pattern))]
    if absent:
        return f"no {' and no '.join(absent)} in {folder} (VDBG_KUBE_PROGRAMS names another folder)"
    absent = [name for name in ("openssl", "kubectl") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else None


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


class Front:
    """The address that kubectl is given: the server, and the list of groups that an aggregator would add.

    The server has no OpenAPI of custom resources, without which kubectl does not ask for strict validation: this does.
    """

    def __init__(self, server: ApiServer, groups: tuple[str, ...]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def _pass_on(self) -> None:
                if self.path.partition("?")[0] == "/apis":
                    known = [server.call("GET", f"/apis/{group}")[1] for group in ("apiextensions.k8s.io", *groups)]
                    self._answer(
                        200, "application/json", json.dumps({"kind": "APIGroupList", "groups": known}).encode()
                    )
                    return
                size = int(self.headers.get("Content-Length") or 0)
                kept = {name: text for name in ("Content-Type", "Accept") if (text := self.headers.get(name))}
                path = self.path.replace("fieldValidation=Ignore", "fieldValidation=Strict")
                connection = server.connection()
                try:
                    connection.request(self.command, path, self.rfile.read(size) if size else None, kept)
                    response = connection.getresponse()
                    self._answer(response.status, response.getheader("Content-Type") or "", response.read())
                finally:
                    connection.close()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
