"""What is here of a model, whether the hub gives it, how fast it is read: run on files and a hub of our own."""

import fcntl
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.checks import check_module, run_check, seen_by

DOWNLOAD, SPEED = "model-download-hangs", "slow-file-system"
SERVE = ("--", "vllm", "serve", "org/model")
place = check_module("model_place")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache that holds one whole model."""
    folder = tmp_path / "hub" / "models--org--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    (folder / "one.safetensors").write_bytes(bytes(1 << 20))
    return tmp_path / "hub"


def files(cache: Path, status: int = 0) -> dict[str, dict[str, str]]:
    return seen_by(DOWNLOAD, run_check("model_files", *SERVE, environment={"HF_HUB_CACHE": str(cache)}, status=status))


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["vllm", "serve", "org/m"], "org/m"),
        (["/usr/bin/vllm", "serve", "org/m", "--port", "1"], "org/m"),
        (["env", "A=1", "vllm", "serve", "--port", "1"], None),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model=org/m"], "org/m"),
        (["vllm", "serve", "x", "--model", "org/m"], "org/m"),
        (["vllm", "bench", "serve", "org/m"], None),
        ([], None),
    ],
)
def test_the_model_is_read_from_the_command_line(words: list[str], model: str | None) -> None:
    assert place.model_of(words) == model


@pytest.mark.parametrize(
    ("words", "environment", "folder"),
    [
        ([], {"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ([], {"HF_HOME": "/b"}, "/b/hub"),
        ([], {"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        (["--download-dir", "/d"], {"HF_HUB_CACHE": "/a"}, "/d"),
    ],
)
def test_the_cache_is_where_the_hub_puts_it(words: list[str], environment: dict[str, str], folder: str) -> None:
    assert str(place.cache_folder(words, environment)) == folder


def test_a_whole_model_is_whole(cache: Path) -> None:
    seen = files(cache)
    assert seen["whole"]["files"] == "1"
    assert float(seen["room"]["free"]) > 0
    assert not seen.keys() & {"in_part", "nowhere", "unfinished", "locked"}


def test_a_file_the_index_names_is_missed(cache: Path) -> None:
    next(cache.rglob("one.safetensors")).unlink()
    assert "one.safetensors" in files(cache, status=1)["in_part"]["what"]


def test_an_unfinished_download_and_the_lock_of_who_does_it_are_told(cache: Path) -> None:
    blobs = cache / "models--org--model" / "blobs"
    blobs.mkdir()
    (blobs / "abc.incomplete").write_bytes(bytes(3 << 20))
    lock = cache / ".locks" / "models--org--model" / "abc.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert "locked" not in files(cache)
    with lock.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        seen = files(cache)
    assert seen["locked"]["lock"] == str(lock)
    assert seen["unfinished"] == {"count": "1", "size": "0.00 GiB"}


def test_a_model_that_is_not_here_and_one_that_is_not_named(tmp_path: Path) -> None:
    assert files(tmp_path, status=1)["nowhere"]["model"] == "org/model"
    for name in ("model_files", "hub_reach", "read_speed"):
        printed = run_check(name, "--", "python3", "x.py", status=2)
        assert "unnamed" in seen_by(SPEED if name == "read_speed" else DOWNLOAD, printed)


def test_a_model_can_be_named_apart(cache: Path) -> None:
    printed = run_check("model_files", "--model", "org/model", "--", "a.py", environment={"HF_HUB_CACHE": str(cache)})
    assert "whole" in seen_by(DOWNLOAD, printed)


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as the check asks for."""

    def do_GET(self) -> None:
        status, body = {
            "/api/models/org/model": (200, json.dumps({"siblings": [{"rfilename": "w.safetensors"}]}).encode()),
            "/org/model/resolve/main/w.safetensors": (200, bytes(1 << 20)),
            "/api/models/org/bare": (200, json.dumps({"siblings": [{"rfilename": "w.safetensors"}]}).encode()),
            "/org/bare/resolve/main/w.safetensors": (403, b""),
            "/api/models/org/gated": (401 if "Authorization" not in self.headers else 403, b""),
        }.get(self.path, (404, b""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """A quiet hub."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def reach(hub: str, model: str, status: int, **environment: str) -> dict[str, dict[str, str]]:
    environment = {"HF_ENDPOINT": hub, "HF_HOME": "/nowhere", "no_proxy": "127.0.0.1", **environment}
    return seen_by(
        DOWNLOAD, run_check("hub_reach", "--", "vllm", "serve", model, environment=environment, status=status)
    )


def test_a_hub_that_answers_and_how_fast_weights_come(hub: str) -> None:
    assert float(reach(hub, "org/model", 0)["speed"]["speed"]) > 0


def test_weights_may_be_kept_back_where_the_list_of_files_is_not(hub: str) -> None:
    assert "are refused (status 403" in reach(hub, "org/bare", 1)["no_weights"]["what"]


def test_a_gate_is_told_with_and_without_a_token(hub: str) -> None:
    assert reach(hub, "org/gated", 1)["refused"] | {"what": ""} == {
        "what": "", "status": "401", "token": "without a token"
    }  # fmt: skip
    seen = reach(hub, "org/gated", 1, HF_TOKEN="hf_secret")
    assert (seen["refused"]["status"], seen["refused"]["token"]) == ("403", "with a token")
    assert "hf_secret" not in str(seen)
    assert reach(hub, "org/other", 1)["refused"]["status"] == "404"


def test_a_hub_that_is_not_reached_and_one_that_is_kept_out(tmp_path: Path) -> None:
    assert "is not reached" in reach("http://127.0.0.1:1", "org/model", 1)["unreached"]["what"]
    assert reach("http://127.0.0.1:1", "org/model", 1, HF_HUB_OFFLINE="1")["kept_out"]["name"] == "HF_HUB_OFFLINE"
    assert "local" in reach("http://127.0.0.1:1", str(tmp_path), 0)


def test_the_speed_of_this_disk_is_measured(cache: Path) -> None:
    environment = {"HF_HUB_CACHE": str(cache), "TMPDIR": str(cache)}
    seen = seen_by(SPEED, run_check("read_speed", *SERVE, "-tp", "4", environment=environment))
    assert int(seen["speed"]["speed"]) > 0
    assert seen["takes"]["ranks"] == "4"
    assert seen["other"]["folder"] == str(cache)
    assert seen.keys() & {"local", "shared"}


def test_weights_that_are_not_here_are_not_measured(tmp_path: Path) -> None:
    printed = run_check("read_speed", *SERVE, environment={"HF_HUB_CACHE": str(tmp_path)}, status=2)
    assert seen_by(SPEED, printed)["absent"]["model"] == "org/model"


@pytest.mark.parametrize(
    ("kind", "seen"), [("nfs4", "shared"), ("lustre", "shared"), ("fuse.s3fs", "shared"), ("ext4", "local")]
)
def test_shared_file_systems_are_told_from_local_ones(
    cache: Path, kind: str, seen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = check_module("read_speed")
    monkeypatch.setattr(speed, "file_system", lambda _path: (kind, "server:/models"))
    monkeypatch.setattr(speed, "available_memory", lambda: 1000)
    monkeypatch.setattr(speed, "tell_other_disk", lambda: None)
    monkeypatch.setattr("sys.argv", ["read_speed.py", "--", "vllm", "serve", str(next(cache.glob("*/snapshots/*")))])
    assert speed.main() == 0
    found = seen_by(SPEED, capsys.readouterr().out)
    assert found[seen]["kind"] == kind
    assert found["memory_short"]["size"] == "0.00 GiB"


def test_the_file_system_of_a_path_is_the_longest_mount_above_it() -> None:
    assert check_module("read_speed").file_system(Path("/proc/self"))[0] == "proc"
