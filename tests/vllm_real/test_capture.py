"""Requests to a real vLLM pass through `vdbg-env capture`, and what it recorded is answered again."""

import http.client
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience
from tests.vllm_real.conftest import Serving
from tests.vllm_real.server import Answer
from vdbg_env.supervisor import request_driver

pytestmark = [pytest.mark.vllm, pytest.mark.long]


def posted(port: int, line: dict[str, Any]) -> tuple[Answer, int]:
    """Send one request to a port; return its answer and in how many pieces it arrived."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience(120))
    started = time.monotonic()
    connection.request("POST", line["url"], json.dumps(line["body"]), {"Content-Type": "application/json"})
    answer, pieces = connection.getresponse(), []
    while piece := answer.read1(1 << 16):
        pieces.append(piece)
    connection.close()
    return Answer(answer.status, b"".join(pieces).decode(), time.monotonic() - started), len(pieces)


def test_what_was_recorded_is_answered_again(
    serving: Serving, recorded_requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in recorded_requests.read_text().splitlines()]
    recording = tmp_path / "requests.jsonl"
    with serving("--enforce-eager") as server:
        server.wait_until_ready()
        capture = subprocess.Popen(
            [Path(sys.executable).parent / "vdbg-env", "capture", "--port", "0", "--to", f"127.0.0.1:{server.port}",
             "-o", recording, "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert capture.stderr and capture.stdout
            port = int(capture.stderr.readline().split(",")[0].rsplit(":", 1)[1])
            direct = [posted(server.port, line)[0] for line in lines]
            passed = [posted(port, line) for line in lines]
            assert [answer.status for answer, _ in passed] == [200] * 4
            streamed, pieces = passed[2]
            assert streamed.text.endswith("data: [DONE]\n\n")
            assert pieces > 1, "the events of a stream pass one by one"
            texts = [[json.loads(a.text)["choices"][0] for a in some if a.text[0] == "{"] for some in (
                direct, [answer for answer, _ in passed])]  # fmt: skip
            assert texts[0] == texts[1], "the answer is the server's, byte for byte but for its times"
        finally:
            capture.send_signal(signal.SIGINT)
            report = json.loads(capture.communicate(timeout=patience(30))[0])
        assert (report["recorded"], report["unanswered"]) == (4, 0)
        assert [json.loads(line)["body"] for line in recording.read_text().splitlines()] == [x["body"] for x in lines]
        url = f"http://127.0.0.1:{server.port}/health"
        document = {"ready_url": url, "ready_timeout_s": 10, "replay": str(recording)}
        assert request_driver.main(document) == request_driver.ALL_SENT
        counts = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (counts["sent"], counts["answered"]) == (4, 4)
