"""One value starts a debug container in every way there is."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.golden import assert_golden
from tests.support.image_library import PACKAGE, planned
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.image.manifests import apptainer, compose, kubernetes
from vdbg_env.image.profile import BuildRequest, Secret
from vdbg_env.image.settings import (
    SECCOMP_FILE,
    DumpVolume,
    Gpu,
    RunSettings,
    parse_dumps,
    parse_gpu,
    parse_size,
    warnings,
)

SETTINGS = RunSettings(
    image="vdbg-env/sample:1", command=("vllm", "serve", "a model"), env=(("CUDA_LAUNCH_BLOCKING", "1"),), ports=(8000,)
)
CDI = replace(
    SETTINGS, gpu=Gpu(by="cdi", devices=("nvidia.com/gpu=0",)), dumps=DumpVolume(source="/data/d", kind="bind")
)
BARE = replace(SETTINGS, gpu=Gpu(by="none"), dumps=None, ipc="host", seccomp="default")
ALL = {"runtime": SETTINGS, "cdi": CDI, "none": BARE}


@pytest.mark.parametrize("name", ALL)
def test_compose_reads_as_its_golden(name: str) -> None:
    assert_golden(f"image/run/{name}.compose.yaml", compose(ALL[name]))


@pytest.mark.parametrize("name", ["runtime", "none"])
def test_kubernetes_reads_as_its_golden(name: str) -> None:
    assert_golden(f"image/run/{name}.k8s.yaml", kubernetes(ALL[name]))


@pytest.mark.parametrize("profile", ["sample", "vllm-cu130"])
def test_apptainer_reads_as_its_golden(profile: str) -> None:
    assert_golden(f"image/{profile}.def", apptainer(planned(BuildRequest(profile=profile, guard=PACKAGE))))


def test_apptainer_refuses_secrets_and_says_the_way_round() -> None:
    request = BuildRequest(profile="sample", secrets=(Secret(id="netrc", path="/x"),))
    with pytest.raises(BadInput) as caught:
        apptainer(planned(request))
    assert caught.value.next_step and "docker-archive" in caught.value.next_step


@pytest.mark.parametrize(("devices", "count"), [((), 1), (("8",), 8), (("0",), 1), (("0", "1"), 2)])
def test_a_pod_asks_for_a_number_of_gpus(devices: tuple[str, ...], count: int) -> None:
    pod = yaml.safe_load(kubernetes(replace(SETTINGS, gpu=Gpu(by="runtime", devices=devices))).split("---")[0])
    container = pod["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": count}}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize(("home", "given"), [("/", True), ("/nowhere", True), (None, True), ("{tmp}", False)])
def test_the_entry_point_gives_a_home_to_who_has_none(tmp_path: Path, home: str | None, given: bool) -> None:
    own = {} if home is None else {"HOME": home.replace("{tmp}", str(tmp_path))}
    ran = subprocess.run(
        ["/bin/sh", str(SHIPPED_DATA / "templates" / "entrypoint.sh"), "sh", "-c", "touch $HOME/x; echo $HOME"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **own}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = tmp_path / f"home-{os.getuid()}" if given else tmp_path
    assert (ran.stdout, (expected / "x").exists()) == (f"{expected}\n", True)


@pytest.mark.parametrize("foreign", [True, False], ids=["another user's", "cannot be made"])
def test_the_entry_point_starts_the_command_without_a_home_too(tmp_path: Path, foreign: bool) -> None:
    place = tmp_path if foreign else tmp_path / "no-folder"
    if not foreign:
        place.write_text("")
    (tmp_path / "chmod").write_text("#!/bin/sh\necho 'Operation not permitted' >&2; exit 1\n")
    (tmp_path / "chmod").chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", str(SHIPPED_DATA / "templates" / "entrypoint.sh"), "sh", "-c", "echo $HOME"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(place), "HOME": "/"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "/\n")
    assert f"{place}/home-{os.getuid()} cannot be made or is another user's" in ran.stderr
    assert "not permitted" not in ran.stderr


@pytest.mark.parametrize(
    ("command", "switch", "guarded"),
    [
        (("serve", "a b"), None, True),
        (("serve",), "off", False),
        (("/opt/vdbg/vdbg-env", "runs", "list"), None, False),
        (("vdbg-env", "guard", "--", "serve"), None, False),
        (("guard", "--", "serve"), None, True),
    ],
)
def test_the_entry_point_leaves_the_guard_out_where_it_must(
    tmp_path: Path, command: tuple[str, ...], switch: str | None, guarded: bool
) -> None:
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf "%s|" "${0##*/}" "$@"\n')
    show.chmod(0o755)
    for name in ("serve", "guard", "vdbg-env"):
        (tmp_path / name).symlink_to(show)
    words = tuple(word.replace("/opt/vdbg", str(tmp_path)) for word in command)
    own = {"VDBG_GUARD": switch} if switch else {}
    ran = subprocess.run(
        ["/bin/sh", str(SHIPPED_DATA / "templates" / "entrypoint.sh"), str(show), "guard", "--", *words],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), **own},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    name = words[0].rpartition("/")[2]
    expected = ("show", "guard", "--", *words) if guarded else (name, *words[1:])
    assert ran.stdout == "".join(f"{word}|" for word in expected)


def test_kubernetes_has_no_word_for_one_cdi_device() -> None:
    with pytest.raises(BadInput, match="by number"):
        kubernetes(CDI)


@settings(max_examples=40)
@given(
    st.text(st.characters(codec="utf-8"), max_size=20).filter(str.isprintable),
    st.sampled_from(["yes", "0644", "22:22", "null", "~", "1e3", "- a", "a: b", "# c", "*x", "&x", "!t", "3.10"]),
)
@example("$(HOME) $", "yes")
def test_a_reader_of_yaml_1_1_gets_the_very_text(any_text: str, tricky: str) -> None:
    for text in (any_text, tricky):
        settings = replace(SETTINGS, env=(("NAME", text),), command=(text,))
        service = yaml.safe_load(compose(settings))["services"]["debug"]
        escaped = text.replace("$", "$$")  # which Compose and Kubernetes read as $
        assert (service["environment"]["NAME"], service["command"]) == (escaped, [escaped])
        pod: Any = next(iter(yaml.safe_load_all(kubernetes(settings))))
        assert pod["spec"]["containers"][0]["env"] == [{"name": "NAME", "value": escaped}]


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("none", Gpu(by="none")),
        ("cdi", Gpu(by="cdi")),
        ("runtime", Gpu(by="runtime")),
        ("cdi:nvidia.com/gpu=0,nvidia.com/gpu=1", Gpu(by="cdi", devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1"))),
        ("runtime:0,1", Gpu(by="runtime", devices=("0", "1"))),
    ],
)
def test_gpus_are_asked_for_in_three_ways(text: str, gpu: Gpu) -> None:
    assert parse_gpu(text) == gpu


@pytest.mark.parametrize("text", ["all", "cdi:0", "cdi:", "runtime:a b", "none:0", "cdi:nvidia.com/gpu=0\n"])
def test_another_way_to_ask_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_gpu(text)


def test_dumps_go_to_a_volume_or_a_folder() -> None:
    assert parse_dumps("dumps") == DumpVolume(source="dumps")
    assert parse_dumps("/var/dumps") == DumpVolume(source="/var/dumps", kind="bind")
    for wrong in ("./dumps", "-d", "/a:b", "a\nb", ""):
        with pytest.raises(BadInput):
            parse_dumps(wrong)


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("16g", 16 << 30), ("2GiB", 2 << 30), ("512M", 512 << 20)])
def test_sizes_are_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text, "--shm-size") == size


@pytest.mark.parametrize("text", ["", "g", "-1", "1.5g", "16 g", "1x", "9" * 30])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a size"):
        parse_size(text, "--shm-size")


def test_settings_that_fight_each_other_are_told() -> None:
    fighting = replace(SETTINGS, ipc="host", shm_bytes=1 << 30, seccomp="unconfined", dumps=None)
    assert len(warnings(fighting)) == 3
    assert warnings(SETTINGS) == ()


def test_the_seccomp_profile_refuses_what_changes_the_host_and_lets_a_debugger_work() -> None:
    profile = json.loads((SHIPPED_DATA / "templates" / SECCOMP_FILE).read_bytes())
    refused = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert {"mount", "unshare", "kexec_load", "bpf", "clone3"} <= refused
    assert not {"ptrace", "personality", "process_vm_readv", "perf_event_open"} & refused
