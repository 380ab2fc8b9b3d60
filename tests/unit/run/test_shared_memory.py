"""How much shared memory a workload has is measured where it will run."""

from pathlib import Path

import pytest

from tests.unit.run.test_steps import Bench, Programs, bench, promised
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import Programs as RealPrograms

__all__ = ["bench"]

HEAD = "Filesystem     1024-blocks  Used Available Capacity Mounted on\n"


def test_the_default_of_a_container_is_too_small(bench: Bench) -> None:
    bench.programs = Programs({"df": f"{HEAD}shm                  65536     0     65536       0% /dev/shm\n"})
    done = promised("shared-memory", bench.use("shared-memory"))
    assert done.results == {"size": 64 << 20, "free": 64 << 20, "enough": False}
    assert done.findings[0].message.startswith("/dev/shm has 64.0 MiB free of 64.0 MiB")
    assert "--shm-size 16g" in str(done.findings[0].next_step)


def test_enough_is_no_finding_and_the_runbook_may_say_what_is_enough(bench: Bench) -> None:
    bench.programs = Programs({"df": f"{HEAD}tmpfs              16777216 4194304  12582912      25% /dev/shm\n"})
    done = promised("shared-memory", bench.use("shared-memory"))
    assert (done.results["enough"], done.findings) == (True, ())
    assert promised("shared-memory", bench.use("shared-memory", least=20 << 30)).results["enough"] is False


@pytest.mark.parametrize("answer", ["", "df: /dev/shm: No such file or directory\n", HostNotAble("df took too long")])
def test_what_cannot_be_measured_gives_no_result(bench: Bench, answer: str | HostNotAble) -> None:
    bench.programs = Programs({"df": answer})
    done = bench.use("shared-memory")
    assert (done.results, done.findings) == ({}, ()) and done.notes


def test_the_df_of_this_machine_is_understood(bench: Bench) -> None:
    bench.programs = RealPrograms()  # type: ignore[assignment]
    results = promised("shared-memory", bench.use("shared-memory")).results
    assert Path("/dev/shm").exists() == ("size" in results)
