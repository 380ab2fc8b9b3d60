"""The answer sheet: what documents and synthetic cores leave open, and what this GPU says to it.

Every answer is made from `measured.json` and the files beside it, so it can be made anew from an evidence folder that
was carried away. What was not measured is said not to be answered, and why.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Measured = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question, its answer in one line, None when the evidence holds none, and the files that show it."""

    question: str
    answer: str | None
    files: tuple[str, ...] = ()


def answers(folder: Path) -> tuple[Answer, ...]:
    """Answer every open question from an evidence folder."""
    path = folder / "measured.json"
    measured: Measured = json.loads(path.read_text()) if path.exists() else {}
    return (
        _identity(measured),
        _fields(measured),
        _lines(measured),
        _pipe(measured),
        _xml(folder),
        _banner(folder),
        _log_only(folder),
        _unknown_flag(folder, measured),
        _devices(measured),
        _names(measured),
        _exceptions(measured),
    )


def render(heading: str, given: tuple[Answer, ...]) -> str:
    """Return the sheet as Markdown."""
    lines = [f"# {heading}", "", "What was open, and what was seen here.", ""]
    for each in given:
        lines += [f"## {each.question}", "", each.answer or "Not answered: nothing in this evidence tells."]
        shown = [*(f"`{name}`" for name in each.files[:4]), *(["and others like it"] if len(each.files) > 4 else [])]
        lines += ["", f"Evidence: {', '.join(shown)}"] if shown else []
        lines.append("")
    return "\n".join(lines)


def _cores(measured: Measured) -> dict[str, Any]:
    return dict(measured.get("cores", {}))


def _answer(question: str, told: Iterable[str], files: Iterable[str] = ()) -> Answer:
    """Return what was told as one line; nothing told is no answer, and shows no files."""
    line = "; ".join(dict.fromkeys(told))
    return Answer(question=question, answer=f"{line}." if line else None, files=tuple(files) if line else ())


def _files(cores: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"cores/{name}" for name in cores)


def _identity(measured: Measured) -> Answer:
    cores = _cores(measured)
    counted = Counter((core["identity"], core["e_version"], core["e_flags"]) for core in cores.values())
    told = [
        f"bytes 7 and 8 of e_ident are {identity} (e_version {version}, e_flags {flags}) in {count} core(s)"
        for (identity, version, flags), count in counted.items()
    ]
    return _answer("Identity bytes of a core", told, _files(cores))


def _fields(measured: Measured) -> Answer:
    cores = _cores(measured)
    rows: dict[str, str] = {}
    said: dict[str, set[str]] = {}
    unknown: set[str] = set()
    for core in cores.values():
        for table, row in core["rows"].items():
            known = "longer than any known" if row["longer_than_known"] else _place_among(row["bytes"], row["known"])
            rows[table] = f"{table} {row['bytes']} ({known})"
        unknown |= set(core["unknown_sections"])
        for name, values in core["later_fields"].items():
            said.setdefault(name, set()).update(values)
    told = [f"row sizes in bytes: {', '.join(rows[name] for name in sorted(rows))}"] if rows else []
    told += [f"{name}: {', '.join(sorted(values)) or 'nothing'}" for name, values in sorted(said.items())]
    told += [f"section types nobody has named: {', '.join(sorted(unknown))}"] if unknown else []
    return _answer("Later fields (r575 to r615)", told, _files(cores))


def _place_among(size: int, known: list[int]) -> str:
    return f"number {known.index(size) + 1} of {len(known)} known" if size in known else "between the known sizes"


def _lines(measured: Measured) -> Answer:
    """Tell apart what was compiled with line info from what never had a line to keep."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for core in _cores(measured).values():
        for image in core["images"]:
            kind = "relocated" if image["relocated"] else "not relocated"
            lines = "lines are found" if image["with_lines"] else "no line is found"
            counted[kind, ", ".join(image["kept"]) or "no debug section", lines] += 1
    told = [f"{count} {kind} image(s) keep {kept}, {lines}" for (kind, kept, lines), count in counted.items()]
    return _answer("Line tables in relocated images", told, _files(_cores(measured)))


def _pipe(measured: Measured) -> Answer:
    told = []
    for size, seen in measured.get("pipe", {}).items():
        how = f"fired after {seen['wait_s']:.1f} s" if seen["fired"] else f"not fired within {seen['wait_s']:.0f} s"
        lives = "lives on" if seen["alive"] else "is gone"
        told.append(f"{size} byte(s), {seen['taken']} taken: {how}, the process {lives}")
    files = (f"text/pipe-{size}.txt" for size in measured.get("pipe", {}))
    return _answer("How much must be written to fire the pipe", told, files)


def _xml(folder: Path) -> Answer:
    told = []
    files = sorted((folder / "text").glob("*.xml"))
    for path in files:
        try:
            root = ET.parse(path).getroot()
        except ET.ParseError as error:
            told.append(f"{path.name} is no XML: {error}")
            continue
        names = list(dict.fromkeys(element.tag for element in root.iter()))
        told.append(f"{path.name}: <{root.tag}> of {', '.join(names[1:]) or 'nothing'}")
    return _answer("The sanitizer's XML", told, (f"text/{path.name}" for path in files))


_BANNER = {
    "focus": re.compile(r"\[Current focus"),
    "exception": re.compile(r"^(?:CUDA Exception:|Assertion failed\.)", re.MULTILINE),
    "pc": re.compile("The exception was triggered at PC"),
}


def _banner(folder: Path) -> Answer:
    orders: dict[str, list[str]] = {}
    for path in sorted((folder / "text").glob("cuda-gdb-*.txt")):
        text = path.read_text(errors="replace")
        found = sorted((at.start(), name) for name, words in _BANNER.items() if (at := words.search(text)))
        if found:
            orders.setdefault(", then ".join(name for _, name in found), []).append(f"text/{path.name}")
    told = [f"{order} ({len(files)} transcript(s))" for order, files in orders.items()]
    return _answer("The order of cuda-gdb's banner lines", told, (files[0] for files in orders.values()))


def _log_only(folder: Path) -> Answer:
    name = "text/flags-log-only.txt"
    return _answer("What `log_only` prints", list(_progress(folder / name))[:12], [name])


def _progress(path: Path) -> Iterator[str]:
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            if "coredump" in line or "Valid flags" in line:
                yield re.sub(r"^\[[\d:.]+\] ", "", line.strip())


def _unknown_flag(folder: Path, measured: Measured) -> Answer:
    name = "text/flags-a-flag-nobody-knows.txt"
    told = [line for line in _progress(folder / name) if "flag" in line]
    if not told and (folder / name).exists():
        told = ["nothing is said about it"]
    refused = {flags: words for flags, words in measured.get("refused_flags", {}).items() if words}
    told += [f"refused under `{flags}`: {', '.join(words)}" for flags, words in refused.items()]
    return _answer("What a driver says to a flag it does not know", told, [name])


def _devices(measured: Measured) -> Answer:
    cores, gpus = _cores(measured), measured.get("machine", {}).get("gpus", [])
    counts = sorted({len(core["devices"]) for core in cores.values()})
    told = [f"{len(gpus)} GPU(s) here, {' or '.join(map(str, counts))} device row(s) in a core"] if counts else []
    told += ["one GPU tells nothing about several"] if told and len(gpus) == 1 else []
    return _answer("Several devices in one file", told, _files(cores))


def _names(measured: Measured) -> Answer:
    told = [f"{kind} {name}" for kind, name in measured.get("default_names", {}).items() if name]
    return _answer("Names of pipe and file when none are given", told)


def _exceptions(measured: Measured) -> Answer:
    told = [
        f"{sample}: {seen['name']}{'' if seen['expected'] else ', WHICH WAS NOT EXPECTED'}"
        for sample, seen in measured.get("exceptions", {}).items()
    ]
    return _answer(
        "Which exception each fault is", told, (f"runs/{name}.json" for name in measured.get("exceptions", {}))
    )
