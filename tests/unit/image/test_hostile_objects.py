"""Files for `render --format k8s --for` that would hang it, end it in a traceback, or write lines of their own."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import vdbg_env
from tests.support.patience import patience
from vdbg_env.common.files import parse_json
from vdbg_env.image.manifests import as_yaml

OBJECT = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: i
        command: [vllm, serve]
        env: [{{name: A, value: {value}}}]
        resources: {{limits: {{nvidia.com/gpu: "1"}}}}
"""


def document(name: str = "llm", namespace: str = "serving", value: str = '"1"') -> str:
    return OBJECT.format(name=name, namespace=namespace, value=value)


LAUGHS = "a: &a [x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{f'*{chr(97 + n)}, ' * 9}]\n" for n in range(12))
FILES: dict[str, tuple[str, str]] = {
    "anchors that repeat each other": (LAUGHS + document(), "those of its anchors written out"),
    "merge keys that repeat each other": (
        "b0: &b0 {x: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 3)}]}}\n" for n in range(1, 20)),
        "those of its anchors written out",
    ),
    "an anchor within itself": ("a: &a [*a]\n" + document(), "within itself"),
    "one line of 20 MB": (document(value='"' + "x" * 20_000_000 + '"'), "longer than 4 MiB"),
    "4 MB of brackets": ("[" * 4_000_000, "nest"),
    "mappings in mappings": ("{a: " * 100_000, "nested too deep"),
    "lists in block style": ("".join(" " * n + "-\n" for n in range(1500)), "nest"),
    "many values": ("a: [" + "1," * 300_000 + "]\n" + document(), "more than 200,000 values"),
    "a number that is too long": (document(value="9" * 5000), "cannot be read"),
    "a date that is none": (document(value="2026-99-99"), "cannot be read"),
    "a NUL": (document() + "\x00", "is not YAML"),
    "a tag of Python": (document(value="!!python/object/apply:os.system [id]"), "is not YAML"),
    "a key that is a list": (document() + "? [a]\n: b\n", "is not YAML"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_in_words_and_at_once(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    file = tmp_path / "object.yaml"
    file.write_text(text)
    began = time.monotonic()
    ran = vdbg_env("render", "--format", "k8s", "--for", str(file), str(tmp_path / "out"))
    assert time.monotonic() - began < patience(5.0)
    assert (ran.status, words in ran.stderr) == (2, True), ran.stderr[:600]
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "out").exists()


def test_a_device_without_end_is_refused(tmp_path: Path) -> None:
    ran = vdbg_env("render", "--format", "k8s", "--for", "/dev/zero", str(tmp_path / "out"))
    assert (ran.status, "longer than 4 MiB" in ran.stderr) == (2, True)


BREAKS = ("\n", "\r", "\x85", "\u2028", "\u2029", "\r\n")


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize(
    "given",
    [f'"a{json.dumps(b)[1:-1]}spec: {{replicas: 0}}"' for b in BREAKS] + ['"a, kind: Pod"', "../x", "A", "1.5", "-a"],
)
def test_a_name_that_kubernetes_does_not_take_is_refused(field: str, given: str, tmp_path: Path) -> None:
    file = tmp_path / "object.yaml"
    file.write_text(document(**{field: given}))
    ran = vdbg_env("render", "--format", "k8s", "--for", str(file), str(tmp_path / "out"))
    if (field, given) == ("name", "1.5"):
        assert "has no name" in ran.stderr
    assert (ran.status, (tmp_path / "out").exists()) == (2, False), ran.stderr


@pytest.mark.parametrize("line_break", BREAKS)
def test_a_note_begins_no_line_of_the_document(line_break: str) -> None:
    text = as_yaml({"kind": "Pod"}, (f"of a{line_break}injected: true",))
    assert yaml.safe_load(text) == {"kind": "Pod"}
    assert text.startswith("# of a\\")


@pytest.mark.parametrize("value", ["'a\\nb: c'", '"a\\nb: c"', '"\\u2028x: y"', "'#'", '"- a"'])
def test_a_value_of_the_object_stays_a_value(value: str, tmp_path: Path) -> None:
    file = tmp_path / "object.yaml"
    file.write_text(document(value=value))
    ran = vdbg_env("render", "--format", "k8s", "--for", str(file), str(tmp_path / "out"))
    assert ran.status == 0, ran.stderr
    (container,) = yaml.safe_load((tmp_path / "out/object.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    assert yaml.safe_load(value) in [one.get("value") for one in container["env"]]
    assert set(yaml.safe_load((tmp_path / "out/patch.yaml").read_text())) == {"apiVersion", "kind", "metadata", "spec"}


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 200_000, b"[" * 200_000 + b"]" * 200_000])
def test_a_manifest_in_a_tar_that_nests_deep_is_no_image(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    for words in (
        ("core", str(path)),
        ("verify", str(path)),
        ("build", "--load", str(path)),
        ("lines", "show", str(path)),
    ):
        ran = vdbg_env(*words)
        assert ran.status not in {0, 70} and "Traceback" not in ran.stderr + ran.stdout, ran.stderr[-600:]
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text)
