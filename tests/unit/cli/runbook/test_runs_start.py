"""A list of ten thousand runs takes less than a second: so nothing is imported for it that takes longer to start."""

import subprocess
import sys
from pathlib import Path

LIST = """
import sys
from vdbg_env.cli import main
main(["runs", "list"])
heavy = {"pydantic", "celpy", "re2", "jinja2", "yaml", "docker", "rich", "vdbg_env.runbook"}
print(sorted(heavy & set(sys.modules)))
"""


def test_a_list_from_the_index_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIST], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stdout
