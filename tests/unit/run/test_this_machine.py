"""`doctor` of the machine that the tests run on: what it says is what the kernel and the tools say."""

import json
import resource
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.support.schemas import Contract
from vdbg_env.common.programs import Programs
from vdbg_env.run.doctor import UNLIMITED, LocalHost


def test_its_facts_are_the_machine_s_own(tmp_path: Path) -> None:
    facts = LocalHost(Programs(), ("bash", "no-such-tool")).gather(str(tmp_path / "not" / "there" / "yet"))
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    assert (facts.core.soft, facts.core.hard) == tuple(
        UNLIMITED if v == resource.RLIM_INFINITY else v for v in (soft, hard)
    )
    assert facts.core_pattern == Path("/proc/sys/kernel/core_pattern").read_text().strip()
    assert facts.shm == shutil.disk_usage("/dev/shm").total
    assert facts.dump_free is not None
    assert abs(facts.dump_free - shutil.disk_usage(tmp_path).free) < 1 << 30
    assert facts.tools["bash"] is not None
    assert facts.tools["no-such-tool"] is None


def test_looking_leaves_no_cgroup_behind(tmp_path: Path) -> None:
    facts = LocalHost(Programs(), ()).gather(str(tmp_path))
    if facts.cgroup is None:
        pytest.skip("no cgroup can be made here")
    assert not [name for name in Path(facts.cgroup).iterdir() if "doctor" in name.name]


def test_without_an_engine_the_command_says_so_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    ran = vdbg_env("doctor", "--json", "--dumps", str(tmp_path))
    told = json.loads(ran.stdout)
    Contract("doctor-v1").check(told)
    (engine,) = (check for check in told["checks"] if check["id"] == "engine")
    assert engine["status"] == "warn"
    assert engine["fix"]
    assert ran.status in {3, 4}
