"""The steps of a build, one function each, from templates; `planner` puts them in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput, VdbgError
from vdbg_env.image.context import ROOT
from vdbg_env.image.knowledge import VllmRow
from vdbg_env.image.plan import FLAG, NO_LAUNCHER, UNSET_FOR_COMPILE, CommandStep, CopyStep, SecretUse, Step, Variable
from vdbg_env.image.profile import Base, BuildRequest, Bundled, GitRef, ImageSpec, LocalTree, Sdist, Source

if TYPE_CHECKING:
    from jinja2 import Environment


# Turn a step's template into commands; every value in it is quoted, which no template can forget.


CONTINUED = "\0"  # occurs nowhere else: values with control characters are refused


def words(value: object) -> str:
    """Return a value as words of POSIX shell: text as one word, a sequence as several.

    Raises BadInput for control characters, which no word can hold on one line.
    """
    match value:
        case str():
            return shlex.quote(one_line(value, f"the value {value[:40]!r}"))
        case int() | float():
            return str(value)
        case list() | tuple():
            return " ".join(words(item) for item in value)
        case _:
            raise VdbgError(f"a template uses {value!r}, which is not text")


class ShellTemplates:
    """The templates of the build steps, by file name, read from text that is passed in."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def commands(self, name: str, **values: object) -> tuple[str, ...]:
        """Return the commands of template `name`, one to a line, without empty lines.

        A line that ends in a backslash continues in the next, and keeps its break.
        Jinja's `finalize` quotes: it gets every value, and no text of the template.
        """
        text = self._environment.get_template(name).render(values)
        lines = text.replace("\\\n", CONTINUED).splitlines()
        return tuple(line.replace(CONTINUED, "\\\n") for line in lines if line)

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import DictLoader, Environment, StrictUndefined

        return Environment(
            loader=DictLoader(dict(self.texts)),
            undefined=StrictUndefined,
            finalize=words,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )


CA_BUNDLE = "site/ca-bundle.crt"
PACKAGES = "venv/lib/python/site-packages"
"""Where Python packages are, through a link that does not name Python's version."""
UBUNTU_SOURCES = "/etc/apt/sources.list.d/ubuntu.sources"
SITE = CopyStep(id="site", title="The site's certificate authority", source="site", target="site")
REQUIREMENTS = CopyStep(
    id="requirement-lists", title="Lists of requirements", source="requirements", target="requirements"
)
OBJECT_CACHE = CopyStep(
    id="object-cache", title="Launcher of the compiler cache", source="object-cache.sh", target="object-cache.sh"
)
LAUNCHER = CopyStep(id="launcher", title="Launcher of vdbg-env", source="vdbg-env", target="vdbg-env")
WHEEL = CopyStep(id="wheel", title="The release of vdbg-env that rendered this", source="wheel", target="wheel")
ENTRYPOINT = CopyStep(id="entrypoint", title="Entry point", source="entrypoint.sh", target="entrypoint.sh")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """What every step is made from: the profile, the request, and what follows from both."""

    spec: ImageSpec
    request: BuildRequest
    source: Source
    arch: tuple[str, ...]
    requirements: tuple[str, ...]
    vllm: VllmRow | None
    templates: ShellTemplates

    def packages(self) -> CommandStep:
        """Install the distribution's packages."""
        return self._apt("packages", "Packages of", self._apt_packages(), self.spec.packages.needs)

    def _apt_packages(self) -> tuple[str, ...]:
        """Return the profile's packages and, for a whole vLLM, those of the release's own image."""
        own = self.spec.packages.apt
        image = self.vllm.image if self.vllm and not self.request.target else None
        if image is None:
            return own
        # NVIDIA's repository, which has NCCL, is in the images with its toolkit only.
        without = ("libnccl",) if self.spec.toolchain.provided_by == "wheels" else ()
        names = {package.partition("=")[0] for package in own}
        return (*own, *(p for p in image.apt if p not in names and not p.startswith(without)))

    def object_cache(self) -> tuple[Step, ...]:
        """Install the compiler cache and its launcher, for a build that keeps objects."""
        if self.request.object_cache is None:
            return ()
        return (self._apt("ccache", "Compiler cache of", ("ccache",), ("ccache",)), OBJECT_CACHE)

    def _apt(self, name: str, title: str, packages: tuple[str, ...], needs: tuple[str, ...]) -> CommandStep:
        """Change the system; only these steps do."""
        base, site = self.spec.base, self.request.site
        options: list[str] = []
        if site.ca_bundle is not None:
            options += ["-o", f"Acquire::https::CAInfo={ROOT}/{CA_BUNDLE}"]
        if site.apt_mirror:
            options += ["-o", "Dir::Etc::sourcelist=/etc/apt/vdbg-env.list"]
            if base.distribution == "debian":  # images based on Ubuntu have NVIDIA's repository in a file of parts
                options += ["-o", "Dir::Etc::sourceparts=-"]
        aside = UBUNTU_SOURCES if site.apt_mirror and base.distribution == "ubuntu" else ""
        mirror_lines = _mirror_lines(site.apt_mirror, base) if site.apt_mirror else ()
        commands = self.templates.commands(
            "packages.sh.j2", options=options, packages=packages, mirror_lines=mirror_lines, aside=aside,
            keep_ca=site.ca_bundle is not None and site.keep_ca,
        )  # fmt: skip
        return CommandStep(
            id=name, title=f"{title} {base.distribution} {base.suite}", commands=commands, network=True,
            env=(Variable(name="DEBIAN_FRONTEND", value="noninteractive"),), where="container",
            needs=needs,
        )  # fmt: skip

    def toolchain(self) -> CommandStep:
        """Install the CUDA toolkit, or use the one of the base image."""
        chain = self.spec.toolchain
        match chain.provided_by:
            case "base":
                commands = self.templates.commands("toolchain-base.sh.j2")
                return CommandStep(
                    id="toolchain", title=f"Python next to the CUDA {chain.cuda} of the base", commands=commands
                )
            case "wheels":
                toolkit = f"cu{chain.cuda.split('.')[0]}"
                return self._fetching(
                    "toolchain", f"CUDA {chain.cuda} from the package index", "toolchain-wheels",
                    wheels=chain.wheels, toolkit=toolkit,
                )  # fmt: skip

    def python(self) -> CommandStep:
        """Install the Python packages that the build needs."""
        return self._fetching("python", "Python packages the build needs", "python", requirements=self.requirements)

    def tools(self) -> CommandStep:
        """Install the Python packages for debugging."""
        return self._fetching("tools", "Debug tools", "python", requirements=self.spec.packages.tools)

    def dependencies(self) -> tuple[CopyStep, ...]:
        """Copy the local trees that replace downloads."""
        names = [dep.name for dep in self.request.deps]
        return tuple(
            CopyStep(id=f"dep-{name}", title=f"Local tree of {name}", source=f"deps/{name}", target=f"deps/{name}")
            for name in names
        )

    def fetch_source(self) -> tuple[CommandStep, ...]:
        """Fetch the source to `src`, where it stays for debuggers to show; local sources are copied instead."""
        match self.source:
            case Sdist(project=project, version=version):
                # With these two pip takes vLLM's metadata on a machine without CUDA; other projects ignore them.
                env = (
                    Variable(name="VLLM_TARGET_DEVICE", value="empty"),
                    Variable(name="VLLM_VERSION_OVERRIDE", value=version),
                )
                step = self._fetching(
                    "source", f"Source distribution of {project} {version}", "source-sdist", env=env,
                    project=project, version=version,
                )  # fmt: skip
            case GitRef(url=url, ref=ref):
                step = self._fetching("source", "Source from git", "source-git", url=url, ref=ref)
            case LocalTree() | Bundled():
                return ()
        return (step,)

    def copy_source(self) -> tuple[CopyStep, ...]:
        """Copy a local source, after everything that does not depend on it."""
        if isinstance(self.source, LocalTree | Bundled):
            return (CopyStep(id="source", title="Source tree", source="source", target="src"),)
        return ()

    def source_requirements(self) -> tuple[Step, ...]:
        """Install what the source itself requires, which may differ from what the profile expects.

        The lists of a local source are copied alone, so a change to any other of its files installs nothing again.
        """
        if self.spec.build.system != "vllm":
            return ()
        local = isinstance(self.source, LocalTree)
        step = self._fetching(
            "requirements", "What this source requires of Python", "vllm-requirements",
            cwd="requirements" if local else "src", target=self.request.target,
            wheels=self.spec.toolchain.provided_by == "wheels", release=self._release_packages(),
        )  # fmt: skip
        return (REQUIREMENTS, step) if local else (step,)

    def _release_packages(self) -> dict[str, tuple[str, ...]]:
        """Return what the release's own image installs next to the requirements, and changes in them for CUDA 12."""
        image = self.vllm.image if self.vllm else None
        if image is None:
            return {"packages": (), "nccl": (), "edits": ()}
        major = self.spec.toolchain.cuda.partition(".")[0]
        rewritten = image.cuda12.items() if major == "12" else ()
        edits = tuple(_edit(old, new) for old, new in rewritten)
        nccl = (f"nvidia-nccl-cu{major}=={image.nccl}",) if image.nccl else ()
        return {"packages": image.packages, "nccl": nccl, "edits": edits}

    def prepare(self) -> tuple[CommandStep, ...]:
        """Run the profile's own commands in the source folder."""
        if not self.spec.build.prepare:
            return ()
        commands = self.templates.commands("prepare.sh.j2", commands=self.spec.build.prepare)
        step = CommandStep(
            id="prepare", title="Commands of the profile", commands=commands, cwd="src", phase="fetch", network=True
        )
        return (step,)

    def externals(self) -> tuple[CommandStep, ...]:
        """Fetch the external projects that vLLM's CMake would fetch, for a compile step without network."""
        if self.spec.build.system != "vllm" or not self.request.offline_compile:
            return ()
        edit = self._leave_out_other_projects() if self.request.target else ""
        commands = self.templates.commands(
            "externals.sh.j2", unset=UNSET_FOR_COMPILE, edit=edit, flags=self._debug_flags(), objects="",
            cmake_args=self.spec.build.cmake_args,
        )  # fmt: skip
        step = CommandStep(
            id="externals", title="External projects of vLLM", commands=commands, cwd="src", phase="fetch",
            network=True, env=(*self._network_environment(), *self._dependency_variables()), secrets=self._secrets(),
        )  # fmt: skip
        return (step,)

    def compile(self) -> CommandStep:
        """Compile, in a tree without objects of an earlier build."""
        fetched = ("-DFETCHCONTENT_FULLY_DISCONNECTED=ON",) if self.request.offline_compile else ()
        match self.spec.build.system, self.request.target:
            case "cmake", target:
                return self._compile("build-cmake", f"Compile {target or 'everything'}", flags=self._cmake_flags())
            case "vllm", None:
                return self._compile("build-vllm", "Compile vLLM", env=self._vllm_environment(fetched))
            case _, target:
                return self._compile(
                    "build-vllm-target", f"Compile {target} of vLLM", flags=(*self._debug_flags(), *fetched),
                    edit=self._leave_out_other_projects(),
                )  # fmt: skip

    def guard_requirements(self) -> tuple[CommandStep, ...]:
        """Install what vdbg-env requires, where no program of the image looks for packages."""
        if self.request.guard is None:
            return ()
        step = self._fetching(
            "guard-requirements", "What vdbg-env requires of Python", "guard-requirements",
            requirements=self.request.guard.requirements,
        )  # fmt: skip
        return (step,)

    def guard(self) -> tuple[Step, ...]:
        """Install vdbg-env itself, without network: another release of it runs these steps again, and no others."""
        if self.request.guard is None:
            return ()
        commands = self.templates.commands("guard.sh.j2")
        install = CommandStep(id="guard", title="vdbg-env, which guards the command", commands=commands, phase="check")
        return (WHEEL, LAUNCHER, install)

    def check(self) -> CommandStep:
        """Check that every tool starts and prints the expected version, and remove the site's files."""
        site = self.request.site
        commands = self.templates.commands(
            "check.sh.j2", tools=[{"expect": t.expect, "argv": t.argv} for t in self.spec.tools],
            forget_site=site.ca_bundle is not None and not site.keep_ca,
        )  # fmt: skip
        return CommandStep(id="check", title="The tools start and agree", commands=commands, phase="check")

    def _fetching(
        self, name: str, title: str, template: str, *, cwd: str = ".", env: tuple[Variable, ...] = (), **values: object
    ) -> CommandStep:
        commands = self.templates.commands(f"{template}.sh.j2", **values)
        env = (*self._network_environment(), *env)
        return CommandStep(
            id=name,
            title=title,
            commands=commands,
            cwd=cwd,
            env=env,
            network=True,
            secrets=self._secrets(),
            cache="pip",
        )

    def _compile(self, template: str, title: str, *, env: tuple[Variable, ...] = (), **values: object) -> CommandStep:
        objects = self.request.object_cache
        commands = self.templates.commands(
            f"{template}.sh.j2", unset=UNSET_FOR_COMPILE, target=self.request.target or "",
            cmake_args=self.spec.build.cmake_args, gib=self.spec.build.memory_per_job_gib,
            flag=FLAG[self.request.debug], objects=objects or "", **values,
        )  # fmt: skip
        fetches = self.spec.build.system == "vllm" and not self.request.offline_compile
        env = (*(self._network_environment() if fetches else ()), *self._dependency_variables(), *env)
        return CommandStep(
            id="compile", title=title, commands=commands, cwd="src", env=env, phase="compile", network=fetches,
            secrets=self._secrets() if fetches else (), cache=f"objects:{objects}" if objects else None,
        )  # fmt: skip

    def _debug_flags(self) -> tuple[str, ...]:
        # On the command line too: even a cache that hashes only the command line then keeps the objects apart.
        # With an object cache the template adds its launcher, whose path depends on the root.
        none = () if self.request.object_cache else NO_LAUNCHER
        return (f"-DCMAKE_CUDA_FLAGS={FLAG[self.request.debug]}", *none)

    def _cmake_flags(self) -> tuple[str, ...]:
        architectures = ";".join(f"{arch.replace('.', '')}-real" for arch in self.arch)
        return (f"-DCMAKE_CUDA_ARCHITECTURES={architectures}", *self._debug_flags())

    def _vllm_environment(self, fetched: tuple[str, ...]) -> tuple[Variable, ...]:
        args = (*self._debug_flags(), *fetched, *self.spec.build.cmake_args)
        split = next((a for a in args if " " in a), None)
        if split is not None:
            raise BadInput(
                f"the CMake argument {split!r} has a blank in it",
                cause="vLLM's setup.py splits CMAKE_ARGS at blanks",
                next_step="use --target, which passes arguments as they are, or set the variable in `environment`",
            )
        values = {
            "CMAKE_ARGS": " ".join(args),
            "CMAKE_BUILD_TYPE": "RelWithDebInfo",
            "VLLM_TARGET_DEVICE": "cuda",
            "VLLM_VERSION_OVERRIDE": self._version(),
            "VERBOSE": "1",
        }
        # What the profile says about one of these holds, in its own environment.
        return tuple(Variable(name=n, value=v) for n, v in values.items() if n not in self.spec.environment)

    def _version(self) -> str:
        """Return the version that the build gets: without a repository, vLLM could not derive one."""
        match self.source:
            case Sdist(version=version):
                return version
            case GitRef() | LocalTree():
                return self.source.version or "0.0.0+debug"
            case Bundled():
                return "0.0.0+debug"

    def _leave_out_other_projects(self) -> str:
        """Return the sed script that disables the external projects that the target does not need."""
        needed = self.vllm.targets.get(self.request.target or "") if self.vllm else None
        others = f"/external_projects\\/{needed}\\.cmake/!" if needed else ""
        return others + r"s|^( *)(include\(cmake/external_projects/)|\1# \2|"

    def _dependency_variables(self) -> tuple[Variable, ...]:
        known = self.vllm.dependencies if self.vllm else {}
        return tuple(Variable(name=known[d.name], value=f"deps/{d.name}", kind="path") for d in self.request.deps)

    def _network_environment(self) -> tuple[Variable, ...]:
        pip, indexes = self.request.site.pip, self.spec.packages.indexes
        values = {
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_INDEX_URL": pip.index_url or "",
            "PIP_EXTRA_INDEX_URL": " ".join((*indexes, *pip.extra_index_urls)),
            "PIP_TRUSTED_HOST": " ".join(pip.trusted_hosts),
        }
        given = [Variable(name=name, value=value) for name, value in values.items() if value]
        if self.request.site.ca_bundle is not None:
            readers = ("PIP_CERT", "SSL_CERT_FILE", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE")
            given += [Variable(name=name, value=CA_BUNDLE, kind="path") for name in readers]
        return tuple(given)

    def _secrets(self) -> tuple[SecretUse, ...]:
        uses = []
        for secret in self.request.secrets:
            match secret.id:
                case "netrc":  # where pip and git look
                    uses.append(SecretUse(id="netrc", target="/root/.netrc", variable="NETRC"))
                case "pip.conf":
                    uses.append(SecretUse(id="pip.conf", target="/run/secrets/pip.conf", variable="PIP_CONFIG_FILE"))
                case other:
                    uses.append(SecretUse(id=other, target=f"/run/secrets/{other}"))
        return tuple(uses)


def _edit(old: str, new: str) -> str:
    """Return the sed script that replaces a requirement at the beginning of its line."""
    literal = re.sub(r"([][.*\\])", r"\\\1", old)
    return f"s/^{literal}/{new}/"


def _mirror_lines(mirror: str, base: Base) -> tuple[str, ...]:
    """Return apt's lines for a mirror: a release with its updates, and on Ubuntu its security fixes."""
    if base.distribution == "debian":  # whose security fixes are in another archive than the release
        return tuple(f"deb {mirror} {suite} main" for suite in (base.suite, f"{base.suite}-updates"))
    suites = (base.suite, f"{base.suite}-updates", f"{base.suite}-security")
    return tuple(f"deb {mirror} {suite} main universe" for suite in suites)
