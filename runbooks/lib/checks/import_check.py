"""Load every compiled part of vLLM in a separate process, after PyTorch, and says which does not load, and why."""

import importlib.util
import pathlib
import subprocess
import sys

LOAD = "import sys, torch, ctypes; ctypes.CDLL(sys.argv[1])"


def main() -> int:
    parts = compiled_parts()
    wrong = 0
    for name, command in parts:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=180, check=False)
        if done.returncode != 0:
            wrong += 1
            said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            print(f"import-check: {name} failed: {said[-1]}", flush=True)
    if not wrong:
        print(f"import-check: all {len(parts)} parts load", flush=True)
    return 1 if wrong else 0


def compiled_parts() -> list[tuple[str, list[str]]]:
    """Return PyTorch, and each library of the vLLM installed, as a name and the arguments that load it."""
    parts = [("torch", ["-c", "import torch"])]
    spec = importlib.util.find_spec("vllm")  # finds it and imports nothing of it
    for folder in (spec.submodule_search_locations or []) if spec else []:
        root = pathlib.Path(folder)
        parts += [(str(path.relative_to(root)), ["-c", LOAD, str(path)]) for path in sorted(root.rglob("*.so"))]
    return parts


if __name__ == "__main__":
    sys.exit(main())
