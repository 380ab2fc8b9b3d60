"""Holds what `core` says of a bad address, word by word, to what is true of every thread.

A folder has cores, their sources, and `index.json`: of each core its `file`, `truth`, `source`, `kernel`, `fault_lines`
and `base_argument` (from 1; null for a loaded pointer). The truth has the launch's `params`, and of each thread of the
warp its address, whether that was `bad`, and what each load read from where. Every claim of the text and of the JSON
that these decide is counted, and each false one by its class, which is named as in `CLASSES`.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.support.sass.cu_source import Declared, Function, functions, is_access
from tests.support.sass.operands import signed
from tests.support.sass.published import NotKnown, Tree, evaluator, published
from tests.support.sass.written import NotRead, Written
from vdbg_env.crash.core import cores_json, cores_text, read_cores
from vdbg_env.crash.files import SourceFiles

CLASSES: Final = {
    "thread": "1: a thread is named for certain whose address was good",
    "farthest": "2: the farthest thread 'is out of bounds if any is', and it is not",
    "count": "1: fewer threads are said to be possible than were bad, or all are said to be and are not",
    "placeholder": "3: a number that is not the whole index is a placeholder",
    "argument": "4: an argument has another one's name",
    "loaded": "5: a loaded value has the name of something else",
    "element": "6: bytes are shown as the index of an element",
    "brackets": "7: as C reads it, the text of a formula has another value than the formula",
    "fit": "8: a number that fits is said not to, or one without a sign is shown as negative",
    "other type": "9: an int is said to be a float or text",
    "pointer": "10: the pointer of the access is said to be another one",
    "tests": "11: a value is said not to be tested that the source tests",
    "place": "12: a line of a header, or of nothing that accesses memory, is shown as the place",
    "number": "a number that is stated as a fact is wrong",
    "doubt": "the text and the JSON do not have the same doubt",
}
"""The kinds of false statements."""
_DOUBTS: Final = ("not confirmed", "another one's", "if any is", "if it ran this")
_TRIES: Final = 8
_MULTIPLE: Final = re.compile(r"loop\d+|turn\d+")


@dataclass
class SentenceOutcome:
    """What was said of some cores: what is false by its class, and how much was said at all."""

    cores: int = 0
    answers: int = 0
    claimed: Counter[str] = field(default_factory=Counter)
    """Of how many answers something was said: a thread for certain, an argument's name, a judgement by its kind."""
    false: Counter[str] = field(default_factory=Counter)
    not_read: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: SentenceOutcome) -> None:
        """Add another outcome."""
        self.cores, self.answers = self.cores + other.cores, self.answers + other.answers
        self.claimed += other.claimed
        self.false += other.false
        self.not_read += other.not_read
        self.wrong += other.wrong


def check_folder(folder: Path, kernels: Sequence[str] = (), architectures: Sequence[int] = ()) -> SentenceOutcome:
    """Return what is false of all cores of a folder, or of those of some kernels and architectures."""
    whole = SentenceOutcome()
    for one in faults_of(folder):
        wanted = not kernels or one["kernel"] in kernels
        if wanted and (not architectures or one["arch"] in architectures):
            whole.add(check_core(folder, one))
    return whole


def faults_of(folder: Path) -> list[dict[str, Any]]:
    """Return what the index of a folder says of its cores."""
    return list(json.loads((folder / "index.json").read_text())["faults"])


def check_core(folder: Path, entry: Mapping[str, Any]) -> SentenceOutcome:
    """Return what is false in what is said of one core."""
    outcome = SentenceOutcome(cores=1)
    sources = SourceFiles([str(folder / "src")])
    read = read_cores([str(folder / entry["file"])], sources)
    text = cores_text(read.readings, read.sources, everything=True)
    document = json.loads(cores_json(read.readings, read.sources))
    fault = next((one for one in document["faults"] if one["address"]), None)
    if fault is None:
        return outcome
    outcome.answers = 1
    truth = json.loads(gzip.decompress((folder / entry["truth"]).read_bytes()))
    claims = Claims(entry, truth, (folder / entry["source"]).read_text(), fault, text, outcome)
    claims.check()
    return outcome


@dataclass
class Claims:
    """What is said of one fault, and what is true of it."""

    entry: Mapping[str, Any]
    truth: Mapping[str, Any]
    source: str
    fault: Mapping[str, Any]
    text: str
    outcome: SentenceOutcome

    def check(self) -> None:
        """Check every claim."""
        self._check_place()
        self._check_thread()
        self._check_base()
        self._check_arguments()
        self._check_numbers()
        for n, load in enumerate(self.address["loads"]):
            self._check_load(n, load)
        self._check_formulas()
        for one in self.address["judgement"]:
            self.outcome.claimed[f"judgement {one['kind']}"] += 1
            self._check_judgement(one["kind"], one["text"])
        kinds = {one["kind"] for one in self.address["judgement"]}
        self.outcome.claimed["any judgement"] += bool(kinds)
        self.outcome.claimed["any name of a loaded value"] += any(load["name"] for load in self.address["loads"])

    def _lie(self, kind: str, text: str) -> None:
        assert kind in CLASSES
        self.outcome.false[kind] += 1
        self.outcome.wrong.append(f"{kind}: {Path(self.entry['file']).name}: {text}")

    # What there is.

    @cached_property
    def address(self) -> Mapping[str, Any]:
        """The answer for programs."""
        return dict(self.fault["address"])

    @cached_property
    def lines(self) -> list[str]:
        """The answer for people."""
        return list(self.fault["why"])

    @cached_property
    def parts(self) -> dict[str, str]:
        """The parts that long formulas are written in."""
        found = (re.fullmatch(r"(part\d+) is (.*)", line) for line in self.lines)
        return {one[1]: one[2] for one in found if one}

    @cached_property
    def all_functions(self) -> list[Function]:
        """The functions of the source."""
        return functions(self.source)

    @cached_property
    def kernel(self) -> Function | None:
        """The kernel's own definition: of several with its name the one that the fault is in, or has its types."""
        named = [one for one in self.all_functions if one.name == self.entry["kernel"]]
        inside = [one for one in named if any(one.first <= n <= one.last for n in self.entry["fault_lines"])]
        return named[0] if len(named) == 1 else inside[0] if len(inside) == 1 else None

    @cached_property
    def parameters(self) -> tuple[Declared, ...]:
        """The kernel's parameters, as the source has them."""
        return self.kernel.parameters if self.kernel else ()

    def _around(self, line: int | None) -> Function | None:
        inside = [one for one in self.all_functions if line is not None and one.first <= line <= one.last]
        return inside[0] if inside else self.kernel

    @cached_property
    def lane(self) -> Mapping[str, Any] | None:
        """What is true of the thread that the answer is about."""
        lanes = self.address["lanes"]
        thread = lanes["thread"] if lanes else None
        return next((one for one in self.truth["lanes"].values() if one["thread"] == thread), None)

    @property
    def bad(self) -> list[Mapping[str, Any]]:
        """The threads of the warp whose address was bad."""
        return [one for one in self.warp if one["bad"]]

    @cached_property
    def warp(self) -> list[Mapping[str, Any]]:
        """The threads of the warp that the answer is about; a truth may have those of all warps of the block."""
        lanes = self.address["lanes"]
        if lanes is None or lanes["thread"] is None:
            return []
        wanted = self._rank(lanes["thread"]) // 32
        return [one for one in self.truth["lanes"].values() if self._rank(one["thread"]) // 32 == wanted]

    def _rank(self, thread: Sequence[int]) -> int:
        x, y, _ = self.truth["block"]
        return int(thread[0] + x * (thread[1] + y * thread[2]))

    def _parameter(self, number: int, first: int, last: int) -> int:
        data = bytes.fromhex(self.truth["params"][number - 1]["value"])
        return int.from_bytes(data[first:last], "little")

    # Which thread.

    @cached_property
    def certain(self) -> bool:
        """Whether the answer names its thread without a doubt."""
        lanes = self.address["lanes"]
        doubts = any(doubt in line for line in self.lines for doubt in _DOUBTS)
        if lanes is None or lanes["thread"] is None:
            return False
        if "certain" in lanes and lanes["certain"] == doubts:
            self._lie("doubt", f"certain is {lanes['certain']}, and the text: {' | '.join(self.lines)}")
        return bool(lanes.get("certain", not doubts))

    def _check_thread(self) -> None:
        lanes = self.address["lanes"]
        if lanes is None or lanes["thread"] is None:
            return
        self.outcome.claimed["a thread"] += 1
        right = self.lane is not None and self.lane["bad"]
        self.outcome.claimed["a thread that was bad"] += bool(right)
        if self.certain:
            self.outcome.claimed["a thread for certain"] += 1
            self.outcome.claimed["a thread for certain, rightly"] += bool(right)
            if not right:
                self._lie("thread", f"thread {lanes['thread']}; bad are {[one['thread'] for one in self.bad][:4]}")
        for line in self.lines:
            if "out of bounds if any is" in line and not right:
                self._lie("farthest", line)
            everyone = re.search(r"all (\d+) threads", line)
            if everyone and (len(self.bad) != int(everyone[1]) or len(self.bad) < len(self.warp)):
                self._lie("count", f"{line}: {len(self.bad)} were bad")
        if lanes.get("possible") is not None and lanes["possible"] < len(self.bad):
            self._lie("count", f"{lanes['possible']} possible, {len(self.bad)} were bad")

    # Names and pointers.

    def _check_base(self) -> None:
        real, base = self.entry["base_argument"], self.address["base"]
        if base is not None and base["argument"] not in (*real, None):
            self._lie("pointer", f"argument {base['argument']}, it is {real}")
        for line in self.lines:
            if line.startswith("= ") and "(a loaded pointer" in line and None not in real:
                self._lie("pointer", f"a loaded pointer, it is argument {real}")
            if "c[0][(" in line:
                self._lie("pointer", f"printed as a place in a constant bank: {line[:100]}")

    def _bases(self) -> Iterator[Mapping[str, Any]]:
        for base in (self.address["base"], *self.address["bases"], *(x["base"] for x in self.address["loads"])):
            if base is not None and base["argument"]:
                yield base

    def _check_arguments(self) -> None:
        named = False
        for base in self._bases():
            named |= base["name"] is not None
            if base["name"] and self.parameters and base["name"] != self.parameters[base["argument"] - 1].name:
                right = self.parameters[base["argument"] - 1].name
                self._lie("argument", f"argument {base['argument']} is {right}, not {base['name']}")
        self.outcome.claimed["any argument's name"] += named
        taken = {load["name"] for load in self.address["loads"]}
        for name, value in self._said_values():
            for n, one in enumerate(self.parameters, 1):
                if one.name != name or one.stars or name in taken:
                    continue
                size = self.truth["params"][n - 1]["size"]
                real = self._parameter(n, 0, size)
                if value % (1 << 8 * size) != real:
                    self._lie("argument", f"{name} is said to be {value}, it is {real}")
                elif value < 0 and one.unsigned:
                    self._lie("fit", f"{name} is {one.type} and shown as {value}")

    def _said_values(self) -> Iterator[tuple[str, int]]:
        for line in self.lines:
            if line.startswith("with "):
                for name, value in re.findall(r"([A-Za-z_]\w*) = (-?0x[0-9a-f]+|-?\d+)", line):
                    yield name, int(value, 0)

    # Numbers.

    def _fact(self, what: str, said: int | None, real: int | None, how: str | None) -> None:
        if said is None or how == "one register" or self.lane is None:
            return
        self.outcome.claimed["numbers"] += 1
        if real is not None and (said - real) % (1 << 64):
            self._lie("number", f"{what} is said to be {said:#x}, it is {real:#x}")

    def _check_numbers(self) -> None:
        if self.lane is None:
            return
        address, lanes = self.address, self.address["lanes"]
        self._fact("the address", address["value"], self.lane["address"], address["value_how_known"])
        by_thread = {tuple(one["thread"]): one["address"] for one in self.truth["lanes"].values()}
        for one in lanes["addresses"]:
            self._fact(f"that of {one['thread']}", one["value"], by_thread.get(tuple(one["thread"])), None)
        base, index = address["base"], address["index"]
        if base is not None and base["argument"] in self.entry["base_argument"] and base["argument"]:
            real = self._parameter(base["argument"], *base["bytes"])
            self._fact("the base", base["value"], real, base["how_known"])
            if index is not None and index["value"] is not None:
                distance = index["value"] * index["scale"] % (1 << 64)
                self._fact("base + index", distance, (self.lane["address"] - real) % (1 << 64), index["how_known"])

    # Loads.

    def _touched(self, load: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if self.lane is None:
            return None
        places = [v for k, v in self.lane["loads"].items() if k.rpartition(":")[2] == str(load["offset"])]
        return places[0] if len(places) == 1 else None

    def _declared(self, base: Mapping[str, Any] | None) -> Declared | None:
        """Return the parameter that a base is all of."""
        if not base or not base["argument"] or not self.parameters:
            return None
        one = self.parameters[base["argument"] - 1]
        return one if one.stars else None

    def _load_line(self, load: Mapping[str, Any], number: int) -> str:
        name = load["name"] or f"loaded{number + 1}"
        start = re.compile(rf"{re.escape(name)} (?:was|is) (?:loaded|returned by the atomic) ")
        return next((line for line in self.lines if start.match(line)), "")

    def _check_load(self, number: int, load: Mapping[str, Any]) -> None:
        touched, base, line = self._touched(load), load["base"], self._load_line(load, number)
        declared = self._declared(base)
        if touched is not None and load["value"] is not None:
            real = sum(word << 32 * k for k, word in enumerate(touched["words"]))
            if load["width"] in (4, 8):
                self._fact(f"load {number + 1}", load["value"], real % (1 << 8 * load["width"]), load["how_known"])
        said = re.search(r"\], index (-?\d+)", line)
        if touched is not None and declared is not None and declared.element:
            start = self._parameter(base["argument"], 0, 8)
            index, rest = divmod(touched["address"] - start, declared.element)
            if said and not rest and int(said[1]) != index:
                self._lie("element", f"{line}: it is element {index}")
            elif "[" in line and load["index"] and load["index"]["scale"] == 1 and declared.element > 1:
                self._lie("element", f"{line}: an element has {declared.element} bytes")
        if load["name"] is not None:
            self.outcome.claimed["names of loaded values"] += 1
            self._check_name(load, declared, touched)
        if declared is not None and declared.unsigned and declared.element == 4 and load["width"] == 4:
            for name, value in self._said_values():
                if name == (load["name"] or f"loaded{number + 1}") and value < 0:
                    self._lie("fit", f"{name} is {declared.type} and shown as {value}")
        place = load["line"]
        if place is not None and place.rpartition(":")[0] != Path(self.entry["source"]).name:
            self._lie("place", f"load {number + 1} at {place}")

    def _check_name(
        self, load: Mapping[str, Any], declared: Declared | None, touched: Mapping[str, Any] | None
    ) -> None:
        place = load["line"] or ""
        line = int(place.rpartition(":")[2]) if place.startswith(Path(self.entry["source"]).name) else None
        function, name = self._around(line), load["name"]
        if function is None:
            return
        near = [(n, right) for n, right in function.assignments(name) if line is None or abs(n - line) <= 1]
        exact = [(n, is_access(right), right) for n, right in near]
        whose = load["base"]
        right_name = None
        if whose and whose["argument"] and self.parameters:
            right_name = self.parameters[whose["argument"] - 1].name
        good = [right for _, base, right in exact if base is not None and (right_name is None or base == right_name)]
        if not good and function is not self.kernel:
            good = [right for _, base, right in exact if base is not None]  # a parameter of the function's own
        if not good:
            self._lie("loaded", f"{name}: {' or '.join(right for _, right in near) or 'is nowhere near set'}")
            return
        if touched is None or declared is None or not declared.element or "for" in function.body:
            return
        indexes = [self._index_in_source(function, right) for right in good]
        start = self._parameter(whose["argument"], 0, 8)
        real = (touched["address"] - start) // declared.element
        if None not in indexes and real not in indexes:
            self._lie("loaded", f"{name} is {good[0]}, not {right_name}[{real}]")

    def _index_in_source(self, function: Function, right: str) -> int | None:
        """Return which element an access of the source is for the thread; None where that is not read."""
        inner = re.fullmatch(r"\w+\s*\[([^\[\]]*)\]", right)
        if inner is None or self.lane is None:
            return None
        dimensions = {
            "threadIdx": self.lane["thread"], "blockIdx": self.truth["blk"], "blockDim": self.truth["block"],
            "gridDim": self.truth["grid"],
        }  # fmt: skip
        known = {
            f"{word}.{axis}": v for word, values in dimensions.items() for axis, v in zip("xyz", values, strict=True)
        }
        for n, one in enumerate(self.parameters, 1):
            size = self.truth["params"][n - 1]["size"]
            if function is self.kernel and size <= 8 and not one.stars:
                value = self._parameter(n, 0, size)
                known[one.name] = value if one.unsigned else signed(value, 8 * size)

        def leaf(name: str) -> int:
            if name not in known:
                raise NotRead(name)
            return int(known[name])

        for name, right_side in function.names:
            try:
                known.setdefault(name, Written(leaf).value(right_side))
            except NotRead:
                continue
        try:
            return Written(leaf).value(inner[1])
        except NotRead:
            return None

    # Formulas.

    def _check_formulas(self) -> None:
        base = self.address["base"]
        line = next((one for one in self.lines if one.startswith("= ")), "")
        described = re.search(r" \((?:argument \d+|a loaded pointer|the caller's pointer)", line)
        if described and base is not None:
            at = end = described.start() + 1
            depth = 0
            for end in range(at, len(line)):
                depth += (line[end] == "(") - (line[end] == ")")
                if not depth:
                    break
            self._compare(line[2:].split(" ", 1)[0] + line[end + 1 :], "/formula")
        elif line:
            self._compare(line[2:].split("; based on")[0], "/formula")
        for n, load in enumerate(self.address["loads"]):
            element = re.search(r": [\w.:\[\]]+?\[(.*)\](?:, index -?\d+)?$", self._load_line(load, n))
            if element and load["index"]:
                self._compare(element[1], f"/loads/{n}/index/formula")
        for n, _ in enumerate(self.address["guards"]):
            shown = [one for one in self.lines if one.startswith("it runs where ")]
            if len(shown) == len(self.address["guards"]):
                self._compare(shown[n].removeprefix("it runs where ").rpartition(", tested at ")[0],
                              f"/guards/{n}/condition")  # fmt: skip

    def _compare(self, text: str, pointer: str) -> None:
        tree = published(self.address, pointer)
        if tree is None or "..." in text or not text:
            return
        self.outcome.claimed["formulas"] += 1
        different = 0
        for seed in range(_TRIES):
            leaves = RandomLeaves(self.address, random.Random(seed), self.parameters)
            try:
                real = evaluator(self.address, leaves.of_tree).value(tree)
                said = Written(leaves.of_text, self.parts).value(text)
            except (NotKnown, NotRead) as error:
                self.outcome.not_read[f"{type(error).__name__}: {error}"[:60]] += 1
                return
            different += (said - real) % (1 << 32) != 0
        if different > _TRIES // 2:
            self._lie("brackets", text)

    # Judgements.

    def _check_judgement(self, kind: str, text: str) -> None:
        if kind == "placeholder" and not self._is_whole_index(text.split(" is ")[0]):
            self._lie("placeholder", text)
        if kind == "other type" and not self._is_floating(text.split(" is ")[0]):
            self._lie("other type", text)
        if kind == "wrapped product" and self._fits(text):
            self._lie("fit", text)
        if kind == "not compared" and self._is_tested(text.rpartition(" ")[2]):
            self._lie("tests", text)
        of_thread = kind in {
            "negative index",
            "null pointer",
            "no device address",
            "misaligned",
            "beyond shared memory",
        }
        if of_thread and self.certain and self.lane is not None and not self.lane["bad"]:
            self._lie("thread", text)

    def _loads_named(self, name: str) -> list[tuple[int, Mapping[str, Any]]]:
        bare = name.split(".")[0]
        return [(n, x) for n, x in enumerate(self.address["loads"]) if bare == (x["name"] or f"loaded{n + 1}")]

    def _is_whole_index(self, name: str) -> bool:
        """Say whether the index is a multiple of a loaded value, of a thread whose address was bad."""
        index = published(self.address, "/index/formula") if self.address["index"] else None
        if index is None or self.lane is None or not self.lane["bad"]:
            return False
        wanted = [n for n, _ in self._loads_named(name)]
        for seed in range(_TRIES):
            leaves = RandomLeaves(self.address, random.Random(seed), self.parameters)
            for key in list(leaves.fixed_loads(wanted)):
                leaves.given[key] = 0
            try:
                if evaluator(self.address, leaves.of_tree).value(index):
                    return False
            except NotKnown:
                return False
        return bool(wanted)

    def _is_floating(self, name: str) -> bool:
        declared = [self._declared(load["base"]) for _, load in self._loads_named(name)]
        return any(one is not None and one.floating for one in declared)

    def _fits(self, text: str) -> bool:
        """Say whether the sum fits where the numbers in it are read as their types say, or all as unsigned."""
        formula = re.fullmatch(r"(.*) is -?\d+, which does not fit (.*): it wrapped", text)
        if formula is None or self.lane is None:
            return False
        said = dict(self._said_values())
        found = []
        for unsigned in (False, True):

            def leaf(name: str, unsigned: bool = unsigned) -> int:
                value = said.get(name)
                for n, one in enumerate(self.parameters, 1):
                    if one.name == name and not one.stars:
                        size = self.truth["params"][n - 1]["size"]
                        value = signed(self._parameter(n, 0, size), 8 * size)
                special = re.fullmatch(r"(threadIdx|blockIdx|blockDim|gridDim)\.([xyz])", name)
                if special and self.lane is not None:
                    axes = {"threadIdx": self.lane["thread"], "blockIdx": self.truth["blk"]}
                    axes |= {"blockDim": self.truth["block"], "gridDim": self.truth["grid"]}
                    value = axes[special[1]]["xyz".index(special[2])]
                if value is None:
                    raise NotRead(name)
                return value % (1 << 32) if unsigned else value

            try:
                found.append(Written(leaf, self.parts).value(formula[1]))
            except NotRead:
                continue
        most = 1 << (31 if formula[2] == "an int" else 32)
        return any(-(1 << 31) <= one < most for one in found)

    def _is_tested(self, name: str) -> bool:
        """Say whether the source tests a loaded value, by its name or by what it is loaded as."""
        for _, load in self._loads_named(name):
            place = load["line"] or ""
            line = int(place.rpartition(":")[2]) if place.startswith(Path(self.entry["source"]).name) else None
            function = self._around(line)
            declared = self._declared(load["base"])
            if function is None:
                continue
            names = {load["name"]} if load["name"] else set()
            loaded_as = {f"{declared.name}[" if declared else ""} - {""}
            for local, right in function.names:
                if declared is not None and is_access(right) == declared.name:
                    names.add(local)
            for condition in function.conditions:
                words = set(re.findall(r"\w+", condition))
                if names & words or any(one in condition.replace(" ", "") for one in loaded_as):
                    return True
        return False

    # Places.

    def _check_place(self) -> None:
        file = Path(self.entry["source"]).name
        chain = self.fault["chain"]
        if not chain:
            return
        self.outcome.claimed["a line"] += 1
        head = self.text.split("\n", 1)[0].rpartition(" at ")[2]
        where, _, line = head.rpartition(":")
        if Path(where).name != file:
            self._lie("place", head)
        elif line.isdigit() and int(line) not in self.entry["fault_lines"]:
            self._lie("place", f"line {line}, it is {self.entry['fault_lines']}")


class RandomLeaves:
    """Gives the leaves of an answer small numbers, the same ones by their place in the tree and by their names."""

    def __init__(self, address: Mapping[str, Any], rng: random.Random, parameters: Sequence[Declared]) -> None:
        self.address, self.parameters = address, parameters
        self._seed = rng.randrange(1 << 30)
        self.given: dict[str, int] = {}

    def _number(self, key: str) -> int:
        return self.given.get(key, random.Random(f"{self._seed} {key}").randrange(1, 2000))

    def of_tree(self, tree: Tree) -> int:
        """Return the number of a leaf of a tree."""
        if "special" in tree:
            return self._number(tree["special"])
        if "parameter" in tree:
            return self._number(f"argument {tree['parameter']} {tree['bytes'][0]}")
        if "loaded" in tree:
            return self._number(f"loaded {tree['loaded']} {tree['bytes'][0] // 4}")
        if "loop" in tree:
            return self._number(f"loop {tree['loop']}")
        if "opaque" in tree:
            return self._number(f"opaque {tree['opaque']}")
        if "entry" in tree:
            return self._number(f"entry {tree['entry']}")
        if "constant_bank" in tree:
            return self._number(f"c[{tree['constant_bank']}][{tree['offset']:#x}]")
        raise NotKnown(str(tree))

    def fixed_loads(self, numbers: Sequence[int]) -> Iterator[str]:
        """Yield the keys of the words of some loads."""
        for n in numbers:
            yield from (f"loaded {n} {word}" for word in range(8))

    def of_text(self, name: str) -> int:
        """Return the number of a name of the text."""
        for n, load in enumerate(self.address["loads"]):
            called = load["name"] or f"loaded{n + 1}"
            if name == called or re.fullmatch(rf"{re.escape(called)}\.[xyzwabcd]", name):
                word = "xyzwabcd".index(name[-1]) if name != called else 0
                return self._number(f"loaded {n} {word}")
        if re.fullmatch(r"(loop|turn)\d+", name):
            return self._number(f"loop {int(name[4:]) - 1}")
        if name.startswith("{"):
            return self._number(f"opaque {name[1:-1].split(' ')[0]}")
        if name.endswith(" at entry"):
            return self._number(f"entry {name.split(' ')[0]}")
        if name.startswith("c["):
            return self._number(name)
        plain, _, part = name.partition(".bytes[")
        start = int(part.split(":")[0]) if part else 0
        if re.fullmatch(r"argument\d+", plain):
            return self._number(f"argument {int(plain[8:])} {start}")
        for n, one in enumerate(self.parameters, 1):
            if one.name == plain:
                return self._number(f"argument {n} {start}")
        if re.fullmatch(r"(threadIdx|blockIdx|blockDim|gridDim)\.[xyz]|\w*(?:Id|ID|Cta|MASK|elected)\w*", name):
            return self._number(name)
        raise NotRead(name)


def run(folder: Path, *, show: Callable[[str], None] = print) -> SentenceOutcome:
    """Check a folder and show what was found."""
    outcome = check_folder(folder)
    for line in outcome.wrong:
        show(line)
    show("\n" + table(outcome))
    return outcome


def table(outcome: SentenceOutcome) -> str:
    """Return the counts as text."""
    rows = [f"{outcome.cores} cores, {outcome.answers} answers"]
    rows += [f"{outcome.false[kind]:6} FALSE {text}" for kind, text in CLASSES.items()]
    rows += [f"{count:6} {kind}" for kind, count in sorted(outcome.claimed.items())]
    rows += [f"{count:6} not read: {kind}" for kind, count in outcome.not_read.most_common(8)]
    return "\n".join(rows)
