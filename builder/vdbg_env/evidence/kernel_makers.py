"""Say which projects compile a kernel: by its own name, by others of its module, or by its library.

A name that several projects compile names them all, and one that no table has is not known. Template arguments and
parameters say nothing: `c10::Half` is an argument of half of all kernels. The one exception are CUTLASS's launchers,
whose code is that of the class they are an instance for.

The tables are `images/knowledge/kernel-makers.json`. They are JSON, since `core` reads them at each start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

from gpucore.mangling import demangle, first_argument, unqualified_of
from vdbg_env.common.errors import quoted
from vdbg_env.common.resources import SHIPPED_DATA

LinesFrom = Literal["wheel", "sources", "run time", "never"]
"""How the kernels of a maker get lines: from its released wheel, a build with lines, the run itself, or not at all."""

HowDecided = Literal["the kernel's name", "other kernels of its module", "other kernels of this core", "its library"]

SITE_PACKAGES: Final = """"$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')\""""
"""The folder of the packages of the Python that runs, as a word of a shell's command."""

# clang's and nvcc's names for an anonymous namespace; nvcc's have a hash and the name of the file.
_INTERNAL: Final = re.compile(r"(?:\(anonymous namespace\)|_INTERNAL_\w+|_GLOBAL__N_\w*)::")


@dataclass(frozen=True, kw_only=True)
class Maker:
    """A project, library or compiler that makes kernels.

    `project` is the package that `lines build` compiles again. `files` are parts of the paths that its libraries have.
    """

    name: str
    lines: LinesFrom
    project: str | None = None
    remedy: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelOrigin:
    """The makers that may have compiled a kernel, none where nothing shows it; `decided` says by what.

    `code` is whose code it is where several have copied it, and `others` says that more than those named may have.
    `likely` marks a name that others could give too. `library` is vLLM's, if it is vLLM's. `template` is the library
    of templates of a kernel that any project may compile.
    """

    makers: tuple[Maker, ...] = ()
    code: str | None = None
    others: bool = False
    likely: bool = False
    library: str | None = None
    template: str | None = None
    decided: HowDecided = "the kernel's name"

    def narrowed(self, maker: Maker, decided: HowDecided, *, likely: bool = False) -> KernelOrigin:
        """Return the same kernel's origin where the maker is known, or likely, by something else than its name."""
        library = self.library if maker.project == "vllm" else None
        return replace(self, makers=(maker,), others=False, likely=likely, library=library, decided=decided)

    @property
    def maker(self) -> Maker | None:
        """The one maker that is possible; None where there are several, or none is known."""
        return self.makers[0] if len(self.makers) == 1 else None

    @property
    def closed(self) -> bool:
        """Whether there are no sources, whichever of the makers it is."""
        return bool(self.makers) and not self.others and all(maker.lines == "never" for maker in self.makers)

    @property
    def to_lines(self) -> str:
        """What gives lines to such kernels, in words; empty where the makers do not agree, or are not known."""
        remedies = {maker.remedy for maker in self.makers}
        return remedies.pop() if len(remedies) == 1 else ""

    @property
    def document(self) -> dict[str, Any]:
        """The same for programs: docs/schemas/core-v1.schema.json says what each field means."""
        return {
            "names": [maker.name for maker in self.makers],
            "others": self.others,
            "likely": self.likely,
            "code": self.code,
            "template": self.template,
            "decided_by": self.decided if self.makers else None,
            "to_lines": self.to_lines or None,
        }

    def next_commands(self, kernel: str, core: str) -> tuple[str, ...]:
        """Return what to type to get lines for a kernel (its mangled name) that a core dump has without any.

        Each leads to something that this core does not say: to lines, to the library that has the kernel, or for
        closed code to the arguments of the launch.
        """
        file, maker = quoted(core), self.maker
        if self.closed:
            return (f"vdbg-env core --parameters {file}",)
        if maker and maker.lines == "wheel":
            return (f"vdbg-env lines build {maker.project}==VERSION --core {file}",)
        if maker and maker.lines == "sources" and not self.others:
            pack = f"{maker.name.lower().replace(' ', '-')}.lines"
            return (f"vdbg-env lines pack BUILD -o {pack}", f"vdbg-env core --lines {pack} {file}")
        if maker and maker.lines == "run time" and not self.others:
            return ()  # it is set where the program starts: `to_lines` says what
        return (find_library(kernel),)

    def elsewhere(self, kernel: str) -> str:
        """Return what leads on where a wheel does not have a kernel: its maker's way to lines, else its library."""
        maker = self.maker
        if maker is None or self.others or maker.lines == "wheel":
            return f"find which library has it, where it ran: {find_library(kernel)}"
        if maker.lines == "never":
            return f"it is {maker.name}'s, by its name, whose code is closed: vdbg-env core --parameters FILE"
        return f"it is {'likely ' if self.likely else ''}{maker.name}'s, by its name; for lines: {maker.remedy}"

    @property
    def text(self) -> str:
        """What `core` shows: the makers that are possible, and by what that is known."""
        if not self.makers:
            if self.template:
                return f"not known: a template of {self.template}, which any project may compile"
            return "not known from the kernel's name"
        names = [maker.name for maker in self.makers]
        if self.library and "vLLM" in names:
            at = names.index("vLLM")
            names[at] = f"vLLM's {self.library}" if len(names) == 1 else f"vLLM ({self.library})"
        if self.others:
            names.append("another project that has a copy")
        shown = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
        code = f" (code of {self.code})" if self.code and self.code not in names else ""
        return f"{'likely ' if self.likely else ''}{shown}{code}, by {self.decided}"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """Names of kernels with one origin: `names` end in `::` for a scope, in `*` for what begins so."""

    origin: KernelOrigin
    names: tuple[str, ...]
    launched: tuple[str, ...]
    pattern: re.Pattern[str] | None
    unmangled: bool


@dataclass(frozen=True, kw_only=True)
class KernelMakers:
    """The tables of makers and of the names of their kernels."""

    makers: Mapping[str, Maker]
    rows: tuple[_Row, ...]
    templates: Mapping[str, str]
    launchers: frozenset[str]

    def by_name(self, kernel: str) -> KernelOrigin:
        """Return the origin of a kernel by its mangled or demangled name; the longest entry that fits decides."""
        demangled = demangle(kernel)
        name = _named(unqualified_of(demangled))
        launched = _named(unqualified_of(first_argument(demangled))) if name in self.launchers else ""
        best: tuple[int, KernelOrigin] | None = None
        for row in self.rows:
            fits = max(_fit(row.names, name), _fit(row.launched, launched) if launched else 0)
            if not fits and row.pattern and (demangled.isidentifier() or not row.unmangled):
                fits = 1 if row.pattern.fullmatch(name) else 0
            if fits and (best is None or fits > best[0]):
                best = fits, row.origin
        if best:
            return best[1]
        scopes = (library for scope, library in self.templates.items() if name.startswith(scope))
        return KernelOrigin(template=next(scopes, None))

    def by_library(self, path: str, origin: KernelOrigin) -> KernelOrigin:
        """Return the origin with the maker of the library that has the kernel, if its path shows that."""
        whole = f"/{path.replace(':', '/')}"  # a wheel, a colon, and what is in it
        fits = [(len(part), maker) for maker in self.makers.values() for part in maker.files if part in whole]
        if not fits:
            return origin
        return origin.narrowed(max(fits, key=lambda fit: fit[0])[1], "its library")

    def by_neighbours(self, origin: KernelOrigin, module: Iterable[str], core: Iterable[str] = ()) -> KernelOrigin:
        """Narrow an origin by the names of other kernels: of the same module, else of the whole core.

        One module is one compilation, so its makers are the kernel's. That others of a maker's kernels are loaded makes
        that maker the likely one of several only.
        """
        if origin.maker and not origin.others and not origin.likely:
            return origin
        beside = self._certain(module)
        if len(beside) == 1 and (not origin.makers or origin.others or beside <= set(origin.makers)):
            return origin.narrowed(next(iter(beside)), "other kernels of its module")
        loaded = self._certain(core) & set(origin.makers) if len(origin.makers) > 1 else frozenset()
        if len(loaded) == 1:
            return origin.narrowed(next(iter(loaded)), "other kernels of this core", likely=True)
        return origin

    def _certain(self, kernels: Iterable[str]) -> frozenset[Maker]:
        """Return the makers of those kernels that can be of one maker alone."""
        origins = map(self.by_name, kernels)
        return frozenset(o.maker for o in origins if o.maker and not o.others and not o.likely)


def find_library(kernel: str, *places: str) -> str:
    """Return the command that finds which library has a kernel, in the environment that it ran in."""
    return f"vdbg-env locate {quoted(kernel)} {' '.join(places) or SITE_PACKAGES}"


def _named(name: str) -> str:
    """Return a name without the scopes of internal linkage: they are the compiler's."""
    return _INTERNAL.sub("", name)


def _fit(names: Sequence[str], name: str) -> int:
    """Return how many characters of a name the longest entry that fits it gives; 0 where none does."""
    return max(
        (
            len(entry) for entry in names
            if (entry == name or (entry[-1] == "*" and name.startswith(entry[:-1])) or
                (entry.endswith("::") and name.startswith(entry)))
        ),
        default=0,
    )  # fmt: skip


@cache
def kernel_makers() -> KernelMakers:
    """Read the shipped tables."""
    document = json.loads((SHIPPED_DATA / "images" / "knowledge" / "kernel-makers.json").read_bytes())
    makers = {
        row["name"]: Maker(
            name=row["name"], lines=row["lines"], project=row.get("project"), remedy=_remedy(row),
            files=tuple(row["files"]),
        )
        for row in document["makers"]
    }  # fmt: skip
    rows = tuple(
        _Row(
            origin=KernelOrigin(
                makers=tuple(makers[name] for name in row["makers"]), code=row.get("code"), library=row.get("library"),
                others=row.get("others", False), likely=row.get("likely", False),
            ),
            names=tuple(row.get("names", ())), launched=tuple(row.get("launched", ())),
            pattern=re.compile(row["pattern"]) if "pattern" in row else None, unmangled=row.get("unmangled", False),
        )
        for row in document["kernels"]
    )  # fmt: skip
    templates = document["templates"]
    return KernelMakers(
        makers=makers,
        rows=rows,
        templates={scope: row["library"] for row in templates for scope in row["names"]},
        launchers=frozenset(name for row in templates for name in row.get("launchers", ())),
    )


def _remedy(row: Mapping[str, str]) -> str:
    """Return what gives lines to a maker's kernels, in words."""
    if "remedy" in row:
        return row["remedy"]
    match row["lines"]:
        case "wheel":
            return ""  # two commands lead there: `lines build` and `build --lineinfo`
        case "sources":
            return row.get("build", f"a build of {row['name']} with -lineinfo")
        case _:
            return "none: its code is closed; look at the call's arguments instead"
