"""`vdbg-env verify`: does every cubin with code carry line info?

Below 150 lines: alone, because a proof of a file loads nothing that builds images.
"""

from __future__ import annotations

import os
from typing import Final, Literal, assert_never

import click

from gpucore.lineinfo import Verdict
from vdbg_env.build.prove import VerifyRequest, coverage_by_packs, verify_binaries, verify_json, verify_text
from vdbg_env.cli.options import lines_option
from vdbg_env.common import console
from vdbg_env.common.console import json_text, progress_bar
from vdbg_env.common.programs import Programs
from vdbg_env.crash.files import Scratch
from vdbg_env.crash.line_packs import PackCoverage, compare_with_packs, packed_lines
from vdbg_env.engine.targets import Targets

MOST_THREADS: Final = 8


@click.command("verify")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (schema vdbg-env/verify/v1).")
@click.option("--all", "every_missing", is_flag=True, help="List everything that lacks line info, not just ten.")
@click.option(
    "--witness",
    type=click.Choice(["cuobjdump", "none"]),
    help="Cross-check with cuobjdump (slow; needs memory for the whole expanded file). [default: if it is installed]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=lambda: min(MOST_THREADS, len(os.sched_getaffinity(0))),
    help="Cubins read in parallel; more need more memory. [default: one per core, at most 8]",
)
@lines_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit status is the answer.")
def verify_command(
    targets: tuple[str, ...],
    as_json: bool,
    every_missing: bool,
    witness: Literal["cuobjdump", "none"] | None,
    threads: int,
    line_packs: tuple[str, ...],
    quiet: bool,
) -> int:
    """Prove that every cubin with code carries line info.

    TARGET is a library, object file, static library, wheel, .cubin, .fatbin, a tar or a folder of these, or a container
    image: IMAGE, IMAGE:/FOLDER or a file of docker save. Nothing in it is run, and no GPU, driver or CUDA toolkit is
    needed. In an IMAGE of `vdbg-env build`, only what the build made is checked; IMAGE:/ checks all of it. GPU cores in
    a folder or an image are counted, not checked.

    With --lines it also reports for how many functions the packs have lines.

    Exit status: 0 every cubin with code carries line info; 3 some lack it; 4 there is no device code; 2 a target could
    not be read.

    \b
    Example:
      vdbg-env verify vllm/_C_stable_libtorch.abi3.so
      vdbg-env verify --json dist/*.whl > proof.json
      vdbg-env verify --lines vllm-0.33.0.lines vllm/_C_stable_libtorch.abi3.so
      vdbg-env verify --witness none my-debug-image:latest:/opt/vdbg/out
    """
    request = VerifyRequest(targets=targets, witness=witness, threads=threads)
    with progress_bar(quiet=quiet) as tell:
        report = verify_binaries(request, source=Targets(built=True), programs=Programs(), scratch=Scratch(), tell=tell)
    packed: tuple[PackCoverage, ...] = ()
    if line_packs and not quiet:
        packs = packed_lines(line_packs)
        packed = compare_with_packs(targets, Targets(built=True), packs)
        console.note(*(f"note: {note}" for note in packs.notes))
    if as_json:
        click.echo(json_text(verify_json(report, packed)), nl=False)
    elif not quiet:
        click.echo(verify_text(report, every_missing=every_missing), nl=False)
        click.echo(coverage_by_packs(packed), nl=False)
    return exit_status(report.verdict)


def exit_status(verdict: Verdict) -> int:
    """Return the exit status that says the verdict."""
    match verdict:
        case Verdict.FULL:
            return 0
        case Verdict.PARTIAL | Verdict.NONE:
            return 3
        case Verdict.NO_DEVICE_CODE:
            return 4
        case Verdict.UNREADABLE:
            return 2
        case never:
            assert_never(never)
