"""A real registry on this machine: Debian's docker-registry, on a free port, with or without a password."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

USER, PASSWORD = "builder", "let-me-push"
HTPASSWD = f"{USER}:$2b$04$q7oRFFrfPyoK9jrFKlNt2.mHKf5Atz4a3PBk5aLrzPXlbZAKoQHwG\n"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Registry:
    """`host` is what image names begin with, `127.0.0.1:PORT`: engines speak plain HTTP to a loopback address."""

    host: str

    def digest(self, name: str, tag: str) -> str:
        """Return the digest the registry itself has for a tag."""
        request = urllib.request.Request(f"http://{self.host}/v2/{name}/manifests/{tag}", headers={"Accept": MANIFEST})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.headers["Docker-Content-Digest"])


@contextlib.contextmanager
def running_registry(folder: Path, *, password: bool = False) -> Iterator[Registry]:
    """Run a registry that keeps its images in `folder`; skip where the program is not here."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry here: apt-get install docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    configuration: dict[str, object] = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": host},
    }
    if password:
        (folder / "htpasswd").write_text(HTPASSWD)
        configuration["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    (folder / "registry.yml").write_text(json.dumps(configuration))  # JSON is YAML
    with (folder / "registry.log").open("wb") as log:
        server = subprocess.Popen([program, "serve", str(folder / "registry.yml")], stdout=log, stderr=log)
    try:
        wait_until_it_answers(host)
        yield Registry(host)
    finally:
        server.terminate()
        server.wait(10)


def wait_until_it_answers(host: str) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://{host}/v2/", timeout=2).close()
            return
        except urllib.error.HTTPError:  # asks for a password: it answers
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the registry at {host} does not answer")
