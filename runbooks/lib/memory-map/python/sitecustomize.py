"""Has `vdbg_memory_map` watch PyTorch's allocator in any Python program, then runs the user's own sitecustomize."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _begin():
    try:
        sys.path.insert(0, str(HERE.parent))
        import vdbg_memory_map

        vdbg_memory_map.watch_torch()
    except (Exception, SystemExit):  # the program comes first, with modules of its own named as Python's
        pass
    finally:
        sys.path.remove(str(HERE.parent))


def _run_the_users():
    """Run the sitecustomize that Python would have found without this folder; its errors are Python's to report."""
    others = [path for path in sys.path if Path(path or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_begin()
_run_the_users()
