"""One plan, wherever it runs: the container's commands are the bare machine's, below another root."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.dockerfile_reader import read_dockerfile
from tests.support.image_library import planned, shipped
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import ROOT
from vdbg_env.image.plan import CommandStep, CopyStep, Variable, dockerfile, shell_word
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest, ImageSpec, LocalTree, Secret, Site, Source, parse_source

SAMPLE = BuildRequest(profile="sample")


def compile_step(request: BuildRequest) -> CommandStep:
    return next(s for s in planned(request).steps if isinstance(s, CommandStep) and s.id == "compile")


def test_the_same_wish_gives_the_same_plan_and_digest() -> None:
    one, other = planned(SAMPLE), planned(replace(SAMPLE))
    assert (one, one.digest) == (other, other.digest)


@pytest.mark.parametrize(
    ("profile", "release", "warned"),
    [("vllm-cu130", "0.18.0", True), ("vllm-cu129", "0.18.0", False), ("vllm-cu130", "0.33.0", False)],
)
def test_a_torch_of_an_older_cuda_than_the_profile_s_is_warned_of(profile: str, release: str, warned: bool) -> None:
    warnings = planned(BuildRequest(profile=profile, source=parse_source(f"vllm=={release}"))).warnings
    assert any("its torch 2.10.0" in w and "take a profile with CUDA 12" in w for w in warnings) is warned


@pytest.mark.parametrize(
    "change",
    [
        {"arch": ("8.0",)},
        {"debug": "device-debug"},
        {"base": "a/b:1"},
        {"target": "sample"},
        {"site": Site(ca_bundle=b"x")},
    ],
)
def test_another_wish_gives_another_digest(change: dict[str, object]) -> None:
    assert planned(replace(SAMPLE, **change)).digest != planned(SAMPLE).digest  # type: ignore[arg-type]


def test_a_changed_byte_of_the_bundled_project_changes_the_digest() -> None:
    first, *rest = shipped().bundled["sample"]
    library = replace(shipped(), bundled={"sample": (replace(first, data=first.data + b"\n"), *rest)})
    assert planned(SAMPLE, library).digest != planned(SAMPLE).digest


def test_a_plan_is_plain_json() -> None:
    document = planned(SAMPLE).document()
    assert json.loads(json.dumps(document))["schema"] == "vdbg-env/plan/v1"


def test_nothing_of_the_machine_is_in_the_digest() -> None:
    proxies = Site(proxies={"https_proxy": "http://me:hunter2@proxy:3128"})
    asked = planned(replace(SAMPLE, site=proxies))
    assert asked.digest == planned(SAMPLE).digest
    assert "hunter2" not in json.dumps(asked.document())


def test_jobs_change_the_default_and_not_the_digest() -> None:
    asked = planned(replace(SAMPLE, jobs=7))
    assert 'ARG MAX_JOBS="7"' in dockerfile(asked) and 'ARG MAX_JOBS=""' in dockerfile(planned(SAMPLE))
    assert asked.digest == planned(SAMPLE).digest


def test_every_command_of_the_dockerfile_is_one_of_the_scripts() -> None:
    decided = planned(BuildRequest(profile="pypi-cu130", target="_flashmla_C"))
    runs = [r for r in read_dockerfile(dockerfile(decided)) if r.keyword == "RUN"]
    scripts = [s for s in decided.steps if isinstance(s, CommandStep)]
    assert len(runs) == len(scripts)
    for run, step in zip(runs, scripts, strict=True):
        for command in step.commands:
            assert set(command.replace("\\\n", " ").split()) <= set(step.script().replace("\\\n", " ").split())
        assert run.words[:2] == ("set", "-eu;") or run.words[:3] == ("set", "-eu", ";")


def test_the_environment_moves_with_the_root() -> None:
    decided = planned(SAMPLE)
    there = decided.environment("/home/me/x", {"PATH": "/usr/bin"})
    assert there["VDBG_ROOT"] == "/home/me/x"
    assert there["CUDA_HOME"] == "/home/me/x/cuda"
    assert there["PATH"] == "/home/me/x/out/bin:/home/me/x/venv/bin:/home/me/x/cuda/bin:/usr/bin"
    assert decided.environment()["CUDA_HOME"] == f"{ROOT}/cuda"
    names = set(decided.environment())
    assert not [v for name, v in there.items() if ROOT in v and name in names]


def test_no_script_names_the_containers_root() -> None:
    for name in shipped().profiles:
        for step in planned(BuildRequest(profile=name)).steps:
            if isinstance(step, CommandStep) and step.where == "anywhere":
                assert ROOT not in step.script(), step.id


@given(st.text(st.characters(codec="utf-8"), max_size=30).filter(str.isprintable))
def test_a_variable_reaches_the_shell_as_it_is(value: str) -> None:
    variable = Variable(name="X", value=value)
    ran = subprocess.run(
        ["/bin/sh", "-c", f"printf %s {shell_word(variable)}"], capture_output=True, check=True, env={}
    )
    assert ran.stdout.decode() == value


def test_a_search_path_goes_before_what_was_held(tmp_path: Path) -> None:
    variable = Variable(name="P", value=("a b", "c"), kind="search")
    for held, expected in [({"P": "/x"}, "/r/a b:/r/c:/x"), ({}, "/r/a b:/r/c")]:
        ran = subprocess.run(
            ["/bin/sh", "-c", f"printf %s {shell_word(variable)}"],
            capture_output=True, check=True, text=True, cwd=tmp_path, env={"VDBG_ROOT": "/r", **held},
        )  # fmt: skip
        assert ran.stdout == expected == variable.at("/r", held.get("P", ""))


def test_compiling_can_be_split_from_fetching() -> None:
    request = BuildRequest(profile="pypi-cu130", target="_C_stable_libtorch", offline_compile=True)
    fetch, rest = planned(request).split_before_compile("vdbg-env/fetched:1")
    assert [s.id for s in (*fetch.steps, *rest.steps)] == [s.id for s in planned(request).steps]
    assert (rest.base, rest.network) == ("vdbg-env/fetched:1", "none")
    assert not any(s.network for s in rest.steps if isinstance(s, CommandStep))
    assert rest.artifacts == ("out",) and fetch.artifacts == ()


def test_each_half_of_a_split_carries_the_files_it_copies(tmp_path: Path) -> None:
    request = replace(SAMPLE, source=LocalTree(path=str(tmp_path)), site=Site(ca_bundle=b"-----BEGIN"))
    for half in planned(request).split_before_compile("x:1"):
        sources = {s.source for s in half.steps if isinstance(s, CopyStep)}
        assert {item.name.partition("/")[0] for item in half.context} == {s.partition("/")[0] for s in sources}


def test_both_defences_stand_in_every_profile() -> None:
    for name in shipped().profiles:
        environment = planned(BuildRequest(profile=name)).environment()
        wanted = {"NVCC_PREPEND_FLAGS": "-lineinfo", "CCACHE_DISABLE": "1", "VLLM_DISABLE_SCCACHE": "1"}
        assert wanted.items() <= environment.items()
        assert "FLASHINFER_JIT_DEBUG" not in environment
        step = compile_step(BuildRequest(profile=name))
        assert "CMAKE_CUDA_FLAGS=-lineinfo" in step.script()
        assert "CMAKE_CUDA_COMPILER_LAUNCHER=" in step.script()


@pytest.mark.parametrize("profile", ["sample", "pypi-cu130"])
def test_a_linker_finds_the_driver_and_the_libraries_that_come_with_the_packages_of_a_build(profile: str) -> None:
    step = next(s for s in planned(BuildRequest(profile=profile)).steps if s.id == "python")
    assert isinstance(step, CommandStep)
    installed, links, *stub = step.commands
    assert installed.startswith("pip install ") and "lib*.so.*" in links
    assert any("stubs/libcuda.so" in command for command in stub)


def test_a_targets_own_project_alone_is_fetched() -> None:
    script = compile_step(BuildRequest(profile="pypi-cu130", target="_vllm_fa3_C")).script()
    assert r"'/external_projects\/vllm_flash_attn\.cmake/!s|" in script
    assert "/!s|" not in compile_step(BuildRequest(profile="pypi-cu130", target="_C_stable_libtorch")).script()


def test_a_profile_may_take_a_defence_away_but_not_in_silence() -> None:
    values = shipped().spec("sample").model_dump(by_alias=True, mode="json")
    values["environment"] = {"CCACHE_DISABLE": None, "MINE": "1"}
    values["build"]["cmake_args"] = ["-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache"]
    decided = plan(ImageSpec.model_validate(values), SAMPLE, shipped())
    assert "CCACHE_DISABLE" not in decided.environment()
    assert decided.environment()["MINE"] == "1"
    assert len([w for w in decided.warnings if "the proof will find" in w]) == 2


def test_the_whole_of_vllm_is_fetched_before_it_compiles_without_network() -> None:
    for target in (None, "_flashmla_C"):
        request = BuildRequest(profile="pypi-cu130", target=target, offline_compile=True)
        fetch, rest = planned(request).split_before_compile("x:1")
        externals = next(s for s in fetch.steps if s.id == "externals")
        assert isinstance(externals, CommandStep) and externals.network
        assert "FETCHCONTENT_BASE_DIR=" in externals.script() and "FULLY_DISCONNECTED" not in externals.script()
        compiling = next(s for s in rest.steps if s.id == "compile")
        assert isinstance(compiling, CommandStep)
        assert "-DFETCHCONTENT_FULLY_DISCONNECTED=ON" in compiling.script()
        assert not [s.id for s in rest.steps if isinstance(s, CommandStep) and (s.network or s.secrets)]


def test_a_configure_run_fetches_what_a_disconnected_one_then_finds(tmp_path: Path) -> None:
    dependency, project = tmp_path / "dependency", tmp_path / "project"
    for folder in (dependency, project):
        folder.mkdir()
    (dependency / "CMakeLists.txt").write_text("add_library(dep INTERFACE)\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(dependency)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(p LANGUAGES NONE)\ninclude(FetchContent)\n"
        f"FetchContent_Declare(dep GIT_REPOSITORY file://{dependency} GIT_TAG HEAD)\nFetchContent_MakeAvailable(dep)\n"
    )
    argv = ["cmake", "-S", str(project), f"-DFETCHCONTENT_BASE_DIR={project}/.deps"]
    disconnected = [*argv, "-B", str(tmp_path / "build"), "-DFETCHCONTENT_FULLY_DISCONNECTED=ON"]
    subprocess.run([*argv, "-B", str(tmp_path / "configure")], check=True, capture_output=True)
    shutil.rmtree(tmp_path / "configure")
    shutil.rmtree(dependency)
    subprocess.run(disconnected, check=True, capture_output=True)


def test_nothing_precompiled_is_asked_for_and_the_profile_has_the_last_say() -> None:
    assert "PRECOMPILED_RUST" not in compile_step(BuildRequest(profile="pypi-cu130")).script()
    values = shipped().spec("pypi-cu130").model_dump(by_alias=True, mode="json")
    mine = {"VLLM_USE_PRECOMPILED_RUST": "0", "CMAKE_BUILD_TYPE": "Debug", "VLLM_USE_PRECOMPILED": "1"}
    values["environment"] = mine
    decided = plan(ImageSpec.model_validate(values), BuildRequest(profile="pypi-cu130"), shipped())
    step = next(s for s in decided.steps if isinstance(s, CommandStep) and s.id == "compile")
    assert mine.items() <= decided.environment().items()
    assert "CMAKE_BUILD_TYPE=" not in step.script()
    assert any(
        w.startswith("the profile sets VLLM_USE_PRECOMPILED, which the compile step unsets") for w in decided.warnings
    )


def requirements_of(request: BuildRequest) -> str:
    return next(s for s in planned(request).steps if isinstance(s, CommandStep) and s.id == "requirements").script()


def test_extras_of_cuda_13_are_rewritten_for_cuda_12_as_vllms_own_dockerfile_does() -> None:
    assert r"nvidia-cutlass-dsl\[cu13\]/nvidia-cutlass-dsl/" in requirements_of(BuildRequest(profile="vllm-cu129"))
    assert r"\[cu13" not in requirements_of(BuildRequest(profile="vllm-cu130"))


@pytest.mark.parametrize(
    ("source", "torch", "warned"),
    [
        ("vllm==0.33.0", "torch==2.14.0", False),
        ("vllm==0.11.0", "torch==2.8.0", False),
        ("vllm==0.24.0", "torch==2.11.0", False),
        ("git+https://github.com/vllm-project/vllm@v0.24.0", "torch==2.11.0", False),
        ("vllm==0.25.1", "torch ", True),
    ],
)
def test_torch_is_that_of_the_release(source: str, torch: str, warned: bool) -> None:
    decided = planned(BuildRequest(profile="pypi-cu130", source=parse_source(source)))
    step = next(s for s in decided.steps if isinstance(s, CommandStep) and s.id == "python")
    assert f"pip install {torch}" in step.script()
    assert any("is not in the tables" in w for w in decided.warnings) is warned


@pytest.mark.parametrize(
    ("source", "version"),
    [
        (parse_source("git+https://github.com/vllm-project/vllm@v0.33.0"), "0.33.0"),
        (parse_source("git+https://github.com/vllm-project/vllm@main"), "0.0.0+main"),
        (parse_source("git+https://github.com/me/vllm@Fix/paged_kv-"), "0.0.0+fix.paged.kv"),
        (LocalTree(path="/src/my-vllm"), "0.0.0+my.vllm"),
        (LocalTree(path="/src", version="0.33.0+2.gabc1234"), "0.33.0+2.gabc1234"),
    ],
)
def test_a_build_from_a_tag_has_its_version(source: Source, version: str) -> None:
    script = compile_step(BuildRequest(profile="pypi-cu130", source=source)).script()
    assert f"VLLM_VERSION_OVERRIDE={version}" in script


@pytest.mark.parametrize("subdirectory", ["../elsewhere", "/etc", "cpp/", "a b", "cpp/../.."])
def test_a_subdirectory_stays_below_the_source(subdirectory: str) -> None:
    values = shipped().spec("sample").model_dump(by_alias=True)
    with pytest.raises(ValidationError, match="a folder below the source"):
        ImageSpec.model_validate({**values, "build": {**values["build"], "subdirectory": subdirectory}})


def test_a_project_may_have_its_cmake_lists_in_a_subdirectory() -> None:
    """As TensorRT-LLM has it in cpp/."""
    values = shipped().spec("sample").model_dump(by_alias=True)
    values["build"]["subdirectory"] = "cpp/kernels"
    decided = plan(ImageSpec.model_validate(values), SAMPLE, shipped())
    assert next(s for s in decided.steps if isinstance(s, CommandStep) and s.id == "compile").cwd == "src/cpp/kernels"
    assert f"{ROOT}/src/cpp/kernels" in dockerfile(decided)


def test_a_release_may_be_written_short() -> None:
    short, full = (
        planned(BuildRequest(profile="vllm-cu130", source=parse_source(f"vllm=={v}"))) for v in ("0.33", "0.33.0")
    )
    assert short == full


def test_a_release_without_a_row_gets_no_nccl_of_another_release() -> None:
    """NCCL 2.31.2 is of 0.33.0: an older torch may not load with it."""
    scripts = [
        step.script()
        for step in planned(BuildRequest(profile="vllm-cu130", source=parse_source("vllm==0.28.0"))).steps
        if isinstance(step, CommandStep)
    ]
    assert not any("nvidia-nccl" in script for script in scripts)


def test_a_mirror_serves_updates_and_security_too() -> None:
    for profile, suites in (
        ("vllm-cu130", ("noble", "noble-updates", "noble-security")),
        ("pypi-cu130", ("trixie", "trixie-updates")),
    ):
        decided = planned(BuildRequest(profile=profile, site=Site(apt_mirror="http://m/x")))
        script = next(s for s in decided.steps if isinstance(s, CommandStep)).script()
        assert [line.split()[2] for line in re.findall(r"'(deb [^']*)'", script)] == list(suites)


@pytest.mark.parametrize("jobs", ["", "7"])
def test_the_number_of_compilers_is_chosen_where_they_run(jobs: str) -> None:
    commands = compile_step(SAMPLE).commands
    lines = [c for c in commands if "MAX_JOBS" in c and "cmake" not in c]
    ran = subprocess.run(
        ["/bin/sh", "-euc", "\n".join(lines)], env={"PATH": os.environ["PATH"], "MAX_JOBS": jobs},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    chosen = int(ran.stdout.partition("MAX_JOBS=")[2].split()[0])
    assert chosen == int(jobs) if jobs else 1 <= chosen <= (os.cpu_count() or 1)


@pytest.mark.parametrize("text", ["https://u:pw@h/s", "https://h/s?token=x", "http://token@h/s"])
def test_a_profile_carries_no_credentials_into_an_image(text: str) -> None:
    for key, value in (
        ("packages", {"indexes": [text]}),
        ("environment", {"PIP_INDEX_URL": text}),
        ("build", {"prepare": [["git", "clone", text]]}),
        *((("packages", {"tools": [text]}),) if "@" not in text else ()),  # with it a requirement is refused anyway
    ):
        values = shipped().spec("sample").model_dump(by_alias=True, mode="json")
        values[key].update(value)
        with pytest.raises(BadInput, match="password or token") as caught:
            plan(ImageSpec.model_validate(values), SAMPLE, shipped())
        assert "pw" not in str(caught.value) and "=x" not in str(caught.value)


@pytest.mark.parametrize("name", ["PATH", "CUDA_HOME", "VDBG_ROOT"])
def test_a_profile_that_leads_to_other_compilers_is_warned_of(name: str) -> None:
    values = shipped().spec("sample").model_dump(by_alias=True, mode="json")
    assert not any(name in w for w in plan(ImageSpec.model_validate(values), SAMPLE, shipped()).warnings)
    values["environment"][name] = "/elsewhere"
    warnings = plan(ImageSpec.model_validate(values), SAMPLE, shipped()).warnings
    assert any(w.startswith(f"the profile overrides {name}: compilers and tools") for w in warnings)


def test_device_debug_is_warned_of_and_leaves_lineinfo_out() -> None:
    decided = planned(replace(SAMPLE, debug="device-debug"))
    assert decided.environment()["NVCC_PREPEND_FLAGS"] == "-G"
    assert any("optimiser off" in w for w in decided.warnings)


def test_a_secret_is_mounted_where_it_can_be_and_refused_elsewhere() -> None:
    decided = planned(replace(SAMPLE, secrets=(Secret(id="netrc", path="/home/me/.netrc"),)))
    text = dockerfile(decided, "buildkit")
    assert "--mount=type=secret,id=netrc,target=/root/.netrc" in text
    assert "/home/me" not in text + json.dumps(decided.document())
    with pytest.raises(BadInput, match="cannot be kept out of the image"):
        dockerfile(decided, "classic")
