"""Writes GPU core dumps around real cubins, in the row layout of any driver branch; every core from here is synthetic.

    data = build_core(CoreSpec(devices=[DeviceSpec(modules=[ModuleSpec(cubin=...)], launches=[...], blocks=[...])]))
    data = illegal_address_core()          # a ready-made one; see the functions at the end

The layouts are written down here a second time, apart from the reader's, so that a slip in one of them shows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from gpucore.code_map import CodeMap, Function
from gpucore.dwarf import Place
from gpucore.elf import CUDA_12, Identity
from tests.builders.core_elf import CoreElf
from tests.builders.relocate import relocate

CUBINS = Path(__file__).parents[1] / "data" / "cubins"
BRANCHES = ("r352", "r400", "r525", "r550", "r555", "r565", "r570", "r575", "r580", "r590", "r615")
"""Driver branches, each of which appended something; `r352` stands for all before r400."""

Dim3 = tuple[int, int, int]
ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class ModuleSpec:
    """A loaded cubin; `keep` says which images the file holds: relocated, both or none."""

    cubin: bytes
    base: int = 0x7FFFD9000000
    handle: int = 0xABC0
    keep: str = "relocated"

    @cached_property
    def image(self) -> bytes:
        """The cubin at its addresses."""
        return relocate(self.cubin, self.base)

    @cached_property
    def code(self) -> CodeMap:
        """The relocated cubin, read."""
        return CodeMap(self.image)

    def function(self, name: str) -> Function:
        """Return the function whose mangled name is `name`, or whose demangled name begins with it."""
        return next(f for f in self.code.functions if f.name == name or f.demangled.startswith(name))

    def pc(self, name: str, offset: int) -> int:
        """Return the absolute address `offset` bytes into a function."""
        function = self.function(name)
        return self.code.address(Place(section=function.section, offset=function.start + offset))


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """A kernel launch of the module numbered `module`; `banks` are constant banks as number, address and size."""

    kernel: str = "void kern<float>"
    module: int = 0
    grid: Dim3 = (4, 1, 1)
    block: Dim3 = (64, 1, 1)
    cluster: Dim3 = (1, 1, 1)
    grid_id: int = 7
    parameters: bytes | None = None
    parameters_offset: int = 0x210
    banks: Sequence[tuple[int, int, int]] = ()


@dataclass(frozen=True, kw_only=True)
class LaneSpec:
    """What a thread of a warp holds; its PC is `offset` bytes into the kernel. Without registers it has no section.

    `local` is its local memory, with the address where that starts.
    """

    offset: int
    registers: Sequence[int] | None
    predicates: Sequence[int] = (0,) * 7
    local: tuple[int, bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class WarpSpec:
    """A warp; offsets are bytes into the launch's kernel. `exception` marks its active lanes (`marked` of them)."""

    offset: int = 0x80
    error_offset: int | None = None
    exception: int = 0
    marked: int = ALL_LANES
    valid: int = ALL_LANES
    active: int = ALL_LANES
    broken: bool = False
    barrier_scope: int = 0
    barrier_words: str | None = None
    thread_state: int = 1
    waiting_offset: int | None = None  # where the lanes that are not active stand; None = with the others
    registers: Mapping[int, int] = field(default_factory=dict)
    lanes: Mapping[int, LaneSpec] = field(default_factory=dict)  # what threads hold, by lane
    uniform: Sequence[int] = range(63)
    uniform_predicates: Sequence[int] = (0,) * 7
    outside: int | None = None  # the PC, where it lies in code that is not in the file: a system call
    calls: Sequence[int] = ()  # return offsets into the kernel, nearest first
    shared_size: int = 1024  # bytes of its block
    number: int | None = None  # in its block; None = its place in the list, as where no warp has exited


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """A resident thread block on an SM; `launch` is an index into the device's launches, `shared` its shared memory."""

    block: Dim3 = (0, 0, 0)
    sm: int = 0
    launch: int = 0
    warps: Sequence[WarpSpec] = (WarpSpec(),)
    shared: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class SmSpec:
    """What an SM's own row says; `error_offset` counts into the device's first launch's kernel."""

    exception: int = 0
    error_offset: int | None = None
    words: str | None = None
    cluster_target: Dim3 | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """A GPU; `sms` gives rows to SMs that hold no block, or an exception to those that do."""

    name: str = "NVIDIA H200"
    type: str = "gh100"
    sm_type: str = "sm_90"
    modules: Sequence[ModuleSpec] = ()
    launches: Sequence[LaunchSpec] = (LaunchSpec(),)
    blocks: Sequence[BlockSpec] = ()
    sms: Mapping[int, SmSpec] = field(default_factory=dict)
    registers: bool = True
    global_memory: Mapping[int, bytes] = field(default_factory=dict)  # by address


@dataclass(frozen=True, kw_only=True)
class CoreSpec:
    """A whole file."""

    devices: Sequence[DeviceSpec]
    branch: str = "r575"
    identity: Identity = CUDA_12
    timestamp: int = 1763696000
    generator: str = "vdbg-env core builder (synthetic)"
    flags: int = 0x2F
    extended_numbering: bool | None = None  # None: where the count demands it
    table_first: bool = False  # the section table before the contents, so that a cut keeps it


def build_core(spec: CoreSpec) -> bytes:
    """Return the bytes of a GPU core dump."""
    return _Builder(spec).build()


# Each field as name and size, the branches that appended them between; p* is padding.
_FIELDS: dict[str, str] = {
    "device": "name8 type8 sm_type8 id4 bus4 dev4 sms4 warps4 lanes4 regs4 preds4 major4 minor4 isize4 status4"
    " |r400 uregs4 upreds4 |r575 cbars4 p4",
    "context": "id8 shared8 local8 global8 device4 tid4",
    "module": "handle8",
    "grid": "id8 context8 function8 entry8 module8 parent8 params8 type4 origin4 status4 regs4 gx4 gy4 gz4 bx4 by4 bz4"
    " blocking4 tid4 |r525 cx4 cy4 cz4 p4 |r565 px4 py4 pz4 p4",
    "sm": "id4 p4 |r555 exception4 valid4 pc8 |r565 tvalid4 tx4 ty4 tz4 |r580 words8",
    "cta": "grid8 x4 y4 z4 p4 |r525 ix4 iy4 iz4 p4 |r565 cx4 cy4 cz4 p4",
    "warp": "pc8 id4 vmask4 amask4 broken4 valid4 p4 |r525 regs4 p4 |r570 smem4 p4"
    " |r575 sys4 cact4 cexit4 ccoll4 |r590 scope4 p4 info8",
    "lane": "vpc8 ppc8 ln4 x4 y4 z4 exception4 depth4 sdepth4 cc4 |r575 state4 p4 |r615 rlo4 rhi4",
    "metadata": "generator8 dmaj4 dmin4 cmaj4 cmin4 flags4 time4",
}
_TYPE = {
    "device": 9, "context": 10, "sm": 11, "grid": 12, "cta": 13, "warp": 14, "lane": 15, "module": 16, "metadata": 22,
}  # fmt: skip
_GLOBAL, _LOCAL, _IMAGE, _RELOCATED, _REGS, _BACKTRACE, _PREDS, _UREGS, _UPREDS = 2, 3, 6, 7, 5, 8, 17, 19, 20
_SHARED, _PARAMETERS, _BANKS = 4, 18, 21


def _at_least(branch: str, other: str) -> bool:
    return BRANCHES.index(branch) >= BRANCHES.index(other)


def pack_row(table: str, branch: str, values: Mapping[str, int]) -> bytes:
    """Return one row as a driver of `branch` writes it; fields not given are 0."""
    out = b""
    for word in _FIELDS[table].split():
        if word.startswith("|"):
            if not _at_least(branch, word[1:]):
                break
            continue
        name, size = word[:-1], int(word[-1])
        out += (values.get(name, 0) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return out


class _Builder:
    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        self.elf = CoreElf(identity=spec.identity, table_first=spec.table_first)

    def build(self) -> bytes:
        spec, text = self.spec, self.elf.text
        rows = [
            {
                "name": text(d.name), "type": text(d.type), "sm_type": text(d.sm_type), "id": i, "bus": 0x1B + i,
                "sms": 132, "warps": 64, "lanes": 32, "regs": 256, "preds": 7, "major": 9, "isize": 16,
                "uregs": 63, "upreds": 7, "cbars": 16,
            }
            for i, d in enumerate(spec.devices)
        ]  # fmt: skip
        devices = self._table("device", ".cudbg.devtbl", rows, 0, 0)
        for i, device in enumerate(spec.devices):
            self._device(device, devices, i)
        if _at_least(spec.branch, "r565"):
            meta = {
                "generator": text(spec.generator), "dmaj": 580, "dmin": 95, "cmaj": 13, "flags": spec.flags,
                "time": spec.timestamp,
            }  # fmt: skip
            self._table("metadata", ".cudbg.meta", [meta], 0, 0)
        return self.elf.build(extended_numbering=spec.extended_numbering)

    def _table(self, kind: str, name: str, rows: Sequence[Mapping[str, int]], link: int, info: int) -> int:
        packed = [pack_row(kind, self.spec.branch, row) for row in rows]
        size = len(pack_row(kind, self.spec.branch, {}))
        return self.elf.section(name, _TYPE[kind], b"".join(packed), link=link, info=info, entry_size=size)

    def _device(self, device: DeviceSpec, devices: int, d: int) -> None:
        context = {"id": 0x1000, "shared": 0x7F0000000000, "local": 0x7F0200000000, "device": d, "tid": 4242}
        contexts = self._table("context", f".cudbg.ctxtbl.dev{d}", [context], devices, d)
        modules = [{"handle": m.handle} for m in device.modules]
        table = self._table("module", f".cudbg.modtbl.dev{d}.ctx0", modules, contexts, 0)
        for i, module in enumerate(device.modules):
            # The name has no module number: several sections may be called alike.
            if module.keep in {"relocated", "both"}:
                self.elf.section(f".cudbg.relfimg.dev{d}.ctx0", _RELOCATED, module.image, link=table, info=i)
            if module.keep == "both":
                self.elf.section(f".cudbg.elfimg.dev{d}.ctx0", _IMAGE, module.cubin, link=table, info=i)
        grids = [self._grid(device, launch) for launch in device.launches]
        if device.blocks or not device.sms:
            table = self._table("grid", f".cudbg.gridtbl.dev{d}", grids, devices, d)
            for i, launch in enumerate(device.launches):
                if launch.parameters is not None:
                    self.elf.section(f".cudbg.param.dev{d}.grid{i}", _PARAMETERS, launch.parameters, link=table, info=i)
                if launch.banks:
                    rows = b"".join(struct.pack("<QII", at, size, number) for number, at, size in launch.banks)
                    name = f".cudbg.cbankstbl.dev{d}.grid{i}"
                    self.elf.section(name, _BANKS, rows, link=table, info=i, entry_size=16)
        self._sms(device, devices, d)
        for i, (address, held) in enumerate(device.global_memory.items()):
            self.elf.section(f".cudbg.global.{i}", _GLOBAL, held, address=address)

    def _grid(self, device: DeviceSpec, launch: LaunchSpec) -> dict[str, int]:
        module = device.modules[launch.module]
        (gx, gy, gz), (bx, by, bz), (cx, cy, cz) = launch.grid, launch.block, launch.cluster
        return {
            "id": launch.grid_id, "context": 0x1000, "function": 0x5550, "entry": module.pc(launch.kernel, 0),
            "module": module.handle, "params": launch.parameters_offset,
            "type": 2, "status": 2, "regs": 32, "gx": gx, "gy": gy, "gz": gz,
            "bx": bx, "by": by, "bz": bz, "tid": 4242, "cx": cx, "cy": cy, "cz": cz, "px": cx, "py": cy, "pz": cz,
        }  # fmt: skip

    def _sms(self, device: DeviceSpec, devices: int, d: int) -> None:
        numbers = sorted({b.sm for b in device.blocks} | set(device.sms))
        rows = [self._sm(device, number) for number in numbers]
        table = self._table("sm", f".cudbg.smtbl.dev{d}", rows, devices, d)
        for s, number in enumerate(numbers):
            blocks = [b for b in device.blocks if b.sm == number]
            ctas = [self._cta(device, b) for b in blocks]
            if ctas:
                cta_table = self._table("cta", f".cudbg.ctatbl.dev{d}.sm{s}", ctas, table, s)
                for c, block in enumerate(blocks):
                    if block.shared is not None:
                        self.elf.section(
                            f".cudbg.shared.dev{d}.sm{s}.cta{c}", _SHARED, block.shared, link=cta_table, info=c
                        )
                    self._warps(device, block, f"dev{d}.sm{s}.cta{c}", cta_table, c)

    def _sm(self, device: DeviceSpec, number: int) -> dict[str, int]:
        sm = device.sms.get(number, SmSpec())
        row = {"id": number, "exception": sm.exception, "words": self.elf.text(sm.words) if sm.words else 0}
        if sm.error_offset is not None:
            row |= {"valid": 1, "pc": self._pc(device, 0, sm.error_offset)}
        if sm.cluster_target:
            row |= dict(zip(("tvalid", "tx", "ty", "tz"), (1, *sm.cluster_target), strict=True))
        return row

    def _pc(self, device: DeviceSpec, launch: int, offset: int) -> int:
        chosen = device.launches[launch]
        return device.modules[chosen.module].pc(chosen.kernel, offset)

    def _cta(self, device: DeviceSpec, block: BlockSpec) -> dict[str, int]:
        launch = device.launches[block.launch]
        (x, y, z), (cx, cy, cz) = block.block, launch.cluster
        return {
            "grid": launch.grid_id, "x": x, "y": y, "z": z, "ix": x // cx, "iy": y // cy, "iz": z // cz,
            "cx": cx, "cy": cy, "cz": cz,
        }  # fmt: skip

    def _warps(self, device: DeviceSpec, block: BlockSpec, name: str, ctas: int, c: int) -> None:
        numbers = [w if warp.number is None else warp.number for w, warp in enumerate(block.warps)]
        rows = [self._warp(device, block, numbers[w], warp) for w, warp in enumerate(block.warps)]
        table = self._table("warp", f".cudbg.wptbl.{name}", rows, ctas, c)
        for w, warp in enumerate(block.warps):
            lanes = [self._lane(device, block, numbers[w], warp, n) for n in range(32) if warp.valid >> n & 1]
            lane_table = self._table("lane", f".cudbg.lntbl.{name}.wp{w}", lanes, table, w)
            if not device.registers:
                continue
            add = self.elf.section
            if _at_least(self.spec.branch, "r400"):
                add(f".cudbg.uregs.{name}.wp{w}", _UREGS, _words(warp.uniform), link=table, info=w, entry_size=4)
                add(
                    f".cudbg.upred.{name}.wp{w}",
                    _UPREDS,
                    _words(warp.uniform_predicates),
                    link=table,
                    info=w,
                    entry_size=4,
                )
            for i, lane in enumerate(lanes):
                words: Sequence[int] | None = [warp.registers.get(r, (w << 16) + (i << 8) + r) for r in range(32)]
                predicates: Sequence[int] = [0] * 7
                if lane["ln"] in warp.lanes:
                    held = warp.lanes[lane["ln"]]
                    words, predicates = held.registers, held.predicates
                at = f"{name}.wp{w}.ln{i}"
                if lane["ln"] in warp.lanes and (local := warp.lanes[lane["ln"]].local) is not None:
                    add(f".cudbg.local.{at}", _LOCAL, local[1], link=lane_table, info=i, address=local[0])
                if words is not None:
                    add(f".cudbg.regs.{at}", _REGS, _words(words), link=lane_table, info=i, entry_size=4)
                    add(f".cudbg.pred.{at}", _PREDS, _words(predicates), link=lane_table, info=i, entry_size=4)
                calls = [
                    struct.pack("<QQII", o, self._pc(device, block.launch, o), n, 0) for n, o in enumerate(warp.calls)
                ]
                if calls:
                    add(f".cudbg.bt.{at}", _BACKTRACE, b"".join(calls), link=lane_table, info=i, entry_size=24)

    def _warp(self, device: DeviceSpec, block: BlockSpec, number: int, warp: WarpSpec) -> dict[str, int]:
        row = {
            "id": number, "vmask": warp.valid, "amask": warp.active, "broken": int(warp.broken), "regs": 32,
            "smem": warp.shared_size, "cact": warp.active, "scope": warp.barrier_scope,
            "info": self.elf.text(warp.barrier_words) if warp.barrier_words else 0,
        }  # fmt: skip
        if warp.error_offset is not None:
            row |= {"valid": 1, "pc": warp.outside or self._pc(device, block.launch, warp.error_offset)}
        return row

    def _lane(self, device: DeviceSpec, block: BlockSpec, number: int, warp: WarpSpec, n: int) -> dict[str, int]:
        bx, by, _ = device.launches[block.launch].block
        linear = number * 32 + n
        active = warp.active >> n & 1
        offset = warp.offset if active or warp.waiting_offset is None else warp.waiting_offset
        offset = warp.lanes[n].offset if n in warp.lanes else offset
        return {
            "vpc": warp.outside or self._pc(device, block.launch, offset), "ppc": offset, "ln": n, "x": linear % bx,
            "y": linear // bx % by, "z": linear // (bx * by), "state": warp.thread_state,
            "depth": len(warp.calls), "sdepth": int(warp.outside is not None),
            "exception": warp.exception if active and warp.marked >> n & 1 else 0,
        }  # fmt: skip


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def sample_module(name: str = "inline_chain_sm90", **more: int | str) -> ModuleSpec:
    """Return a module around one of the cubins in tests/data/cubins."""
    return replace(ModuleSpec(cubin=(CUBINS / f"{name}.cubin").read_bytes()), **more)  # type: ignore[arg-type]


def illegal_address_core(*, branch: str = "r575", lines: bool = True, exception: int = 14, **spec: object) -> bytes:
    """A store to an unmapped address: warp 1 of block (3,0,0) faults at kernel+0x140, three other warps run on."""
    module = sample_module("inline_chain_sm90" if lines else "no_lines_sm90")
    faulting = WarpSpec(offset=0x150, error_offset=0x140, exception=exception)
    blocks = [
        BlockSpec(block=(3, 0, 0), sm=0, warps=[WarpSpec(), faulting]),
        BlockSpec(block=(2, 0, 0), sm=1, warps=[WarpSpec(), WarpSpec()]),
    ]
    sms = {0: SmSpec(exception=exception, error_offset=0x140)}
    device = DeviceSpec(modules=[module], blocks=blocks, sms=sms)
    return build_core(CoreSpec(devices=[device], branch=branch, **spec))  # type: ignore[arg-type]


def hang_core(*, branch: str = "r590", lines: bool = True, kernel: str = "kern", **spec: object) -> bytes:
    """No exception: one warp spins, the others of its block wait at a block barrier, one warp has diverged.

    `kernel`, four letters, is put in the place of the kernel's own name.
    """
    spinning = WarpSpec(offset=0x80, thread_state=1)
    waiting = WarpSpec(offset=0x100, barrier_scope=3, thread_state=8)
    diverged = WarpSpec(offset=0x80, active=0x0000FFFF, waiting_offset=0x150, thread_state=1)
    blocks = [
        BlockSpec(block=(x, 0, 0), sm=x, warps=[spinning if x else diverged, waiting, waiting, waiting])
        for x in range(4)
    ]
    launch = LaunchSpec(kernel=f"void {kernel}<float>", block=(128, 1, 1))
    module = sample_module("inline_chain_sm90" if lines else "no_lines_sm90")
    module = replace(module, cubin=module.cubin.replace(b"_Z4kern", b"_Z4" + kernel.encode()))
    device = DeviceSpec(modules=[module], launches=[launch], blocks=blocks)
    return build_core(CoreSpec(devices=[device], branch=branch, **spec))  # type: ignore[arg-type]


def idle_core() -> bytes:
    """Nothing runs and nothing is wrong: no launch, no block, no exception."""
    return build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()])]))


def exited_warps_core(*, branch: str = "r580", exception: int = 14, words: str | None = None) -> bytes:
    """The faulting warps are gone: an SM's row is all there is, no launch, no block, no thread."""
    sms = {5: SmSpec(exception=exception, error_offset=0x140, words=words), 6: SmSpec()}
    device = DeviceSpec(modules=[sample_module()], sms=sms)
    return build_core(CoreSpec(devices=[device], branch=branch))
