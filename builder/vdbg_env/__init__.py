"""From a crashed GPU kernel to its source line.

Programs may rely on the functions that are named here; each is loaded when it is first used.
"""

# Nothing is imported here: it could come from the workload's folders, which `__main__` puts behind the library.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from vdbg_env.agents.library import read_cores, recorded_run, run_report, triage_logs, verify_files

__version__ = "0.1.0"
# Set by the person who publishes the repository. While they are empty, the package names neither, and links of its
# README stay relative.
REPOSITORY = ""
AUTHOR = ""
__all__ = ["read_cores", "recorded_run", "run_report", "triage_logs", "verify_files"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'vdbg_env' has no attribute {name!r}")
    from vdbg_env.agents import library

    return getattr(library, name)
