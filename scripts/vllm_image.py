"""Read what a vLLM release's own image has, from its docker/Dockerfile; `vllm_knowledge.py` puts it into the rows."""

import re
from dataclasses import dataclass
from pathlib import Path

# Needed only to add a package repository for Python, which the images built here do not do.
NOT_IN_THE_IMAGE = {"software-properties-common"}
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


@dataclass(frozen=True)
class ReleaseImage:
    """Versions, apt packages and Python packages of the image, and what it rewrites in the requirements for CUDA 12."""

    cuda: str
    python: str
    nccl: str | None
    apt: tuple[str, ...]
    packages: tuple[str, ...]
    cuda12: dict[str, str]

    def rows(self) -> list[str]:
        """Return it as lines of YAML, for `image:` of a row."""
        lines = ["    image:", f'      cuda: "{self.cuda}"', f'      python: "{self.python}"']
        lines += [f'      nccl: "{self.nccl}"'] if self.nccl else []
        lines.append(f"      apt: [{', '.join(self.apt)}]")
        lines.append("      packages: [" + ", ".join(f'"{name}"' for name in self.packages) + "]")
        if self.cuda12:
            lines += ["      cuda12:", *(f'        "{old}": "{new}"' for old, new in self.cuda12.items())]
        return lines


def read_image(dockerfile: Path) -> ReleaseImage:
    """Return what the Dockerfile of a release says; stops when it does not have the form of the known ones."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    defaults = {name: value.strip("\"'") for name, value in re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE)}
    if not {"CUDA_VERSION", "PYTHON_VERSION"} <= set(defaults):
        raise SystemExit(f"{dockerfile}: no CUDA_VERSION or PYTHON_VERSION")
    return ReleaseImage(
        cuda=defaults["CUDA_VERSION"],
        python=defaults["PYTHON_VERSION"],
        nccl=defaults.get("NCCL_VERSION"),
        apt=_apt(text, dockerfile),
        packages=_python_packages(text, defaults, dockerfile),
        cuda12=_rewritten_for_cuda_12(text),
    )


def _apt(text: str, dockerfile: Path) -> tuple[str, ...]:
    """Return the apt packages of the stage on the final base; those of CUDA have its version in their names."""
    stage = re.search(r"^FROM \$\{FINAL_BASE_IMAGE\}.*?(?=^FROM )", text, re.MULTILINE | re.DOTALL)
    if stage is None:
        raise SystemExit(f"{dockerfile}: no stage on FINAL_BASE_IMAGE")
    words = [w for found in re.findall(r"apt-get install ([^&;\n]*)", stage[0]) for w in found.split()]
    return tuple(sorted({w for w in words if _PACKAGE.fullmatch(w)} - NOT_IN_THE_IMAGE))


def _python_packages(text: str, defaults: dict[str, str], dockerfile: Path) -> tuple[str, ...]:
    """Return the packages that the server's image has in addition to the requirements."""
    found = re.search(r"uv pip install --system (accelerate [^&;\n]*)", text)
    if found is None:
        raise SystemExit(f"{dockerfile}: nothing is installed next to accelerate")
    words = [word.strip("\"'") for word in found[1].split()]
    return tuple(re.sub(r"\$\{(\w+)\}", lambda m: _default(m[1], defaults, text), w) for w in words)


def _default(name: str, defaults: dict[str, str], text: str) -> str:
    """Return the value of an argument; one that a script calculates by platform has it under another name."""
    for known in (name, f"{name}_X86"):
        if known in defaults:
            return defaults[known]
    by_platform = re.findall(rf'\b{name}="([0-9.]+)"', text)
    if by_platform:  # the last branch is that of x86
        return str(by_platform[-1])
    raise SystemExit(f"the Dockerfile computes {name}")


def _rewritten_for_cuda_12(text: str) -> dict[str, str]:
    found = re.findall(r"sed -i 's/\^(\S+?)/(\S*?)/'", text)
    return {old.replace("\\", ""): new for old, new in found if "cu13" in old}
