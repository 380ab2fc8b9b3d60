"""What an image's own Python runs to say which architectures its libraries are for: no package, and no module of ours
beyond those that it is given."""

import json
import subprocess
import sys
from pathlib import Path

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from vdbg_env_lines import swap


def test_the_readers_that_an_image_gets_are_enough(tmp_path: Path) -> None:
    for name, data in swap.readers().items():
        path = tmp_path / "lent" / Path(name).relative_to(swap._LENT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    library = tmp_path / "vllm" / "_C.abi3.so"
    library.parent.mkdir()
    library.write_bytes(host_library(container(EntrySpec(payload=cubin("k"), arch=90))))
    script = swap._TARGETS.replace(swap._LENT, str(tmp_path / "lent"))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(library.parent)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == "" and json.loads(ran.stdout) == {str(library): ["sm_90"]}
