"""From a profile and a request to a plan, pure: the steps of a build, one function each, and their order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vdbg_env.common.console import nearest, one_line
from vdbg_env.common.errors import BadInput, VdbgError
from vdbg_env.image.context import ROOT, ContextItem, FileBytes, TreeOnDisk
from vdbg_env.image.knowledge import Combination, ImageLibrary, VllmRow, require_compatible
from vdbg_env.image.plan import (
    FLAG,
    NO_LAUNCHER,
    UNSET_FOR_COMPILE,
    BuildArg,
    BuildPlan,
    CommandStep,
    CopyStep,
    SecretUse,
    Step,
    Variable,
    image_environment,
    overridden,
)
from vdbg_env.image.profile import (
    Base,
    BuildRequest,
    Bundled,
    GitRef,
    HostGpu,
    ImageSpec,
    LocalTree,
    Sdist,
    Source,
    parse_reference,
    refuse_credentials,
    release_of,
)

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
        return self._fetching(
            "python", "Python packages the build needs", "python", requirements=self.requirements,
            wheels=self.spec.toolchain.provided_by == "wheels",
        )  # fmt: skip

    def tools(self) -> CommandStep:
        """Install the Python packages for debugging."""
        return self._fetching("tools", "Debug tools", "python", requirements=self.spec.packages.tools, wheels=False)

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
        # Without a row, torch's requirements decide: the NCCL of another release may not fit.
        own = self.vllm is not None and self.vllm.version == release_of(self.source)
        nccl = (f"nvidia-nccl-cu{major}=={image.nccl}",) if image.nccl and own else ()
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
        subfolder = self.spec.build.subdirectory
        cwd = f"src/{subfolder}" if subfolder and self.spec.build.system == "cmake" else "src"
        return CommandStep(
            id="compile", title=title, commands=commands, cwd=cwd, env=env, phase="compile", network=fetches,
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
                name = self.source.ref if isinstance(self.source, GitRef) else self.source.path.rpartition("/")[2]
                return self.source.version or f"0.0.0+{_local_version(name)}"
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


# Turn a profile and a request into a plan; pure: the same two give the same plan.


# Objects of an earlier build, which ninja would take for fresh, and large files that no compiler reads.
NOT_SOURCE = (
    ".git", ".deps", ".venv", "__pycache__", "/build", "cmake-build-*", "/dist", "*.egg-info", "*.o", "*.so", "*.whl"
)  # fmt: skip
NOT_DEPENDENCY = (".git", "__pycache__", "*.o", "*.so")


def _local_version(name: str) -> str:
    """Return a branch, tag or folder as the local part of a version: letters, digits and dots, as PEP 440 has it."""
    return re.sub(r"[^a-z0-9]+", ".", name.lower()).strip(".")[:40].strip(".") or "debug"


def _in_full(source: Source, library: ImageLibrary) -> Source:
    """Return a source with its release spelled as the tables do: 0.33 is 0.33.0."""
    if not isinstance(source, Sdist) or source.project != "vllm":
        return source
    version = source.version
    spelled = (f"{version}{zeros}" for zeros in ("", ".0", ".0.0"))
    return replace(source, version=next((full for full in spelled if full in library.knowledge.vllm), version))


GUARD = (f"{ROOT}/vdbg-env", "guard", "--")
"""What the entry point puts before the command; see templates/entrypoint.sh."""


def plan(spec: ImageSpec, request: BuildRequest, library: ImageLibrary, *, gpu: HostGpu | None = None) -> BuildPlan:
    """Decide everything about one build; `gpu` is that of this machine.

    The image is taken to run on this machine unless the request names an architecture or a platform: then neither the
    architecture nor the driver of `gpu` decides anything.

    Raises BadInput for a request that cannot be met, before anything is built.
    """
    check(request)
    if request.arch or request.platform is not None:
        gpu = None
    source = _in_full(request.source or spec.parsed_source, library)
    _check_addresses(spec, request, source)
    arch, why_arch = _architectures(spec, request, gpu)
    vllm = _vllm_row(spec, source, library)
    requirements = _requirements(spec, source, vllm)
    warnings = require_compatible(_combination(spec, request, source, arch, requirements, gpu), library.knowledge)
    _check_names(spec, request, vllm)
    blocks = Blocks(
        spec=spec, request=request, source=source, arch=arch, requirements=requirements, vllm=vllm,
        templates=ShellTemplates(library.step_templates),
    )  # fmt: skip
    return BuildPlan(
        profile=spec.name,
        base=_base(spec, request),
        base_path=spec.base.path,
        platform=request.platform,
        network=request.network,
        args=_build_args(spec, request),
        env=image_environment(spec, request, arch),
        labels=_labels(spec, request, source, arch),
        steps=_steps(blocks),
        artifacts=_artifacts(spec, request),
        entrypoint=(f"{ROOT}/entrypoint.sh", *(GUARD if request.guard else ())),
        command=("bash",),
        arch=arch,
        memory_per_job_gib=spec.build.memory_per_job_gib,
        context=_context(spec.build.system, request, source, library),
        notes=(*why_arch, *_other_stack(spec, request, vllm)),
        warnings=(*_debug_warnings(request), *overridden(spec), *_other_torch(spec, vllm), *warnings),
    )


def _no_architecture(text: str) -> BadInput:
    plain, _, suffix = text.partition("+")
    if suffix.upper() == "PTX":
        cause = "PTX is compiled by the driver at the start, and no proof here covers what it makes of it"
        return BadInput(f"{text!r}: no PTX is put into a debug image", cause=cause, next_step=f"--arch {plain}")
    near = f"{text[:-1]}.{text[-1]}" if text.isdigit() and len(text) > 1 else "9.0"
    return BadInput(f"{text!r} is not an architecture", cause="H100 is 9.0, B200 is 10.0", next_step=f"--arch {near}")


def check(request: BuildRequest) -> None:
    """Refuse what no plan may contain: wrong architectures, and names that mean something to a Dockerfile."""
    for arch in request.arch:
        if not re.fullmatch(r"[0-9]{1,2}\.[0-9][af]?", arch):
            raise _no_architecture(arch)
    for word, names in (("--dep", [d.name for d in request.deps]), ("--secret", [s.id for s in request.secrets])):
        for name in names:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name):
                raise BadInput(f"{word}: {name!r} is not a name of small letters, digits, '.', '_' and '-'")
        if len(set(names)) < len(names):
            raise BadInput(f"{word}: a name is given twice", next_step=f"give each name one {word}")
    if request.object_cache is not None and not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", request.object_cache):
        raise BadInput(
            f"--object-cache {request.object_cache!r} is not a name of small letters, digits, '.', '_' and '-'",
            cause="the builder keeps the cache; it is not a folder",
            next_step="--object-cache vllm",
        )
    if request.target is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", request.target):
        raise BadInput(f"--target {request.target!r} is not the name of a build target")


def _check_addresses(spec: ImageSpec, request: BuildRequest, source: Source) -> None:
    pip = request.site.pip
    for what, url in [
        ("the package index", pip.index_url),
        *(("the package index", extra) for extra in (*pip.extra_index_urls, *spec.packages.indexes)),
        ("the apt mirror", request.site.apt_mirror),
    ]:
        if url is not None:
            _check_address(url, what)
    if isinstance(source, GitRef):
        refuse_credentials(source.url, "the git source")
    texts = [
        *(v for v in spec.environment.values() if v), *spec.build.cmake_args, *chain(*spec.build.prepare),
        *spec.toolchain.wheels, *spec.packages.build, *spec.packages.tools, *chain(*(t.argv for t in spec.tools)),
    ]  # fmt: skip
    for text in texts:
        for url in re.findall(r"[a-z+]+://[^\s'\"]+", text):
            refuse_credentials(url, "an address in the profile")


def _check_address(url: str, what: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or any(c.isspace() or not c.isprintable() for c in url)
    ):
        raise BadInput(f"{what} {url!r} is not an address", next_step="write it as https://HOST/PATH")
    refuse_credentials(url, f"the address of {what}")


def _steps(blocks: Blocks) -> tuple[Step, ...]:
    """Return the steps, those first that change least: each one that changes repeats all that follow it."""
    tools = (blocks.tools(), *blocks.guard_requirements())
    offline = blocks.request.offline_compile
    return (
        *((SITE,) if blocks.request.site.ca_bundle is not None else ()),
        blocks.packages(),
        blocks.toolchain(),
        blocks.python(),
        *(tools if offline else ()),
        *blocks.fetch_source(),
        *blocks.source_requirements(),
        *blocks.object_cache(),
        *blocks.dependencies(),
        *blocks.copy_source(),
        *blocks.prepare(),
        *blocks.externals(),
        blocks.compile(),
        *(() if offline else tools),
        blocks.check(),
        *blocks.guard(),
        ENTRYPOINT,
    )


def _vllm_row(spec: ImageSpec, source: Source, library: ImageLibrary) -> VllmRow | None:
    if spec.build.system != "vllm":
        return None
    return library.knowledge.vllm_row(release_of(source) or "")


def _requirements(spec: ImageSpec, source: Source, vllm: VllmRow | None) -> tuple[str, ...]:
    """Return the profile's build requirements, with the torch of the requested release.

    For a release that no row describes, torch has no version here: the release's own requirements pin it.
    """
    release = release_of(source)
    if vllm is None or release is None or source == spec.parsed_source:
        return spec.packages.build
    torch = f"torch=={vllm.torch}" if vllm.version == release else "torch"
    return tuple(torch if r.startswith("torch==") else r for r in spec.packages.build)


def _combination(
    spec: ImageSpec, request: BuildRequest, source: Source, arch: tuple[str, ...], requirements: tuple[str, ...],
    gpu: HostGpu | None,
) -> Combination:  # fmt: skip
    # Another base may contain any compiler: only the profile's own base is known.
    own = request.base is None
    torch = next((r.removeprefix("torch==") for r in requirements if r.startswith("torch==")), None)
    vllm = release_of(source) if spec.build.system == "vllm" else None
    return Combination(
        cuda=spec.toolchain.cuda, arch=arch, gcc=spec.base.gcc if own else None,
        python=spec.base.python if own else None, torch=torch, vllm=vllm, driver=gpu.driver if gpu else None,
    )  # fmt: skip


def _check_names(spec: ImageSpec, request: BuildRequest, vllm: VllmRow | None) -> None:
    """Refuse targets and dependencies that the release does not have."""
    known = vllm.dependencies if vllm else {}
    for dep in request.deps:
        if dep.name not in known:
            near = nearest(dep.name, known)
            raise BadInput(
                f"--dep {dep.name}: the build has no such dependency",
                cause=f"did you mean {near!r}?" if near else f"profile {spec.name} fetches nothing by itself",
                next_step=f"known are {', '.join(known)}" if known else "leave --dep out",
            )
    if request.target and vllm and vllm.targets and request.target not in vllm.targets:
        near = nearest(request.target, vllm.targets)
        raise BadInput(
            f"--target {request.target}: vLLM {vllm.version} has no such extension",
            cause=f"did you mean {near!r}?" if near else None,
            next_step=f"known are {', '.join(vllm.targets)}",
        )


def _base(spec: ImageSpec, request: BuildRequest) -> str:
    if request.base is not None:
        return str(parse_reference(request.base, "--base"))
    reference = parse_reference(spec.base.image, f"profile {spec.name}, base.image")
    return str(replace(reference, digest=spec.base.digest) if spec.base.digest else reference)


def _build_args(spec: ImageSpec, request: BuildRequest) -> tuple[BuildArg, ...]:
    each = f"{spec.build.memory_per_job_gib:g} GiB of memory each"
    return (
        BuildArg(
            name="MAX_JOBS", default=str(request.jobs or ""), why=f"compilers at once; if empty, from cores and {each}"
        ),
        BuildArg(name="NVCC_THREADS", default="1", why="architectures at once in each compiler"),
    )


def _artifacts(spec: ImageSpec, request: BuildRequest) -> tuple[str, ...]:
    if spec.build.system == "vllm" and request.target is None:
        return (f"{PACKAGES}/vllm",)
    return spec.build.artifacts


def _labels(
    spec: ImageSpec, request: BuildRequest, source: Source, arch: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    base = parse_reference(_base(spec, request), "base")
    url, revision = _origin(source)
    labels = {
        "org.opencontainers.image.title": f"vdbg-env {spec.name}",
        "org.opencontainers.image.description": spec.summary,
        "org.opencontainers.image.source": url,
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.base.name": base.name_and_tag,
        "org.opencontainers.image.base.digest": base.digest or "",
        "dev.vdbg-env.profile": spec.name,
        "dev.vdbg-env.debug": request.debug,
        "dev.vdbg-env.arch": ";".join(arch),
        "dev.vdbg-env.cuda": spec.toolchain.cuda,
        "dev.vdbg-env.target": request.target or "",
    }
    return tuple((name, value) for name, value in labels.items() if value)


def _origin(source: Source) -> tuple[str, str]:
    match source:
        case Sdist(project=project, version=version):
            return f"pkg:pypi/{project}@{version}", version
        case GitRef(url=url, ref=ref):
            return url, ref
        case LocalTree(revision=revision):
            return "", revision or ""
        case Bundled(name=name):
            return f"bundled:{name}", ""


def _context(system: str, request: BuildRequest, source: Source, library: ImageLibrary) -> tuple[ContextItem, ...]:
    items: list[ContextItem] = [FileBytes(name="entrypoint.sh", data=library.entrypoint, mode=0o755)]
    if request.guard:
        items += [request.guard.wheel, FileBytes(name="vdbg-env", data=library.launcher, mode=0o755)]
    if request.object_cache is not None:
        items.append(FileBytes(name="object-cache.sh", data=library.object_cache, mode=0o755))
    if request.site.ca_bundle is not None:
        items.append(FileBytes(name="site/ca-bundle.crt", data=request.site.ca_bundle))
    items += [TreeOnDisk(name=f"deps/{d.name}", path=d.path, exclude=NOT_DEPENDENCY) for d in request.deps]
    match source:
        case LocalTree(path=path):
            items.append(TreeOnDisk(name="source", path=path, exclude=NOT_SOURCE))
            if system == "vllm":
                lists = ("requirements", "requirements*.txt")
                items.append(TreeOnDisk(name="requirements", path=path, exclude=NOT_SOURCE, only=lists))
        case Bundled(name=name):
            if name not in library.bundled:
                raise BadInput(f"no project is bundled by the name {name!r}", next_step="vdbg-env images list")
            items += [replace(file, name=f"source/{file.name}") for file in library.bundled[name]]
        case Sdist() | GitRef():
            pass
    return tuple(sorted(items, key=lambda item: item.name))


def _architectures(
    spec: ImageSpec, request: BuildRequest, gpu: HostGpu | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the architectures to compile for, and a note unless they were requested: each costs its own hours."""
    if request.arch:
        return request.arch, ()
    if gpu is not None:
        return (gpu.arch,), (f"built for architecture {gpu.arch}, that of this machine's GPU; --arch names another",)
    own = spec.build.arch
    return own, (f"built for architecture {', '.join(own)}, the profile's own; --arch names another",)


def _other_stack(spec: ImageSpec, request: BuildRequest, vllm: VllmRow | None) -> tuple[str, ...]:
    """Say where a whole vLLM here differs from the release's own image, since a triage would see another stack."""
    if vllm is None or vllm.image is None or request.target:
        return ()
    own, here = vllm.image, (spec.base.python if request.base is None else None, spec.toolchain.cuda)
    there = (own.python, ".".join(own.cuda.split(".")[:2]))
    if here == there or (here[0] is None and here[1] == there[1]):
        return ()
    python = f"Python {here[0]} and " if here[0] else ""
    return (
        f"vLLM {vllm.version}'s own image has Python {own.python} and CUDA {own.cuda}, this one {python}CUDA {here[1]}",
    )


def _other_torch(spec: ImageSpec, vllm: VllmRow | None) -> tuple[str, ...]:
    """Warn where the package index has the release's torch for an older CUDA only, and no other index is named."""
    if vllm is None or vllm.image is None or spec.packages.indexes:
        return ()
    own, here = (int(cuda.split(".")[0]) for cuda in (vllm.image.cuda, spec.toolchain.cuda))
    if own >= here:
        return ()
    return (
        f"vLLM {vllm.version} was released for CUDA {vllm.image.cuda}, and so was its torch {vllm.torch}: what CUDA "
        f"{spec.toolchain.cuda} compiles would load a second CUDA runtime next to torch's; take a profile with CUDA "
        f"{own}, or name an index in `packages.indexes` that has this torch for CUDA {here}",
    )


def _debug_warnings(request: BuildRequest) -> tuple[str, ...]:
    if request.debug != "device-debug":
        return ()
    return (
        "-G turns the device optimiser off: kernels run many times slower, take more registers than a launch may "
        "allow, and races and bad accesses may move or vanish. Use it when --lineinfo has not been enough",
    )
