"""Makes the recording that a runbook replays when it is given no workload and there is no GPU.

    PYTHONPATH=builder:. python tests/builders/sample_recording.py TARGET     (needs nvcc)

A stand-in for the bundled sample walks the ladder: what it prints is what the program prints, its core is synthetic
around the machine code nvcc makes of the sample. The recording says so. Once `make gpu` has run on a GPU, a recording
of the genuine program takes its place (docs/11-gpu-proof.md).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.gpu.samples import Sample, samples
from tests.gpu.stand_in_cores import program_of, synthetic_core
from tests.gpu.walking import vdbg_env

RECORDED_ON = "no machine: a synthetic core around the sample's machine code (nvcc 13.0, sm_90)"


def record(target: Path) -> None:
    """Write the recording; the paths in it are those of `/src`, where the sample is compiled."""
    home = Path("/src/samples")
    with tempfile.TemporaryDirectory() as folder:
        sample = next(s for s in samples() if s.name == "inlined-templates")
        core = synthetic_core(_at(sample, home), Path(folder))
        program = home / "inlined_templates"
        role = program_of(sample, Path(folder), core)
        program.write_text("#!/bin/sh\nexec " + " ".join(role) + "\n")
        program.chmod(0o755)
        options = ("--batch", "--run-dir", str(home / "run"), "--record", str(target))
        done = vdbg_env("runbook", "illegal-memory-access", *options, "--", "./inlined_templates", cwd=home)
        assert done.returncode == 3, done.stderr
    _label(target)
    shutil.rmtree(home)


def _at(sample: Sample, home: Path) -> Sample:
    """Return the sample with its source below `home`: the line table keeps the path it was compiled by."""
    from dataclasses import replace

    shutil.copytree(sample.source.parent, home)
    return replace(sample, source=home / sample.source.name)


def _label(target: Path) -> None:
    head = target / "recording.json"
    document = json.loads(head.read_text())
    document |= {"recorded_on": RECORDED_ON, "synthetic": True}
    head.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    os.umask(0o022)
    record(Path(sys.argv[1]).absolute())
