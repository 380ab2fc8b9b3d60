"""Fuzzes triage: any bytes, in any pieces, give a verdict."""

import atheris

with atheris.instrument_imports(include=["vdbg_env.evidence"]):
    from vdbg_env.evidence.cuda_gdb import parse_cuda_gdb
    from vdbg_env.evidence.log_line import unwrap
    from vdbg_env.evidence.sanitizer import parse_sanitizer, sanitizer_findings
    from vdbg_env.evidence.system import driver_findings, kernel_log_findings, parse_kernel_log, read_driver_progress

from tests.fuzz.harness import fuzz
from tests.support.triage import corpus, triage_bytes


def read(data: bytes) -> None:
    """Triage the bytes, whole and in pieces, and read them as every tool's text."""
    assert triage_bytes(data) == triage_bytes(data, chunk=61)
    text = data.decode("utf-8", "replace")
    driver_findings(read_driver_progress(unwrap(line) for line in text.splitlines()))
    kernel_log_findings(parse_kernel_log(text))
    sanitizer_findings(parse_sanitizer(text))
    parse_cuda_gdb(text)


if __name__ == "__main__":
    fuzz(read, [log.read() for log in corpus()], longest=1 << 14)
