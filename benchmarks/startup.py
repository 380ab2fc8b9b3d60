"""How long `vdbg-env --version` takes against an empty click program; run as `python -m benchmarks.startup`."""

import sys

from benchmarks.paired import compare

EMPTY = """
import click
@click.group()
@click.version_option("1", prog_name="empty")
def main(): pass
main(["--version"])
"""


def main() -> None:
    """Print both times and their ratio; the goal is a ratio of at most 2."""
    ours = [sys.executable, "-m", "vdbg_env", "--version"]
    print(compare(("vdbg-env --version", ours), ("empty click program", [sys.executable, "-c", EMPTY]), runs=15))


if __name__ == "__main__":
    main()
