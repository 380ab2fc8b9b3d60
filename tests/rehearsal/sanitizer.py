"""Reports as compute-sanitizer 2025.3 does on an H100, about a sample's stand-in.

The program is run, for what it prints and how it ends; whether there is anything to report is the sample's own matter.
The form of the XML is not published: what is written here says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from tests.gpu.machine import MARK
from tests.gpu.samples import Sample, samples
from tests.rehearsal.cores import Planted, planted
from tests.rehearsal.executed import LAUNCHED
from tests.rehearsal.program import machine_code

_HEADLINES = {
    "memcheck": "Invalid __global__ write of size 4 bytes\n    at {place}",
    "initcheck": "Uninitialized __global__ memory read of size 4 bytes\n    at {place}",
    "synccheck": "Barrier error detected. Divergent thread(s) in warp.\n    at {place}",
    "racecheck": "Error: Race reported between Write access at {function}+0x10 in {file}:{before}\n"
    "    and Read access at {function}+{offset} in {file}:{line} [128 hazards]",
}
_SUMMARIES = {"racecheck": "RACECHECK SUMMARY: {count} hazard displayed ({count} error, 0 warnings)"}


def main() -> int:
    """Run the program and report on it."""
    options, command = parted(sys.argv[1:])
    if "--version" in options:
        print(f"NVIDIA (R) Compute Sanitizer\n{MARK}: a stand-in\nVersion 2026.4")
        return 0
    tool = next((word.partition("=")[2] for word in options if word.startswith("--tool=")), "memcheck")
    done = subprocess.run(command)
    sample, binary = role(Path(command[0]))
    report = told(sample, binary, tool)
    save = options[options.index("--save") + 1] if "--save" in options else None
    log = next((word.partition("=")[2] for word in options if word.startswith("--log-file=")), None)
    if save:
        Path(save).write_text(xml(report))
    if log:
        Path(log.replace("%p", str(os.getpid()))).write_text(report)
    else:
        print(report, end="", flush=True)
    return done.returncode if done.returncode >= 0 else 255


def parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the sanitizer's options and the program's command; `--save` alone takes its value apart."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] == "--save" else 1
    return words[:at], words[at:]


def role(program: Path) -> tuple[Sample, Path]:
    """Return the sample a stand-in plays and the real binary behind it, from the script it is."""
    found = re.search(r"'tests\.rehearsal\.program' '([^']+)' '([^']+)'", program.read_text(errors="replace"))
    assert found, f"{program} is no stand-in"
    return next(s for s in samples() if s.name == found[1]), Path(found[2])


def told(sample: Sample, binary: Path, tool: str) -> str:
    """Return the report of one tool."""
    lines = ["COMPUTE-SANITIZER", f"{MARK}: a stand-in, no GPU was looked at"]
    guilty = sample.tool == tool
    if guilty and sample.kernel:
        code = machine_code(binary)
        lines += reported(sample, planted(code, sample), tool)
    elif guilty:
        lines.append('Program hit cudaErrorInvalidConfiguration (error 9) due to "invalid configuration argument" on '
                     "CUDA API call to cudaLaunchKernel.")  # fmt: skip
    summary = _SUMMARIES.get(tool, "ERROR SUMMARY: {count} errors")
    lines.append(summary.format(count=int(guilty)))
    return "".join(f"========= {line}\n" for line in lines)


def reported(sample: Sample, at: Planted, tool: str) -> list[str]:
    """Return one record as the tool words it."""
    function, offset, line = at.kernel.demangled, f"{at.offset:#x}", sample.sanitized or 0
    words = {"function": function, "offset": offset, "file": sample.source.name, "line": line, "before": line - 1}
    place = "{function}+{offset} in {file}:{line}".format(**words)
    record = _HEADLINES[tool].format(place=place, **words).splitlines()
    x, y, z = LAUNCHED[sample.name].block_index if sample.name in LAUNCHED else (0, 0, 0)
    return record if tool == "racecheck" else [*record, f"    by thread (0,0,0) in block ({x},{y},{z})"]


def xml(report: str) -> str:
    """Return a report as XML of a form made up for the rehearsal."""
    lines = re.findall(r"^========= (\w.*)$", report, re.MULTILINE)
    records = "".join(f"  <record>{escape(line)}</record>\n" for line in lines)
    return f"<!-- {MARK}: the form of the real file is not known -->\n<{MARK}>\n{records}</{MARK}>\n"


if __name__ == "__main__":
    sys.exit(main())
