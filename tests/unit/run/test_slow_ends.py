"""A capture ends at once, however slow its clients and its server are."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience

ROOT = Path(__file__).parents[3]
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def test_slow_clients_and_a_slow_server_hold_up_no_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections, and never answers
        to = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-m", "vdbg_env", "capture", "--port", "0", "--to", to, "-o", str(tmp_path / "out")]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as capture:
            assert capture.stderr
            port = int(capture.stderr.readline().partition(",")[0].rpartition(":")[2])
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
            for number, client in enumerate(clients):
                ends = (b"X-a: ", b"Content-Length: 9999\r\n\r\n{", b"Content-Length: 2\r\n\r\n{}")
                client.sendall(HEAD + ends[number % 3])
            server.accept()[0].close()
            capture.send_signal(signal.SIGTERM)
            assert capture.wait(timeout=patience(2.0) + 3) == 0
            for client in clients:
                client.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a name server of its own needs root")
def test_a_name_server_that_does_not_respond_holds_up_no_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.9", 53))
        server.settimeout(30)
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.9\noptions timeout:30\n")
        shell = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec "$@"'
        words = ["-m", "vdbg_env", "capture", "--port", "0", "--to", "no-such-host.example:80", "-o", f"{tmp_path}/out"]
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", shell, "sh", sys.executable, *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as capture:
            assert capture.stderr
            port = int(capture.stderr.readline().partition(",")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")
                assert b"no-such-host" in server.recvfrom(512)[0]
                capture.send_signal(signal.SIGTERM)
                assert capture.wait(timeout=15) == 0, "the name server is waited for 30 s and longer"
