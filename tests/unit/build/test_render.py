"""`vdbg-env render` and `images` as a user meets them: what they write, and what they say to bad input."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from tests.support.image_library import PACKAGE, shipped
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.image.profile import HostGpu

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n"

FIRST_GPU = "vdbg_env.build.build.first_gpu"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No certificates, proxies or indexes of this machine, and no profiles of its user."""
    for name in (
        "VDBG_CA_BUNDLE",
        "PIP_CERT",
        "SSL_CERT_FILE",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "VDBG_APT_MIRROR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VDBG_IMAGES", str(tmp_path / "profiles"))
    monkeypatch.setattr(FIRST_GPU, lambda _programs: None)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_rendered_folder_holds_the_dockerfile_and_all_it_copies(tmp_path: Path) -> None:
    ran = vdbg_env("render", "--profile", "sample", "--json", str(tmp_path / "out"))
    assert ran.status == 0
    document = json.loads(ran.stdout)
    written = files(tmp_path / "out")
    assert document["files"] == sorted(written)
    assert document["plan_digest"].encode() in written["Dockerfile"]
    assert b"// PLANTED" in written["source/include/rows.cuh"]
    name = "vdbg/sample:lineinfo-unproven"
    assert (
        document["next_step"] == f"docker build --tag {name} {tmp_path / 'out'} && vdbg-env verify {name}:/opt/vdbg/out"
    )


def test_the_architecture_is_that_of_the_gpu_found_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FIRST_GPU, lambda _programs: HostGpu(driver="580.95.05", arch="10.0"))
    ran = vdbg_env("render", "--profile", "sample", str(tmp_path / "found"))
    assert "note: built for architecture 10.0, that of this machine's GPU" in ran.stderr
    assert b"CMAKE_CUDA_ARCHITECTURES=100-real" in files(tmp_path / "found")["Dockerfile"]
    vdbg_env("render", "--profile", "sample", "--arch", "8.0", str(tmp_path / "asked"))
    assert b"CMAKE_CUDA_ARCHITECTURES=80-real" in files(tmp_path / "asked")["Dockerfile"]


def test_a_driver_too_old_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FIRST_GPU, lambda _programs: HostGpu(driver="535.183.01", arch="9.0"))
    ran = vdbg_env("render", "--profile", "sample", str(tmp_path / "out"))
    assert ran.status == 2
    assert "driver 535.183.01 cannot run CUDA 13.0" in ran.stderr
    assert "a profile with CUDA 12.9" in ran.stderr
    assert not (tmp_path / "out").exists()
    assert vdbg_env("render", "--profile", "sample", "--arch", "9.0", str(tmp_path / "out")).status == 0


@pytest.mark.parametrize("profile", sorted(shipped().profiles))
def test_a_dry_run_prints_the_golden_dockerfile_and_nothing_else(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vdbg_env.engine.trees.own_package", lambda: PACKAGE)
    ran = vdbg_env("build", "--lineinfo", "--profile", profile, "--dry-run")
    assert ran.status == 0
    assert_golden(f"image/{profile}.amd64.classic.Dockerfile", ran.stdout)


def test_rendering_again_gives_the_same_bytes(tmp_path: Path) -> None:
    vdbg_env("render", "--profile", "sample", str(tmp_path / "a"))
    first = files(tmp_path / "a")
    vdbg_env("render", "--profile", "sample", str(tmp_path / "a"))
    vdbg_env("render", "--profile", "sample", str(tmp_path / "b"))
    assert first == files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize(
    ("format", "file"), [("compose", "compose.yaml"), ("k8s", "pod.yaml"), ("apptainer", "apptainer.def")]
)
def test_each_format_writes_its_file(tmp_path: Path, format: str, file: str) -> None:
    ran = vdbg_env("render", "--profile", "sample", "--format", format, str(tmp_path / "out"))
    assert ran.status == 0
    assert file in files(tmp_path / "out")
    assert "next: " in ran.stderr


def test_what_is_built_from_a_folder_never_has_the_name_of_a_proven_image(tmp_path: Path) -> None:
    for format, file in (("dockerfile", "Dockerfile"), ("compose", "compose.yaml")):
        ran = vdbg_env("render", "--profile", "sample", "--format", format, str(tmp_path / format))
        assert "vdbg-env verify vdbg/sample:lineinfo-unproven:/opt/vdbg/out" in ran.stderr
        assert "vdbg/sample:lineinfo\n" not in (tmp_path / format / file).read_text()


def test_a_pod_has_the_profile_a_debugger_needs_and_says_where_it_goes(tmp_path: Path) -> None:
    ran = vdbg_env("render", "--profile", "sample", "--format", "k8s", "--gpu", "runtime:8", str(tmp_path / "out"))
    pod = (tmp_path / "out" / "pod.yaml").read_text()
    assert "localhostProfile: vdbg-env/seccomp-ptrace.json" in pod and "nvidia.com/gpu: 8" in pod
    assert "/var/lib/kubelet/seccomp/vdbg-env/seccomp-ptrace.json; then kubectl apply" in ran.stderr
    assert (tmp_path / "out" / "seccomp-ptrace.json").is_file()


def test_a_local_tree_goes_along_without_what_an_earlier_build_left(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("CMakeLists.txt", "a.cu", "build/a.o", "lib.so", ".git/HEAD", "src/__pycache__/x"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x")
    assert vdbg_env("render", "--profile", "sample", "--source", str(tree), str(tmp_path / "out")).status == 0
    assert {f for f in files(tmp_path / "out") if f.startswith("source/")} == {"source/CMakeLists.txt", "source/a.cu"}


def test_the_environments_certificates_are_taken_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    ran = vdbg_env("render", "--profile", "sample", str(tmp_path / "out"))
    assert f"note: certificates from PIP_CERT={tmp_path / 'ca.pem'}; --ca-bundle names others" in ran.stderr
    assert files(tmp_path / "out")["site/ca-bundle.crt"] == CERTIFICATE.encode()


def test_a_profile_in_a_file_is_taken_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('schema: vdbg-env/image/v1\nname: mine\nsummary: m\nextends: sample\nbuild: {arch: "8.0"}\n')
    assert vdbg_env("render", "--profile", str(path), str(tmp_path / "out")).status == 0
    assert b"CMAKE_CUDA_ARCHITECTURES=80-real" in files(tmp_path / "out")["Dockerfile"]


def test_a_profile_of_the_users_own_folder_is_listed_and_wins(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "sample.yaml").write_text("schema: vdbg-env/image/v1\nname: sample\nsummary: mine\nextends: pypi-cu130\n")
    (folder / "broken.yaml").write_text("nmae: x\n")
    ran = vdbg_env("images", "list")
    assert "sample      (yours) mine" in ran.stdout
    assert "broken      (yours) WRONG: " in ran.stdout
    listed = {p["name"]: p for p in json.loads(vdbg_env("images", "list", "--json").stdout)["profiles"]}
    assert (listed["sample"]["shipped"], listed["vllm-cu130"]["shipped"]) == (False, True)
    assert listed["broken"]["error"]


def test_every_shipped_profile_passes_lint() -> None:
    ran = vdbg_env("images", "lint")
    assert (ran.status, ran.stdout) == (0, "".join(f"{name}: ok\n" for name in sorted(shipped().profiles)))


def test_a_profile_is_shown_whole() -> None:
    shown = json.loads(vdbg_env("images", "show", "sample").stdout)
    assert (shown["source"], shown["toolchain"]["cuda"]) == ("bundled:sample", "13.0")


def profile_files(tmp_path: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in (tmp_path / "profiles").glob("*")}


@pytest.mark.parametrize("original", [None, *sorted(shipped().profiles)])
def test_a_new_profile_passes_lint_and_plans_as_its_original(tmp_path: Path, original: str | None) -> None:
    ran = vdbg_env("images", "new", "ours", *(["--from", original] if original else []))
    assert (ran.status, ran.stdout) == (0, f"{tmp_path / 'profiles' / 'ours.yaml'}\n")
    assert vdbg_env("images", "lint", "ours").stdout == "ours: ok\n"
    ours, theirs = (json.loads(vdbg_env("images", "show", n).stdout) for n in ("ours", original or "vllm-cu130"))
    assert ours.pop("name") == "ours"
    if original:
        assert ours == {key: value for key, value in theirs.items() if key != "name"}


def test_a_copied_profile_keeps_its_comments_and_is_never_overwritten(tmp_path: Path) -> None:
    vdbg_env("images", "new", "ours", "--from", "pypi-cu130")
    text = profile_files(tmp_path)["ours.yaml"]
    kept = [line for line in text.splitlines() if "#" in line]
    original = (SHIPPED_DATA / "images" / "pypi-cu130.yaml").read_text()
    assert kept[1:] == [line for line in original.splitlines() if "#" in line][1:]
    assert text.splitlines()[2:] == original.replace("name: pypi-cu130", "name: ours").splitlines()[2:]
    ran = vdbg_env("images", "new", "ours")
    assert ran.status == 2 and "exists already" in ran.stderr
    assert profile_files(tmp_path) == {"ours.yaml": text}


def test_a_new_profile_never_leaves_the_folder_of_profiles(tmp_path: Path) -> None:
    for name in ("../elsewhere", "a/b", "A", ""):
        ran = vdbg_env("images", "new", name)
        assert (ran.status, "is not a name" in ran.stderr) == (2, True)
    assert profile_files(tmp_path) == {}


BAD: dict[str, tuple[list[str], str, str]] = {
    "unknown profile": (["--profile", "smaple"], "no profile is called 'smaple'", "did you mean 'sample'?"),
    "profile file that is not there": (["--profile", "./no.yaml"], "no.yaml cannot be read", "check the path"),
    "architecture without a point": (["--arch", "90"], "'90' is not an architecture", "--arch 9.0"),
    "architecture that is no number": (["--arch", "hopper"], "'hopper' is not an architecture", "--arch 9.0"),
    "architecture the toolkit lacks": (["--arch", "7.0"], "CUDA 13.0 does not build for architecture 7.0", "CUDA 12.9"),
    "base with a newline": (["--base", "a\nRUN x"], r"--base holds the control character \n", "take the character out"),
    "base with capital letters": (["--base", "Debian:12"], "'Debian:12' is not the name", "no capital letters"),
    "base as an address": (["--base", "https://h/x"], "'https://h/x' is not the name of an image", "no https://"),
    "base with half a digest": (["--base", "a@sha256:12"], "is not the name of an image", "64 hexadecimal digits"),
    "image name with a newline": (["--image", "x\ny"], r"--image holds the control character \n", "take the character"),
    "source without a version": (["--source", "vllm"], "'vllm' follows no known spelling", "PROJECT==VERSION"),
    "source with a password": (["--source", "git+https://me:pw@h/r@v1"], "password or token", "--secret netrc"),
    "source with a password for ssh": (["--source", "git+ssh://u:pw@h/r@v1"], "password or token", "--secret netrc"),
    "source with a token": (["--source", "git+https://h/r?token=x@v1"], "password or token", "--secret netrc"),
    "index with a token": (["--pip-index-url", "https://h/s?token=x"], "password or token", "--secret netrc"),
    "mirror with a token": (["--apt-mirror", "https://h/debian?key=x"], "password or token", "--secret netrc"),
    "architecture with PTX": (["--arch", "8.0+PTX"], "no PTX is put into a debug image", "--arch 8.0"),
    "architecture nobody has": (["--arch", "99.9"], "CUDA 13.0 does not build for architecture 99.9", "--arch 12.1"),
    "source without a reference": (["--source", "git+https://h/r"], "is not git+https://", "name a tag or a commit"),
    "source that is not there": (["--source", "./nowhere"], "--source: nowhere is not there", "a folder that exists"),
    "target that is an option": (["--target", "-x"], "--target '-x' is not the name of a build target", ""),
    "target vLLM lacks": (
        ["--profile", "pypi-cu130", "--target", "_flashmla_X"],
        "vLLM 0.33.0 has no such extension", "did you mean '_flashmla_C'?",
    ),
    "dependency of another build": (["--dep", "cutlass=."], "--dep cutlass: the build has no such", "leave --dep out"),
    "dependency mistyped": (
        ["--profile", "pypi-cu130", "--dep", "cutlas=."], "--dep cutlas: the build has no", "did you mean 'cutlass'?",
    ),
    "dependency without a folder": (["--dep", "cutlass"], "'cutlass' is not NAME=PATH", "--dep cutlass=./cutlass"),
    "dependency that is not there": (["--dep", "cutlass=./no"], "cutlass: no is not there", "a folder that exists"),
    "secret that is not there": (["--secret", "netrc=./no"], "--secret netrc: no is not there", "ls -l no"),
    "secret a builder would leak": (["--secret", "netrc={file}"], "cannot be kept out of the image", "docker-buildx"),
    "certificates that are none": (["--ca-bundle", "{file}"], "has no certificate in it", "openssl x509 -inform der"),
    "certificates that are not there": (["--ca-bundle", "no.pem"], "no.pem cannot be read", "ls -l no.pem"),
    "index with a password": (["--pip-index-url", "https://a:b@h/s"], "at h carries a user name, password", "netrc"),
    "index with a token at its end": (["--pip-index-url", "https://h/s#token=x"], "at h carries a user name", "netrc"),
    "index that is no address": (["--pip-index-url", "h/simple"], "'h/simple' is not an address", "https://HOST/PATH"),
    "mirror with a blank": (["--apt-mirror", "https://h/a b"], "'https://h/a b' is not an address", ""),
    "GPU asked for in no known way": (["--gpu", "all"], "'all' is not a way to ask for GPUs", "cdi, runtime or none"),
    "dumps to a relative folder": (["--dumps", "./d"], "'./d' is neither a volume nor a", "a path from the root"),
    "platform nobody builds": (["--platform", "linux/riscv64"], "'linux/riscv64' is not one of", ""),
    "jobs that are no number": (["--jobs", "many"], "'many' is not a valid integer", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_met_with_its_place_and_the_next_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no certificate")
    flags, told, advice = BAD[name]
    flags = [flag.replace("{file}", "file") for flag in flags]
    profile = [] if "--profile" in flags else ["--profile", "sample"]
    ran = vdbg_env("render", *profile, *flags, "out")
    assert ran.status == 2
    assert told in ran.stderr
    assert advice in ran.stderr
    assert "Traceback" not in ran.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"], "something half-made was left"


def test_a_folder_of_something_else_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    ran = vdbg_env("render", "--profile", "sample", str(tmp_path))
    assert ran.status == 2
    assert "contains files that were not rendered here" in ran.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        ran = vdbg_env("render", "--profile", "sample", str(tmp_path / place))
        assert ran.status == 2
        assert "try:" in ran.stderr


def test_lint_tells_every_wrong_profile_at_its_place(tmp_path: Path) -> None:
    for name in ("one", "two"):
        head = f"schema: vdbg-env/image/v1\nname: {name}\nsummary: s\nextends: sample\n"
        (tmp_path / f"{name}.yaml").write_text(head + "sorce: x\n")
    ran = vdbg_env("images", "lint", str(tmp_path / "one.yaml"), str(tmp_path / "two.yaml"), "sample")
    assert (ran.status, ran.stdout) == (2, "sample: ok\n")
    for name in ("one", "two"):
        assert f"{name}.yaml:5:1: unknown key 'sorce' (did you mean 'source'?)" in ran.stderr


def test_a_patch_for_what_runs_already_is_rendered_again_into_its_folder(tmp_path: Path) -> None:
    existing = tmp_path / "server.yaml"
    existing.write_text(
        "kind: Deployment\nmetadata: {name: llm}\n"
        "spec: {template: {spec: {containers: [{name: server, command: [vllm, serve]}]}}}\n"
    )
    words = ("render", "--format", "k8s", "--for-lws", str(existing), "--dumps", "/data/d", str(tmp_path / "out"))
    for _ in range(2):
        ran = vdbg_env(*words)
        assert ran.status == 0, ran.stderr
    assert f"next: kubectl patch deployment llm --type strategic --patch-file {tmp_path}/out/patch.yaml" in ran.stderr
    assert ran.stdout == f"{tmp_path}/out: 3 files\n"
    assert b"hostPath" in files(tmp_path / "out")["patch.yaml"]
    assert vdbg_env("render", "--for-lws", str(existing), str(tmp_path / "out")).status == 2
    own = "env: [{name: CUDA_COREDUMP_FILE, value: /scratch/core}]"
    existing.write_text(existing.read_text().replace("command:", f"{own}, command:"))
    assert "server has its own CUDA_COREDUMP_FILE (/scratch/core), and guard keeps it" in vdbg_env(*words).stderr


@pytest.mark.parametrize("container", ["{name: server, command: [vllm, serve]}", "{name: server}"])
def test_the_only_undo_of_an_object_that_is_armed_is_kept(container: str, tmp_path: Path) -> None:
    existing, out = tmp_path / "server.yaml", tmp_path / "a b"
    before_all = (
        f"kind: Deployment\nmetadata: {{name: llm}}\nspec: {{template: {{spec: {{containers: [{container}]}}}}}}\n"
    )
    existing.write_text(before_all)
    words = ("render", "--format", "k8s", "--for", str(existing))
    ran = vdbg_env(*words, str(out))
    assert ran.status == 0 and f"--patch-file '{out}/patch.yaml'" in ran.stderr
    existing.write_text(
        before_all.replace("name: server", "name: server, args: [x]")
    )  # it was not armed: nothing is lost
    assert vdbg_env(*words, str(out)).status == 0
    before = files(out)
    existing.write_text((out / "object.yaml").read_text())  # as `kubectl get` gives it, armed
    ran = vdbg_env(*words, str(out))
    assert ran.status == 2 and files(out) == before
    assert "undo.yaml differs from the undo of this render and would be lost" in ran.stderr
    ran = vdbg_env(*words, str(tmp_path / "other"))
    assert ran.status == 0
    assert "note: FILE is armed already: undo.yaml brings that back, not what it was before." in ran.stderr


@pytest.mark.parametrize("more", [("--runbook", "host-crash", "-i", "request=synthetic"), ("--image", "debug:1")])
def test_an_undo_that_brings_back_more_is_kept(more: tuple[str, ...], tmp_path: Path) -> None:
    """The probe and the image that the first patch took away were lost with its undo, though FILE was not armed."""
    existing, out = tmp_path / "server.yaml", tmp_path / "a b"
    container = "{name: server, image: vllm, command: [vllm, serve], livenessProbe: {httpGet: {path: /health}}}"
    existing.write_text(
        f"kind: Deployment\nmetadata: {{name: llm}}\nspec: {{template: {{spec: {{containers: [{container}]}}}}}}\n"
    )
    words = ("render", "--format", "k8s", "--for", str(existing))
    assert vdbg_env(*words, *more, str(out)).status == 0
    before = files(out)
    ran = vdbg_env(*words, str(out))
    assert ran.status == 2 and files(out) == before
    assert f"name another folder; if its patch is not applied, rm '{out}/undo.yaml'" in ran.stderr
    (out / "undo.yaml").unlink()
    assert vdbg_env(*words, str(out)).status == 0


def test_a_debug_run_that_a_pod_would_not_begin_is_not_rendered(tmp_path: Path) -> None:
    """It was: the server in production went down for a run that ended at once, for want of requests."""
    existing = tmp_path / "server.yaml"
    command = "{name: server, command: [vllm], args: [serve, MODEL]}"
    existing.write_text(
        f"kind: Deployment\nmetadata: {{name: llm}}\nspec: {{template: {{spec: {{containers: [{command}]}}}}}}\n"
    )
    words = ("render", "--format", "k8s", "--for", str(existing), "--runbook", "illegal-memory-access")
    ran = vdbg_env(*words, str(tmp_path / "out"))
    assert ran.status == 2 and not (tmp_path / "out").exists()
    assert "a server without requests never fails" in ran.stderr and "-i request=synthetic" in ran.stderr
    assert vdbg_env(*words, "-i", "request=synthetic", str(tmp_path / "out")).status == 0
    existing.write_text(existing.read_text().replace("[vllm], args: [serve, MODEL]", "[python, offline.py]"))
    assert vdbg_env(*words, str(tmp_path / "offline")).status == 0


@pytest.mark.parametrize("format", ["k8s", "slurm"])
def test_what_builds_nothing_has_no_word_of_a_build(tmp_path: Path, format: str) -> None:
    words = ("render", "--profile", "sample", "--gpu", "none")
    assert "note: " in vdbg_env(*words, str(tmp_path / "image")).stderr
    assert "note: " not in vdbg_env(*words, "--format", format, str(tmp_path / "out")).stderr


def test_a_batch_script_can_be_run(tmp_path: Path) -> None:
    ran = vdbg_env("render", "--profile", "sample", "--format", "slurm", "--gpu", "none", str(tmp_path / "out"))
    assert ran.status == 0, ran.stderr
    assert f"next: sbatch --nodes=1 {tmp_path}/out/job.sh COMMAND..." in ran.stderr
    assert (tmp_path / "out" / "job.sh").stat().st_mode & 0o111


def test_none_renders_a_pod_without_dumps_and_arms_nothing(tmp_path: Path) -> None:
    ran = vdbg_env("render", "--format", "k8s", "--image", "x:1", "--dumps", "none", str(tmp_path / "out"))
    assert ran.status == 0, ran.stderr
    assert "without a dump volume" in ran.stderr
    assert "persistentVolumeClaim" not in "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    existing = tmp_path / "pod.yaml"
    existing.write_text("")
    ran = vdbg_env("render", "--format", "k8s", "--for", str(existing), "--dumps", "none", str(tmp_path / "armed"))
    assert ran.status == 2
    assert "dumps need a volume or folder" in ran.stderr
