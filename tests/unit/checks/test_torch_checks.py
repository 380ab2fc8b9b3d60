"""The checks that ask PyTorch, on a PyTorch of a few lines: what they decide, and whether runbooks read their words."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.checks import check_module, run_check, seen_by


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module called torch that a test fills."""
    module: Any = ModuleType("torch")
    module.Tensor = object
    module.cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0, get_arch_list=list)
    monkeypatch.setitem(sys.modules, "torch", module)
    module.distributed = ModuleType("torch.distributed")
    monkeypatch.setitem(sys.modules, "torch.distributed", module.distributed)
    yield module


@pytest.mark.parametrize(
    ("capability", "built", "covered"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_86"], True),  # machine code of a lower minor version runs
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for what is newer
        ((9, 0), ["sm_90a"], True),
        ((10, 0), ["sm_90a"], False),
        ((10, 3), ["sm_100a"], False),  # a suffix binds to its own version
        ((9, 0), ["gfx942", ""], False),
    ],
)
def test_code_covers_a_gpu(torch: Any, capability: tuple[int, int], built: list[str], covered: bool) -> None:
    assert check_module("gpu_code").covered(*capability, built) is covered


@pytest.mark.parametrize(
    ("gpus", "built", "status", "seen"),
    [
        ([(9, 0), (9, 0)], ["sm_90"], 0, "torch_has"),
        ([(9, 0), (12, 0)], ["sm_80", "sm_90"], 1, "torch_lacks"),
        ([], ["sm_90"], 1, None),
    ],
)
def test_each_gpu_is_laid_beside_the_code(
    torch: Any, gpus: list[tuple[int, int]], built: list[str], status: int, seen: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    torch.cuda = SimpleNamespace(
        get_arch_list=lambda: built, device_count=lambda: len(gpus), get_device_capability=lambda gpu: gpus[gpu]
    )
    assert check_module("gpu_code").main() == status
    found = seen_by("no-kernel-image", capsys.readouterr().out)
    assert (seen in found) if seen else not found


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """A place with a torch that imports, and a vLLM of compiled parts that are never imported themselves."""
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "vllm" / "sub").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('vllm was imported')")
    library = next(p for p in Path("/proc/self/maps").read_text().split() if ".so" in p and p.startswith("/"))
    shutil.copy(library, tmp_path / "vllm" / "_C_stable_libtorch.abi3.so")
    return {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "HERE": str(tmp_path)}


def test_parts_that_load_are_counted(site: dict[str, str]) -> None:
    seen = seen_by("version-mismatch", run_check("import_check", environment=site))
    assert seen["parts_good"]["count"] == "2"


def test_a_part_that_does_not_load_is_named_with_the_reason(site: dict[str, str]) -> None:
    (Path(site["HERE"]) / "vllm" / "sub" / "_moe_C.abi3.so").write_bytes(b"no library")
    seen = seen_by("version-mismatch", run_check("import_check", environment=site, status=1))
    assert seen["part_bad"]["part"] == "sub/_moe_C.abi3.so"
    assert "parts_good" not in seen


def test_a_torch_that_does_not_import_is_a_part_too(site: dict[str, str]) -> None:
    (Path(site["HERE"]) / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    seen = seen_by("version-mismatch", run_check("import_check", environment=site, status=1))
    assert "libcudart.so.13" in seen["library"]["library"]


class Value:
    """A tensor of one number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __eq__(self, other: object) -> Any:
        return SimpleNamespace(all=lambda: self.number == other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, _index: int) -> Any:
        return SimpleNamespace(item=lambda: self.number)

    def fill_(self, number: float) -> None:
        self.number = number


class Graph:
    def __init__(self, work: list[Any]) -> None:
        self.work = work

    def replay(self) -> None:
        for one in self.work:
            one()


def sanity(torch: Any, *, gpu: bool, wrong_in: str | None = None) -> ModuleType:
    """The program over two ranks of which this is rank 1: sums are 1, unless `wrong_in` says which is not."""
    backends: list[str] = []
    torch.cuda = SimpleNamespace(
        is_available=lambda: gpu, set_device=lambda _device: backends.append("set_device"), synchronize=lambda: None
    )
    torch.device = lambda *words: words
    torch.full = lambda _shape, number, device=None: Value(number)
    torch.zeros_like = lambda _value: Value(0.0)
    done = {"eager": 0}

    def all_reduce(value: Value) -> None:
        if torch.capturing is not None:
            torch.capturing.append(lambda: value.fill_(9.0 if wrong_in == "CUDA graph" else 1.0))
            return
        how = ("gloo", "eager")[done["eager"]]
        done["eager"] += 1
        value.fill_(9.0 if wrong_in == how else 1.0)

    class Capture:
        def __init__(self, graph: Graph) -> None:
            self.graph = graph

        def __enter__(self) -> None:
            torch.capturing = self.graph.work

        def __exit__(self, *_words: object) -> None:
            torch.capturing = None

    torch.capturing = None
    torch.cuda.CUDAGraph = lambda: Graph([])
    torch.cuda.graph = Capture
    dist = torch.distributed
    dist.init_process_group = lambda backend, timeout: backends.append(backend)
    dist.get_rank, dist.get_world_size = (lambda: 0), (lambda: 2)
    dist.all_reduce, dist.barrier, dist.destroy_process_group = all_reduce, (lambda: None), (lambda: None)
    dist.all_gather_object = lambda names, name: names.__setitem__(slice(None), [name, name])
    torch.backends_asked = backends
    return check_module("nccl_sanity")


def test_ranks_that_agree_say_so(
    torch: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    sanity(torch, gpu=True).main()
    printed = capsys.readouterr().out
    assert seen_by("nccl-failure", printed)["sanity"]["ranks"] == "2"
    assert "nccl-sanity: gloo adds over all ranks: 2 on " in printed
    assert torch.backends_asked == ["set_device", "cpu:gloo,cuda:nccl"]


@pytest.mark.parametrize("how", ["gloo", "eager", "CUDA graph"])
def test_a_wrong_sum_ends_the_program_and_says_where(torch: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SystemExit, match=rf"nccl-sanity: {how}: rank 0 has 9.0, not 1.0"):
        sanity(torch, gpu=True, wrong_in=how).main()


def test_without_a_gpu_the_network_alone_is_tried(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sanity(torch, gpu=False).main()
    printed = capsys.readouterr().out
    assert "NCCL was not tried" in printed
    assert "sanity" not in seen_by("nccl-failure", printed)
    assert torch.backends_asked == ["gloo"]


def test_the_driver_is_started_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = check_module("cuda_init")

    def absent(_name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(module.ctypes, "CDLL", absent)
    assert module.main() == 1
    assert seen_by("driver-problem", capsys.readouterr().out)["init_bad"]["code"] == "34"


@pytest.mark.parametrize(("status", "seen"), [(0, "init_good"), (802, "init_bad"), (803, "init_bad")])
def test_what_the_driver_answers_is_read(
    status: int, seen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = check_module("cuda_init")

    def version(place: Any) -> int:
        place._obj.value = 13000
        return 0

    driver = SimpleNamespace(
        cuInit=lambda _flags: status, cuDriverGetVersion=version, cuDeviceGetCount=lambda _place: 0,
        cuGetErrorString=lambda *_words: 0,
    )  # fmt: skip
    monkeypatch.setattr(module.ctypes, "CDLL", lambda _name: driver)
    assert module.main() == (1 if status else 0)
    assert seen in seen_by("driver-problem", capsys.readouterr().out)
