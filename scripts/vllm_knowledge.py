"""Print rows for images/knowledge/vllm.yaml from vLLM's own files: vllm_knowledge.py SDIST_FOLDER...

A folder is an unpacked source distribution:
    export VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=X
    pip download --no-deps --no-build-isolation --no-binary vllm vllm==X
"""

import re
import sys
from pathlib import Path

from vllm_image import read_image

# The names by which --dep knows the folders of cmake/external_projects, by the variable that names a local tree.
DEPENDENCIES = {
    "VLLM_CUTLASS_SRC_DIR": "cutlass",
    "DEEPGEMM_SRC_DIR": "deepgemm",
    "DEEPSELECT_SRC_DIR": "deepselect",
    "VLLM_FLASH_ATTN_SRC_DIR": "flash-attention",
    "FLASH_KDA_SRC_DIR": "flashkda",
    "FLASH_MLA_SRC_DIR": "flashmla",
    "FMHA_SM100_SRC_DIR": "fmha-sm100",
    "QUTLASS_SRC_DIR": "qutlass",
    "TML_FA4_SRC_DIR": "tml-fa4",
    "TRITON_KERNELS_SRC_DIR": "triton-kernels",
}
TOOLKITS = ("12.4", "12.8", "12.9", "13.0")
_TARGET = re.compile(r"define_(?:gpu_)?extension_target\(\s*(\w+)\s+DESTINATION\s+vllm.*?LANGUAGE\s+(\S+)", re.DOTALL)


def row(folder: Path) -> str:
    """Return one row as YAML."""
    version = folder.name.removeprefix("vllm-")
    cmake = (folder / "CMakeLists.txt").read_text()
    external = {path.stem: path.read_text() for path in sorted((folder / "cmake/external_projects").glob("*.cmake"))}
    pythons = re.findall(r'"([0-9.]+)"', _one(r"set\(PYTHON_SUPPORTED_VERSIONS ([^)]*)\)", cmake))
    gcc = max(re.findall(r"GCC >= ([0-9.]+) is required", cmake), key=_key, default=None)
    lines = [f'  - version: "{version}"', f'    torch: "{_one(r"^torch==([0-9.]+)", _cuda_requirements(folder))}"']
    if gcc:
        lines.append(f'    gcc: {{least: "{gcc}"}}')
    lines += [f'    python: {{least: "{pythons[0]}", most: "{pythons[-1]}"}}', "    arch:"]
    lines += [f'      "{toolkit}": [{", ".join(_quoted(_architectures(cmake, toolkit)))}]' for toolkit in TOOLKITS]
    lines.append(f"    source: vLLM {version}, CMakeLists.txt, cmake, requirements, docker/Dockerfile")
    variables = set(re.findall(r"ENV\{(\w+_SRC_DIR)\}", "\n".join([cmake, *external.values()])))
    if unknown := variables - set(DEPENDENCIES):
        raise SystemExit(f"{folder}: give {', '.join(sorted(unknown))} a name in DEPENDENCIES")
    known = sorted((name, variable) for variable, name in DEPENDENCIES.items() if variable in variables)
    lines += ["    dependencies:", *(f"      {name}: {variable}" for name, variable in known), "    targets:"]
    lines += [f"      {target}: {stem or 'null'}" for target, stem in _targets(cmake, external)]
    lines += read_image(folder / "docker/Dockerfile").rows()
    return "\n".join(lines)


def _cuda_requirements(folder: Path) -> str:
    return (folder / "requirements/cuda.txt").read_text()


def _architectures(cmake: str, toolkit: str) -> list[str]:
    """Return the list that CMakeLists.txt takes for a toolkit: the first branch whose condition holds."""
    branches = re.findall(
        r"(?:VERSION_GREATER_EQUAL ([0-9.]+)\)|else\(\))\s*(?:#[^\n]*\n\s*)*set\(CUDA_SUPPORTED_ARCHS \"([^\"]*)\"",
        cmake,
    )
    return next(archs for least, archs in branches if not least or _key(toolkit) >= _key(least)).split(";")


def _targets(cmake: str, external: dict[str, str]) -> list[tuple[str, str]]:
    """Return each extension with device code and the external project that builds it, "" for CMakeLists.txt."""
    found = [(name, "") for name, language in _TARGET.findall(cmake) if language == "${VLLM_GPU_LANG}"]
    found = [(name, stem) for name, stem in found if name.startswith("_") and "rocm" not in name]
    if re.search(r'STREQUAL "HIP"\)\s*set\(VLLM_EXT_SRC', cmake):  # only AMD's build still has it
        found.remove(("_C", ""))
    for stem, text in external.items():
        names = dict.fromkeys(re.findall(r"define_extension_target\(\s*(_\w+)|\b(_vllm_fa[0-9]_C)\b", text))
        found += [(one or other, stem) for one, other in names]
    return found


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"nothing matches {pattern}")
    return found[1]


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _quoted(texts: list[str]) -> list[str]:
    return [f'"{text}"' for text in texts]


if __name__ == "__main__":
    print("\n".join(row(Path(name)) for name in sys.argv[1:]))
