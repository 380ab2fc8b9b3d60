"""`runs redact` on files of any size: in bounded memory, and what has no secret is left as it is."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vdbg_env.record.masking import redact_run
from vdbg_env.record.redactor import Redactor

SECRET = b"tell-nobody-77"
MEMORY = 160 << 20  # bytes; Python and what is imported take 50 MB
PROGRAM = """\
import resource, sys
from pathlib import Path
from vdbg_env.record.masking import redact_run
from vdbg_env.record.redactor import Redactor
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
print(*redact_run(Path(sys.argv[1]), Redactor((sys.argv[3].encode(),)), (sys.argv[3].encode(),)).changed)
"""
LINE = b'{"seq": %d, "at": "x", "elapsed_s": 0.0, "kind": "k", "x": "%s"}\n'
MIB = 1 << 20
LOGS = {
    "a long line": (LINE % (1, b"%s"), b"all work and no play " * 50_000, 70 * MIB),
    "a line of numbers": (b'{"seq": 1, "x": [%s]}\n', b"1, " * 349_000, 30 * MIB),
    "a line of secrets": (LINE % (1, b"%s"), (SECRET + b" ") * 70_000, 6 * MIB),
    "no line end": (b"%s", b"\0" * MIB, 70 * MIB),
}


@pytest.mark.parametrize(
    ("log", "name"), [*((log, "events.jsonl") for log in LOGS), ("a line of numbers", "report.json")]
)
def test_memory_does_not_grow_with_a_line(tmp_path: Path, log: str, name: str) -> None:
    around, block, size = LOGS[log]
    before, after = around.split(b"%s")
    with (tmp_path / name).open("wb") as file:
        file.write(LINE % (1, SECRET) if name == "events.jsonl" else b"")
        file.write(before)
        for _ in range(size // len(block)):
            file.write(block)
        file.write(SECRET + after + LINE % (3, SECRET))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(MEMORY), SECRET.decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode().split()) == (0, [name]), done.stderr.decode()
    assert subprocess.run(["grep", "-qaF", SECRET, tmp_path / name], check=False).returncode == 1
    assert (tmp_path / name).stat().st_size > size / 4


@pytest.mark.parametrize("name", ["events.jsonl", "large.json"])
@pytest.mark.parametrize(
    "value",
    [
        {"token": 151645123, "x": -7},
        {"key": "curl -u me:pa55word\\"},
        {"said": 'curl -u me:pa55word" and on'},
        {"path": "C:\\" + SECRET.decode() + "\\x"},
        {"text": "a\n" + SECRET.decode()},
        {"text": "\tell-nobody-77"},
        {"text": 'password: 123456789, "token": "a1b2c3d4"'},
    ],
)
def test_json_that_is_too_long_to_be_parsed_stays_json(tmp_path: Path, name: str, value: dict[str, object]) -> None:
    (tmp_path / name).write_text(json.dumps({"a": "b" * (5 * MIB), **value, "end": 1}) + "\n")
    assert redact_run(tmp_path, Redactor((SECRET,))).changed == (name,)
    redacted = json.loads((tmp_path / name).read_bytes())
    assert redacted["end"] == 1 and redacted.keys() == {"a", *value, "end"}
    assert "pa55word" not in str(redacted) and SECRET.decode() not in str(redacted)


def test_each_line_of_a_log_stays_json_and_a_long_one_is_redacted_as_a_text(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    long = b"a" * (6 * MIB) + b" " + SECRET + b" " + b"b" * MIB
    log.write_bytes(LINE % (1, b"x") + LINE % (2, SECRET) + LINE % (3, long) + LINE % (4, SECRET))
    assert redact_run(tmp_path, Redactor((SECRET,))).changed == ("events.jsonl",)
    first, second, third, fourth = (json.loads(line) for line in log.read_bytes().splitlines())
    assert (first["x"], second["x"], fourth["x"]) == ("x", "[redacted known-value]", "[redacted known-value]")
    assert third["x"] == long.decode().replace(SECRET.decode(), "[redacted known-value]")


@pytest.mark.parametrize("name", ["events.jsonl", "report.json", "stdout"])
def test_a_file_without_secrets_is_not_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(LINE % (1, b"x" * (5 * MIB)) + LINE % (2, b"y"))
    before = path.stat()
    assert redact_run(tmp_path, Redactor((SECRET,))).changed == ()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_end_that_is_dropped_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"ok\ntoken=" + b"a" * (5 * MIB))
    assert redact_run(tmp_path, Redactor()).changed == ("stdout",)
    assert (tmp_path / "stdout").read_bytes() == b"ok\ntoken=[redacted value]"


class Enough(Exception):
    pass


@pytest.mark.parametrize("kind", ["a second name", "a text", "a log", "compressed"])
def test_what_takes_long_can_be_ended(tmp_path: Path, kind: str) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise Enough

    names = {"a text": "stdout", "a log": "x.jsonl", "compressed": "x.gz", "a second name": "core"}
    path = tmp_path / "run" / names[kind]
    path.parent.mkdir()
    path.write_bytes((SECRET + b"\n") * 1_000_000)
    if kind == "a second name":
        os.link(path, tmp_path / "other")
    if kind == "compressed":
        path.write_bytes(gzip.compress(b"harmless\n" * 1_000_000, 1))
    before = path.read_bytes()
    with pytest.raises(Enough):
        redact_run(path.parent, Redactor((SECRET,)), (SECRET,), check=check)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before
