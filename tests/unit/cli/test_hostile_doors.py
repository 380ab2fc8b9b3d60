"""One list of hostile texts at every door: binaries, cores, packs, file names, a run and its reports.

None moves a cursor, forges a line, makes a tag or breaks a document.
"""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.builders.core_builder import illegal_address_core
from tests.support.command_line import Ran, vdbg_env
from tests.support.cubins import cubin

HOSTILE = {
    "terminal": "\x1b]0;t\x07\x1b[2J",
    "lines": "\r\nverdict: full\n",
    "script": "</script><script>fetch('//x')</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "markdown": "| a ``` [x](javascript:x) @nvidia #1",
    "direction": "\u202e\u2066gnp",
    "C1 and separators": "\x9b31m\x85\u2028\u2029",
    "templates": "${{ env.X }} {{7*7}} %s {}",
    "comments": "]]> <!-- &lt; */",
}
_NAMES = re.compile(rb"(?<![\w.])(?:/src/kernels|_Z\w{5,})")

WORKLOAD = """
import os, sys
hostile, core = open(sys.argv[1], encoding="utf-8", newline="").read(), open(sys.argv[2], "rb").read()
open(os.environ["CUDA_COREDUMP_FILE"].replace("%p", "7").replace("%t", "1").replace("%h", "host"), "wb").write(core)
print("INFO vLLM API server version " + hostile, flush=True)
print("torch.AcceleratorError: CUDA error: an illegal memory access was encountered " + hostile, file=sys.stderr)
def fail(): raise type("Error" + hostile, (Exception,), {})(hostile)
fail.__code__ = fail.__code__.replace(co_name=hostile, co_filename="/x/" + hostile)
fail()
"""


def planted(data: bytes, text: str) -> bytes:
    """Return a binary whose names of functions, files and folders begin with a text, where it fits."""
    hostile = text.encode()

    def put(found: re.Match[bytes]) -> bytes:
        return (hostile + found[0][len(hostile) :]) if len(found[0]) >= len(hostile) else found[0]

    return _NAMES.sub(put, data)


def check(ran: Ran, *, is_json: bool = False) -> None:
    """Hold an answer to be lines of printable text, or a document, and nothing that a name forged."""
    for stream in (ran.stdout, ran.stderr):
        assert all(c.isprintable() or c == "\n" for c in stream), stream
        assert not re.search(r"^verdict: full$|Traceback", stream, re.MULTILINE)
    if is_json and ran.stdout:
        json.loads(ran.stdout)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_names_in_binaries_and_of_files_are_shown_as_text(tmp_path: Path, text: str) -> None:
    name = text.replace("/", "_")
    core, library = tmp_path / f"{name}.nvcudmp", tmp_path / f"{name}.cubin"
    core.write_bytes(planted(illegal_address_core(), text))
    library.write_bytes(planted(cubin("inline_chain_sm90"), text))
    pack = str(tmp_path / f"{name}.lines")
    assert vdbg_env("lines", "pack", str(library), "-o", pack).status == 0
    for words in (
        ["core"], ["core", "--json"], ["core", "--all", "--registers", "--parameters"], ["core", "--lines", pack],
        ["verify"], ["verify", "--json"], ["dumps", "list", "--dumps"], ["dumps", "list", "--json", "--dumps"],
    ):  # fmt: skip
        check(vdbg_env(*words, str(tmp_path)), is_json="--json" in words)
    for words in (
        ["lines", "show", pack], ["lines", "show", "--json", pack], ["lines", "verify", pack], ["lines", "list", pack],
        ["locate", "0x100", str(library)], ["locate", "0x100", "-k", text, str(library)], ["runs", "show", text],
        ["runbook", text, "--", "true"], ["images", "show", text], ["build", "--source", f"git+https://x/y@{text}"],
        ["verify", text], ["run", "--image", text, "--", "true"], ["triage", text], [text], ["runs", text],
    ):  # fmt: skip
        check(vdbg_env(*words), is_json="--json" in words)


class Tags(HTMLParser):
    """Keeps what a page must not have: programs, pictures and addresses of others."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, object]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "img", "iframe", "object", "embed", "form", "base"}:
            self.found.append((tag, attrs))
        self.found += [(tag, one) for one in attrs if re.match(r"on|style$", one[0])]
        self.found += [
            (tag, one) for one in attrs if re.match(r"\s*(?:javascript|https?:|//)", one[1] or "", re.IGNORECASE)
        ]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_run_and_its_reports_show_them_as_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "hostile").write_text(text, newline="")
    (tmp_path / "core").write_bytes(planted(illegal_address_core(), text))
    workload = [sys.executable, "-c", WORKLOAD, str(tmp_path / "hostile"), str(tmp_path / "core"), text]
    runs = tmp_path / f"runs {text.replace('/', '_')}"
    argv = [sys.executable, "-m", "vdbg_env", "guard", "--runs", str(runs), "--", *workload]
    env = {**os.environ, "SLURM_JOB_NAME": text, "SLURMD_NODENAME": text, "VLLM_HOST_IP": text, "VLLM_NOT_KNOWN": text}
    ran = subprocess.run(argv, env=env, capture_output=True, timeout=120, check=False)
    assert ran.returncode == 1
    (said,) = (line for line in ran.stderr.split(b"\n") if line.startswith(b'{"schema": "vdbg-env/guard'))
    assert json.loads(said)["kernel"] and all(32 <= byte < 127 for byte in said)
    (run,) = (path for path in runs.iterdir() if path.is_dir())
    for name in ("report.json", "report.md", "report.html"):
        page = (run / name).read_text(encoding="utf-8")
        assert all(c.isprintable() or c == "\n" for c in page), name
        if name.endswith("json"):
            json.loads(page)
    assert Tags((run / "report.html").read_text(encoding="utf-8")).found == []
    stderr = str(next(run.rglob("stderr")))
    for words in (["runs", "show"], ["runs", "show", "--json"], ["runs", "report"], ["triage"]):
        check(vdbg_env(*words, str(run)), is_json="--json" in words)
    check(vdbg_env("triage", "--json", stderr), is_json=True)
