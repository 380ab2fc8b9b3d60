"""Which layers a change builds again: simulated as a builder's cache works, over many renders, all read by hadolint."""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.dockerfile_reader import read_dockerfile
from tests.support.image_library import PACKAGE, planned, shipped
from vdbg_env.engine.trees import tar_stream, upload
from vdbg_env.image.context import BuildContext
from vdbg_env.image.plan import BuildPlan, dockerfile
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest, DebugInfo, Dialect, ImageSpec, LocalTree, Source, parse_source

GUARD = ("What vdbg-env", "vdbg-env,")
HEAVY = ("Packages of", "CUDA 1", "Python ", "Source", "What this source", "Compile", "Debug tools", *GUARD)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The heavy steps of a render by the key that a builder's cache has for each: all before it, and its own input."""

    keys: dict[str, str]

    def rebuilt_by(self, other: "Layers") -> set[str]:
        """Return the steps that run again when the other render is built after this one."""
        return {title for title, key in other.keys.items() if key not in self.keys.values()}


def layers(decided: BuildPlan, dialect: Dialect = "classic") -> Layers:
    chain, title, keys = hashlib.sha256(), "", {}
    for block in dockerfile(decided, dialect).replace("\\\n", "").splitlines():
        if block.startswith("# ") and "hadolint" not in block:
            title = block[2:]
        if not block or block.startswith(("#", "LABEL")):
            continue
        chain.update(block.encode())
        if block.startswith("COPY"):
            source = read_dockerfile(f"FROM x\n{block}\n")[-1].words[0]
            items = tuple(i for i in decided.context if f"{i.name}/".startswith(f"{source}/"))
            chain.update(b"".join(upload(BuildContext(items=items))))
        if block.startswith(("COPY", "RUN")):
            keys[title] = chain.hexdigest()
    return Layers(keys={t: k for t, k in keys.items() if t.startswith(HEAVY)})


def heavy(titles: set[str]) -> set[str]:
    """Return what a user waits for: everything but the tools and the guard, which are small."""
    return {t.split(" ")[0] for t in titles if not t.startswith(("Debug tools", *GUARD))}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("CMakeLists.txt", "csrc/a.cu", "requirements/cuda.txt", "requirements/build/cuda.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def profile(name: str, **changes: Any) -> ImageSpec:
    values = shipped().spec(name).model_dump(by_alias=True, mode="json")
    for key, value in changes.items():
        values[key].update(value)
    return ImageSpec.model_validate(values)


@pytest.mark.parametrize("name", ["pypi-cu130", "vllm-cu129", "vllm-cu130"])
def test_a_change_builds_again_what_depends_on_it_and_no_more(name: str, checkout: Path) -> None:
    request = BuildRequest(profile=name, source=LocalTree(path=str(checkout)), arch=("9.0",))
    first = layers(plan(profile(name), request, shipped()))

    def changed(spec: ImageSpec | None = None, **fields: Any) -> set[str]:
        return heavy(first.rebuilt_by(layers(plan(spec or profile(name), replace(request, **fields), shipped()))))

    assert changed() == set()
    assert changed(arch=("8.0",)) == {"Compile"}
    assert changed(debug="device-debug") == {"Compile"}
    assert changed(jobs=3) == {"Compile"}
    tools = profile(name, packages={"tools": ["py-spy>=0.4", "nvitop"]})
    assert changed(tools) == set(), "another debug tool compiles nothing again"
    (checkout / "csrc" / "a.cu").write_text("changed")
    assert changed() == {"Source", "Compile"}, "a changed kernel installs no requirement again"
    (checkout / "requirements" / "cuda.txt").write_text("changed")
    assert changed() == {"Source", "What", "Compile"}
    apt = profile(name, packages={"apt": ["ca-certificates"]})
    assert {"Packages", "What", "Source", "Compile"} <= changed(apt)


def test_the_object_cache_installs_no_requirement_again(checkout: Path) -> None:
    request = BuildRequest(profile="pypi-cu130", source=LocalTree(path=str(checkout)), arch=("9.0",))
    without, kept = (
        layers(plan(profile("pypi-cu130"), replace(request, object_cache=name), shipped()), "buildkit")
        for name in (None, "team")
    )
    assert heavy(without.rebuilt_by(kept)) == {"Compiler", "Source", "Compile"}


def test_lists_of_requirements_in_a_folder_called_build_are_no_leftovers_of_a_build(checkout: Path) -> None:
    (checkout / "build" / "temp").mkdir(parents=True)
    (checkout / "build" / "temp" / "stale.txt").write_text("of an earlier build")
    decided = plan(profile("pypi-cu130"), BuildRequest(profile="x", source=LocalTree(path=str(checkout))), shipped())
    names = {name for name in tar_names(decided) if name.endswith(".txt")}
    lists = {"requirements/build/cuda.txt", "requirements/cuda.txt"}
    assert names == {"source/CMakeLists.txt"} | {
        f"{top}/{name}" for top in ("source", "requirements") for name in lists
    }


def tar_names(decided: BuildPlan) -> set[str]:
    with tar_stream(upload(BuildContext(items=decided.context))) as archive:
        return {member.name for member in archive}


@pytest.mark.parametrize("name", ["pypi-cu130", "vllm-cu130"])
def test_another_architecture_of_a_release_fetches_nothing_again(name: str) -> None:
    one, other = (BuildRequest(profile=name, arch=(arch,)) for arch in ("9.0", "8.0"))
    spec = profile(name)
    again = layers(plan(spec, one, shipped())).rebuilt_by(layers(plan(spec, other, shipped())))
    assert heavy(again) == {"Compile"}


SOURCES: tuple[Source | None, ...] = (
    None,
    parse_source("vllm==0.24.0"),
    parse_source("git+https://github.com/vllm-project/vllm@v0.33.0"),
)
KINDS: tuple[DebugInfo, ...] = ("lineinfo", "device-debug")
DIALECTS: tuple[Dialect, ...] = ("classic", "buildkit")


@pytest.mark.long  # each shipped profile, platform and dialect is read in test_dockerfile_golden
def test_hadolint_finds_nothing_in_eighty_four_renders(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    renders, tree = tmp_path_factory.mktemp("renders"), LocalTree(path=str(checkout))
    profiles = ("pypi-cu130", "vllm-cu129", "vllm-cu130")
    vllm = product(profiles, (*SOURCES, tree), (("9.0",), ("8.0", "9.0")), (None, "_C_stable_libtorch"), DIALECTS)
    written = 0
    for name, source, arch, target, dialect in vllm:
        if target and source not in (None, tree):
            continue
        request = BuildRequest(
            profile=name, source=source, arch=arch, target=target, offline_compile=target is not None
        )
        text = dockerfile(plan(shipped().spec(name), request, shipped()), dialect)
        (renders / f"{written}.Dockerfile").write_text(text)
        written += 1
    for kind, arch, dialect in product(KINDS, (("9.0",), ("8.0", "9.0"), ("12.0",)), DIALECTS):
        decided = plan(shipped().spec("sample"), BuildRequest(profile="sample", debug=kind, arch=arch), shipped())
        (renders / f"{written}.Dockerfile").write_text(dockerfile(decided, dialect))
        written += 1
    assert written == 84
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert program, "hadolint comes with `pip install .[test]`"
    files = map(str, sorted(renders.glob("*.Dockerfile")))
    ran = subprocess.run([program, "--no-color", *files], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.parametrize("offline", [False, True])
def test_another_release_of_this_program_compiles_and_fetches_nothing_again(offline: bool) -> None:
    request = BuildRequest(profile="sample", arch=("9.0",), offline_compile=offline, guard=PACKAGE)
    other = replace(PACKAGE, wheel=replace(PACKAGE.wheel, data=b"the next release"))
    first = layers(planned(request))
    second = layers(planned(replace(request, guard=other)))
    assert first != second and second.rebuilt_by(first) == {"vdbg-env, which guards the command"}


def test_an_image_without_guard_has_nothing_of_it() -> None:
    text = dockerfile(planned(BuildRequest(profile="sample")))
    assert 'ENTRYPOINT ["/opt/vdbg/entrypoint.sh"]' in text
    assert "vdbg_env-" not in text and "wheel" not in text
