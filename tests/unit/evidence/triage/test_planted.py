"""Real logs with what a site adds to them: the answer stays that of the plain log.

The logs are those of the project, and published ones where their folder is at hand (tests/support/genuine.py).
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.genuine import genuine_logs, require_genuine
from tests.support.triage import LOGS, corpus, triage_bytes
from vdbg_env.crash.triage import triage_logs
from vdbg_env.evidence.log_line import decode, unwrap

Lines = list[bytes]
RANKS = 4


def each(before: bytes, after: bytes = b"") -> Callable[[Lines], Lines]:
    return lambda lines: [before + line + after for line in lines]


def counted(form: str) -> Callable[[Lines], Lines]:
    """Return what gives each line the stamp of its number."""
    return lambda lines: [
        form.format(h=10 + at // 3600, m=at // 60 % 60, s=at % 60).encode() + line for at, line in enumerate(lines)
    ]


def mixed(lines: Lines, between: int = 0) -> Lines:
    """Return the lines as four ranks write them, each in its own order and at its own speed.

    A fifth rank writes some lines after each burst of these.
    """
    step = [b"[rank4]: step"] * between
    chance = random.Random(len(lines))
    places = [0] * RANKS
    found = []
    while any(place < len(lines) for place in places):
        rank = chance.choice([rank for rank in range(RANKS) if places[rank] < len(lines)])
        for line in lines[places[rank] : places[rank] + chance.randint(1, 9)]:
            found.append(b"[rank%d]: " % rank + line)
            places[rank] += 1
        found += step
    return found


def in_json(key: str, line: bytes) -> bytes:
    return json.dumps({"time": "2026-11-03T10:00:00Z", "id": 7, key: decode(line)}, ensure_ascii=False).encode()


WRAPPINGS: dict[str, Callable[[Lines], Lines]] = {
    "colours": each(b"\x1b[36m", b"\x1b[0m"),
    "iso-stamps": counted("2026-11-03T{h:02}:{m:02}:{s:02}.123456789Z "),
    "clock-stamps": counted("[{h:02}:{m:02}:{s:02}] "),
    "slash-stamps": counted("2026/11/03 {h:02}:{m:02}:{s:02} "),
    "kubectl": each(b"[pod/vllm-0/server] "),
    "journald": counted("Nov 03 {h:02}:{m:02}:{s:02} node-1 vllm[4711]: "),
    "journald-short-iso": counted("2026-11-03T{h:02}:{m:02}:{s:02}+0000 node-1 vllm[4711]: "),
    "loki": counted('2026-11-03T{h:02}:{m:02}:{s:02}Z {{container="vllm", pod="vllm-0"}} '),
    "aws-logs-tail": counted("2026-11-03T{h:02}:{m:02}:{s:02}.123000+00:00 ecs/vllm/0f3c9d7b1f6e "),
    "stern": each(b"vllm-7c9f8d6b54-x2xq9 server "),
    "cloud-json": lambda lines: [in_json("textPayload", line) for line in lines],
    "logger-json": lambda lines: [in_json("message", line) for line in lines],
    "four-ranks": mixed,
    "four-ranks-far-apart": lambda lines: mixed(lines, 300),
    "four-ranks-coloured-in-kubectl": lambda lines: each(b"[pod/vllm-0/server] \x1b[36m", b"\x1b[0m")(mixed(lines)),
}


@pytest.fixture(scope="module", params=["own", "published"])
def forty(request: pytest.FixtureRequest) -> list[bytes]:
    """Return forty logs with a failure, none of them larger than 40 kB."""
    if request.param == "own":
        read = [path.read_bytes() for path in sorted((LOGS / "real-vllm").glob("*.log"))]
        read += [log.read() for log in corpus() if log.root and log.source != "constructed"]
    else:
        read = [log.file.read_bytes() for log in genuine_logs(require_genuine()) if log.root][::2]
    plain = [data.replace(b"\r\n", b"\n") for data in read if data and len(data) < 40_000 and b"\x1b" not in data]
    found = [data for data in plain if triage_bytes(data).root_cause][:40]
    assert len(set(found)) == 40
    return found


def answer(data: bytes) -> tuple[str, str]:
    """Return the class and the root line without what wraps it: four ranks write the same lines."""
    verdict = triage_bytes(data)
    root = verdict.root_cause
    return verdict.failure.name, unwrap(decode(data.split(b"\n")[root.line - 1])).text.strip() if root else ""


@pytest.mark.parametrize("name", sorted(WRAPPINGS))
def test_what_a_site_adds_to_each_line_changes_no_answer(name: str, forty: list[bytes]) -> None:
    wrapped = [b"\n".join(WRAPPINGS[name](log.split(b"\n"))) for log in forty]
    other = [log[:60] for log, many in zip(forty, wrapped, strict=True) if answer(many) != answer(log)]
    # Of four servers that find their port taken, the shutdown of one is taken for that of all.
    assert len(other) <= name.startswith("four-ranks") * sum(b"address already in use" in log for log in forty), other


def test_utf_16_changes_no_answer(tmp_path: Path, forty: list[bytes]) -> None:
    for log in forty:
        text = log.decode("utf-8", "replace")
        (tmp_path / "plain.log").write_text(text, "utf-8", newline="")
        (tmp_path / "recoded.log").write_text(text, "utf-16", newline="")
        plain, recoded = (triage_logs([str(tmp_path / name)]) for name in ("plain.log", "recoded.log"))
        assert plain.root_cause is not None
        assert recoded.root_cause is not None
        assert (recoded.failure.name, recoded.root_cause.line) == (plain.failure.name, plain.root_cause.line)


def test_a_log_cut_within_its_first_and_last_line_changes_no_answer(forty: list[bytes]) -> None:
    """Half of what is more than five lines from the root is gone on either side, and with it half a line."""
    other = 0
    for log in forty:
        lines = log.split(b"\n")
        root = triage_bytes(log).root_cause
        assert root is not None
        first, last = max(0, root.line - 6) // 2, min(len(lines), (root.line + 6 + len(lines)) // 2)
        begin = lines[first][len(lines[first]) // 2 :] if first + 1 < root.line else lines[first]
        kept = [begin, *lines[first + 1 : last], lines[last][:5] if last < len(lines) else b""]
        other += answer(b"\n".join(kept)) != answer(log)
    assert other == 0
