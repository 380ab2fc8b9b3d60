"""A placement is found by its name: one that is shipped without metadata, any other by its entry point."""

import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import vdbg_env_slurm
from vdbg_env.common import plug_ins
from vdbg_env.common.errors import BadInput
from vdbg_env.run import begin

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_what_is_found_by_name_is_what_the_project_declares() -> None:
    ours = {group: names for group, names in PROJECT["entry-points"].items() if group.startswith("vdbg_env.")}
    assert ours == plug_ins.SHIPPED
    assert all(plug_ins.plug_in(group, name) for group, names in plug_ins.SHIPPED.items() for name in names)
    assert begin.plug_in("slurm") is vdbg_env_slurm


def test_another_placement_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "farm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: farm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{plug_ins.PLACEMENTS}]\nfarm = farm_of_gpus\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("farm_of_gpus")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert begin.plug_in("farm") is module
    assert plug_ins.installed(plug_ins.PLACEMENTS) == {"farm"}


def test_an_unknown_placement_is_named() -> None:
    with pytest.raises(BadInput, match="no placement 'nowhere' is installed"):
        begin.plug_in("nowhere")
