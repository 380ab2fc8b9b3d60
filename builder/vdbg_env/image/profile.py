"""What a build is asked for: the profile in images/*.yaml, its source, and the request that the flags make.

The profile's JSON Schema is published next to the profiles.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from vdbg_env.common import yaml_source
from vdbg_env.common.console import nearest, one_line
from vdbg_env.common.errors import BadInput
from vdbg_env.common.yaml_source import BadDocument, YamlSource
from vdbg_env.image.context import FileBytes

# The source of a build: a source distribution, a git reference, a local tree or the bundled project.


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """The source distribution of one release on a package index."""

    project: str
    version: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class GitRef:
    """A branch, tag or commit of a repository reached over https or ssh."""

    url: str
    ref: str

    @property
    def version(self) -> str | None:
        """Return the release that the reference names, as in v0.33.0; None for a branch or commit."""
        found = _TAG.fullmatch(self.ref)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"git+{self.url}@{self.ref}"


@dataclass(frozen=True, kw_only=True)
class LocalTree:
    """A checkout on this machine; `revision` is its commit and `version` follows from its last tag, if git knows."""

    path: str
    revision: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A project that ships with vdbg-env, in a folder of that name next to the profiles."""

    name: str

    def __str__(self) -> str:
        return f"bundled:{self.name}"


Source = Sdist | GitRef | LocalTree | Bundled


def release_of(source: Source) -> str | None:
    """Return the release of a source, without what follows its last tag; None where it is not known."""
    match source:
        case Sdist(version=version):
            return version
        case GitRef() | LocalTree():
            return source.version.partition("+")[0] if source.version else None
        case Bundled():
            return None


GRAMMAR = "PROJECT==VERSION, git+https://HOST/REPOSITORY@REF, a folder (./x, /x, ~/x) or bundled:NAME"
_SDIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_GIT = re.compile(r"git\+((?:https|ssh)://[^\s@]+(?:@[^\s@/]+/[^\s@]+)?)@([A-Za-z0-9_][\w./+-]*)")
_TAG = re.compile(r"(?:refs/tags/)?v?([0-9]+(?:\.[0-9]+)+(?:(?:rc|a|b|\.post)[0-9]+)?)")
_HASH = re.compile(r"#sha(?:256|384|512)=[0-9a-f]+\Z")  # by which pip knows a file to be the one that is meant
_BUNDLED = re.compile(r"bundled:([a-z0-9][a-z0-9-]*)")


def parse_source(text: str) -> Source:
    """Read a source as written in `--source` or a profile's `source:`; raises BadInput for any other form."""
    one_line(text, "the source")
    if found := _SDIST.fullmatch(text):
        return Sdist(project=found[1], version=found[2])
    if found := _BUNDLED.fullmatch(text):
        return Bundled(name=found[1])
    if text.startswith("git+"):
        return _git(text)
    if text.startswith(("./", "../", "/", "~/")) or text in {".", "..", "~"}:
        return LocalTree(path=text)
    raise BadInput(
        f"the source {text!r} follows no known spelling",
        cause="a folder without ./ before it, or a version with one = sign",
        next_step=f"write {GRAMMAR}",
    )


def refuse_credentials(url: str, what: str) -> None:
    """Raise BadInput for an address that carries a password or token, which an image and its history would keep."""
    url = _HASH.sub("", url)
    address = re.split(r"[?#]", url, maxsplit=1)[0]
    user, at, host = address.partition("://")[2].partition("/")[0].rpartition("@")
    # A password with a slash in it ends what is before the path, where it looks like a port.
    port = "" if at else host.rpartition("]")[2].partition(":")[2]
    hidden = address != url or ":" in user or bool(port and not port.isdecimal())
    if hidden or (at and not address.startswith(("ssh:", "git+ssh:"))):
        name = host.removesuffix(f":{port}") if port else host
        raise BadInput(
            f"{what} at {name} carries a user name, password or token in its address",
            cause="it would be in the image's history for everyone to read",
            next_step="remove it and pass a .netrc with --secret netrc=FILE, or an ssh key by ssh-agent",
        )


def _git(text: str) -> GitRef:
    refuse_credentials(text, "the git source")
    found = _GIT.fullmatch(text)
    if not found:
        raise BadInput(
            f"the source {text!r} is not git+https://HOST/REPOSITORY@REF",
            cause="the @REF is missing; a branch may be another tomorrow",
            next_step="name a tag or a commit after the @",
        )
    return GitRef(url=found[1], ref=found[2])


SCHEMA = "vdbg-env/image/v1"
SCHEMA_FILE = "image-v1.schema.json"


def _printable(value: object) -> object:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("this value contains a control character (a line break, a tab)")
    return value


def _version(value: object) -> object:
    if isinstance(value, float):
        raise ValueError(f'write the version in quotes, "{value}": as a number it loses its last zero')
    return value


@dataclass(frozen=True)
class Form:
    """The form of a text: a pattern for the published schema, and its description for error messages."""

    pattern: str
    says: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def _checked(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise ValueError(f"{value!r} is not {self.says}")
        return value


@dataclass(frozen=True)
class _OneOrMore:
    """Takes a single value for a list of one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}

    def _listed(self, value: object) -> object:
        return value if isinstance(value, list | tuple) else (value,)


Text = Annotated[str, BeforeValidator(_printable)]
Name = Annotated[str, Form(r"[a-z0-9][a-z0-9.-]{0,62}", "a name of small letters, digits, '.' and '-'")]
Version = Annotated[str, BeforeValidator(_version), Form(r"[0-9]+(\.[0-9]+){0,3}", "a version, as in 13.0")]
Arch = Annotated[str, BeforeValidator(_version), Form(r"[0-9]{1,2}\.[0-9][af]?", "a compute capability, as in 9.0")]
Digest = Annotated[str, Form(r"sha256:[0-9a-f]{64}", "a digest: sha256: and 64 hexadecimal digits")]
VariableName = Annotated[str, Form(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
Subfolder = Annotated[
    str, Form(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*", "a folder below the source, as in cpp")
]
AptPackage = Annotated[
    str, Form(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+~:-]+)?", "an apt package, as in gdb or gdb=13.1-3")
]
Requirement = Annotated[
    str, BeforeValidator(_printable), Form(r"[A-Za-z0-9][^;@]*", "a requirement, as in torch==2.14.0 (no ; and no @)")
]


class Part(BaseModel):
    """Base of all parts of a profile: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(Part):
    """The image that the build starts from, and its properties."""

    image: Text = Field(description="image reference; --base names another")
    digest: Digest | None = Field(default=None, description="pins the image whatever its tag says later")
    distribution: Literal["debian", "ubuntu"] = "debian"
    suite: Name = Field(description="the distribution's release by its apt name, as in trixie or noble")
    gcc: Version | None = Field(default=None, description="version of the compiler in its packages")
    python: Version | None = Field(default=None, description="version of the Python in its packages")
    path: Text = Field(default="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", description="its PATH")


class Toolchain(Part):
    """The CUDA toolkit: `base` if it is in the base image, `wheels` if it is installed from the package index."""

    cuda: Version
    provided_by: Literal["base", "wheels"]
    home: Text = Field(default="/usr/local/cuda", description="its folder in the base image")
    wheels: tuple[Requirement, ...] = ()


class Packages(Part):
    """What is installed in addition to the toolchain."""

    apt: tuple[AptPackage, ...] = ()
    build: tuple[Requirement, ...] = Field(default=(), description="Python packages the build needs")
    tools: tuple[Requirement, ...] = Field(default=(), description="Python packages for debugging")
    indexes: tuple[Text, ...] = Field(default=(), description="package indexes in addition to the usual one")
    needs: tuple[Text, ...] = Field(default=(), description="programs a bare machine must have in place of `apt`")


class Build(Part):
    """How the source is compiled."""

    system: Literal["vllm", "cmake"]
    arch: Annotated[tuple[Arch, ...], _OneOrMore()] = Field(
        min_length=1, description="compute capabilities to build for without --arch and without a GPU; one, or a list"
    )
    subdirectory: Subfolder | None = Field(
        default=None, description="the folder of the source that has CMakeLists.txt, if it is not the first (cmake)"
    )
    cmake_args: tuple[Text, ...] = Field(default=(), description="given last, so they override ours")
    prepare: tuple[tuple[Text, ...], ...] = Field(
        default=(), description="commands run in the source folder before the build, each a list of words"
    )
    memory_per_job_gib: float = Field(default=5.0, gt=0, description="memory for one compiler process")
    artifacts: tuple[Text, ...] = Field(
        default=("out",), description="folders below the root in which every cubin must carry line info"
    )


class Tool(Part):
    """A debug tool that must exist, start, and print the expected text."""

    name: Name
    argv: tuple[Text, ...] = Field(min_length=1)
    expect: Text = Field(default="", description="text that its output must contain, such as its version")


class ImageSpec(Part):
    """One build profile."""

    schema_: Literal["vdbg-env/image/v1"] = Field(alias="schema")
    name: Name
    summary: Text
    extends: Name | None = Field(default=None, description="a profile whose values apply where this one has none")
    base: Base
    toolchain: Toolchain
    packages: Packages = Packages()
    source: Text = Field(description="PROJECT==VERSION, git+https://...@REF, a folder, or bundled:NAME")
    build: Build
    environment: dict[VariableName, Text | None] = Field(
        default={}, description="set in the image; null removes a variable that we set"
    )
    tools: tuple[Tool, ...] = ()

    @property
    def parsed_source(self) -> Source:
        """Return the source as a value."""
        return parse_source(self.source)


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """A profile as found: its file as shown to the user, its text, and whether it ships with the program."""

    file: str
    text: bytes
    shipped: bool = False

    @cached_property
    def source(self) -> YamlSource:
        """Return the file's document, parsed once; raises BadDocument when it is not a mapping."""
        source = yaml_source.read(self.text, self.file)
        if not isinstance(source.value, dict):
            raise BadDocument((source.complaint((), "a profile is a mapping of keys to values"),))
        return source


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile file, which need not repeat the profile that it extends."""
    schema = ImageSpec.model_json_schema(by_alias=True)
    schema["required"] = ["schema", "name"]
    for name, part in schema["$defs"].items():
        if name != Tool.__name__:  # an entry of a list, and lists are replaced whole
            part.pop("required", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_FILE, **schema}


def read_spec(profile: ProfileFile, known: Mapping[str, ProfileFile]) -> ImageSpec:
    """Check one profile, with what it extends taken from `known`.

    Raises BadDocument with every complaint at its line and column.
    """
    source = _resolve(profile, known, ())
    spec = yaml_source.validate(ImageSpec, source)
    try:
        _ = spec.parsed_source
    except BadInput as error:
        raise BadDocument((source.complaint(("source",), error.what),), next_step=error.next_step) from None
    return spec


def _resolve(profile: ProfileFile, known: Mapping[str, ProfileFile], trail: tuple[str, ...]) -> YamlSource:
    """Merge a profile into the one it extends: mappings key by key, everything else is replaced."""
    source = profile.source
    assert isinstance(source.value, dict)
    name, parent_name = str(source.value.get("name")), source.value.get("extends")
    if not isinstance(parent_name, str):
        return source
    if parent_name in {*trail, name}:
        circle = " -> ".join((*trail, name, parent_name))
        raise BadDocument((source.complaint(("extends",), f"profiles extend each other in a circle: {circle}"),))
    if parent_name not in known:
        what, suggestion = f"no profile is called {parent_name!r}", nearest(parent_name, known)
        raise BadDocument((source.complaint(("extends",), what, suggestion=suggestion),))
    parent = _resolve(known[parent_name], known, (*trail, name)).value
    assert isinstance(parent, dict)
    inherited = {key: value for key, value in parent.items() if key != "extends"}
    return replace(source, value=_merge(inherited, source.value))


def _merge(under: yaml_source.Value, over: yaml_source.Value) -> yaml_source.Value:
    if isinstance(under, dict) and isinstance(over, dict):
        return {
            **under,
            **{key: _merge(under.get(key), value) if key in under else value for key, value in over.items()},
        }
    return over


# Names of container images, by the grammar of the distribution project's reference package.


_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_NAME = rf"(?P<name>(?:{_HOST}/)?{_PATH}(?:/{_PATH})*)"
_TAG_OF_IMAGE = r"(?::(?P<tag>\w[\w.-]{0,127}))?"
_DIGEST = r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
_REFERENCE = re.compile(_NAME + _TAG_OF_IMAGE + _DIGEST, re.ASCII)
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image by name, tag and digest, the last two where given."""

    name: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return self.name_and_tag + (f"@{self.digest}" if self.digest else "")

    @property
    def name_and_tag(self) -> str:
        """The reference without its digest."""
        return self.name + (f":{self.tag}" if self.tag else "")


def parse_reference(text: str, what: str) -> Reference:
    """Read an image reference, or the id of a local image; `what` names its place in messages.

    Raises BadInput with what the grammar does not allow.
    """
    one_line(text, what)
    if _IMAGE_ID.fullmatch(text):
        return Reference(name=text)
    found = _REFERENCE.fullmatch(text)
    if found is None or len(found["name"]) > 255:
        raise BadInput(
            f"{what}: {text!r} is not the name of an image",
            cause=_cause(text),
            next_step="write it as [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]",
        )
    return Reference(name=found["name"], tag=found["tag"], digest=found["digest"])


def _cause(text: str) -> str | None:
    if "://" in text:
        return "an image has no https:// before its name"
    if text != text.lower():
        return "the name of an image has no capital letters"
    if "@" in text:
        return "a digest is sha256: and 64 hexadecimal digits"
    return None


# A requested build: the flags as one value, with the settings of the site and of the builder.


DebugInfo = Literal["lineinfo", "device-debug"]
Network = Literal["default", "host", "none"]
Platform = Literal["linux/amd64", "linux/arm64"]
Dialect = Literal["classic", "buildkit"]
"""Which Dockerfile instructions the builder takes.

`classic`: those of every builder; the default, since a rendered folder must build anywhere. `buildkit`: also
`RUN --mount` of types cache, bind and secret, which the BuildKit inside every Docker Engine since 18.09 takes. Neither
uses heredocs or `COPY --link`, which fail on older BuildKit, nor `# syntax=` lines, which pull an image from a registry
that an air-gapped cluster cannot reach.
"""


@dataclass(frozen=True, kw_only=True)
class DependencyTree:
    """A local folder used instead of a dependency that the build would fetch; `path` is on this machine."""

    name: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A file of this machine that build steps may read and no layer may contain; `id` names it in the Dockerfile."""

    id: str
    path: str


@dataclass(frozen=True, kw_only=True)
class PipIndex:
    """Where pip looks; addresses only, credentials are passed as a Secret."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Site:
    """The settings of this site: its certificate authority, proxies, package index and apt mirror."""

    ca_bundle: bytes | None = None
    keep_ca: bool = False
    proxies: Mapping[str, str] = field(default_factory=dict)
    pip: PipIndex = field(default_factory=PipIndex)
    apt_mirror: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostGpu:
    """This machine's GPU: the version of its driver, and its compute capability ("9.0")."""

    driver: str
    arch: str


@dataclass(frozen=True, kw_only=True)
class OwnPackage:
    """This program, for an image that contains it: its wheel, a file of the build context, and what that requires."""

    wheel: FileBytes
    requirements: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One requested build; None and empty mean what the profile says.

    `arch` are compute capabilities ("9.0"), `jobs` the number of compiler processes, `base` an image reference that
    may end in a digest. With `offline_compile` the steps that compile run without network, after the others have
    fetched what they need (see `BuildPlan.split_before_compile`). `object_cache` is the name under which the builder
    keeps compiled objects between builds. With `guard` the image contains that package, and its entry point guards the
    command. `notes` name the origin of values.
    """

    profile: str
    debug: DebugInfo = "lineinfo"
    source: Source | None = None
    arch: tuple[str, ...] = ()
    target: str | None = None
    deps: tuple[DependencyTree, ...] = ()
    base: str | None = None
    platform: Platform | None = None
    jobs: int | None = None
    network: Network = "default"
    offline_compile: bool = False
    object_cache: str | None = None
    guard: OwnPackage | None = None
    site: Site = field(default_factory=Site)
    secrets: tuple[Secret, ...] = ()
    dialect: Dialect = "classic"
    notes: tuple[str, ...] = ()


# Write a new profile for people to edit: a short one that extends another, or a copy with its comments.


_SHORT = """\
# yaml-language-server: $schema={schema_file}
# What is not written here is as in {parent}: vdbg-env images show {parent}
schema: {schema}
name: {name}
summary: {parent}, as our cluster builds it
extends: {parent}
# base:
#   image: registry.example.org/ml/cuda-devel
#   digest: sha256:...
build:
  arch: "9.0"  # or a list, as in ["9.0", "10.0"]
# environment:
#   NAME: value  # null removes a variable that {parent} sets
"""


def extending_profile(name: str, parent: str, schema_file: str) -> str:
    """Return a profile that extends another one, with hints in comments."""
    return _SHORT.format(name=_checked(name), parent=parent, schema=SCHEMA, schema_file=schema_file)


def copied_profile(name: str, original: ProfileFile, schema_file: str) -> str:
    """Return a copy of a profile under another name, with all of its comments."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    _ = original.source  # refuses what only a lenient reader would accept
    document = yaml.load(original.text)
    document["name"] = _checked(name)
    out = io.StringIO()
    yaml.dump(document, out)
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("# yaml-language-server:")]
    return "\n".join([f"# yaml-language-server: $schema={schema_file}", *lines, ""])


def _checked(name: str) -> str:

    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,62}", name):
        raise BadInput(f"{name!r} is not a name of small letters, digits, '.' and '-'", next_step="choose another name")
    return name
