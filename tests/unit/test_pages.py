"""What pages name exists: command lines, schemas, environment variables."""

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from vdbg_env.cli import group

ROOT = Path(__file__).parents[2]
OF_A_LINE_PACK = ("keys/", "application/vnd.")  # its own folder, its media type
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "skills").rglob("*.md"))]
# A command line in a block of code or in a span, also behind a pipe, in $(...) or after `git bisect run`.
TYPED = re.compile(r"(?:^ {4,}(?:[^\n|]*\| )?|^\$ |`|\$\(|\brun )(vdbg-env (?!\.\.\.)[a-z-][^`\n]*)", re.MULTILINE)


def typed() -> Iterator[tuple[Path, str]]:
    """Yield the command lines of all pages, without what explains them after two blanks."""
    for page in PAGES:
        text = page.read_text().replace(" \\\n", " ")
        for found in TYPED.finditer(text):
            yield page, re.split(r"  +|\)\"| && | \|\| | [|>] |\s#\s", found[1])[0].rstrip(")")


def parse(words: list[str]) -> None:
    """Parse a command line as click does, but for values: files that a page names are not here."""
    command: click.Command = group
    context = click.Context(group, info_name="vdbg-env", **group.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, command = words[0], command.get_command(context, words[0]) or pytest.fail(f"no command {words[0]}")
        words, context = words[1:], click.Context(command, info_name=name, parent=context)
    values, _, order = command.make_parser(context).parse_args(words)
    for option in order:
        value = values.get(option.name or "")
        if isinstance(option.type, click.Choice) and isinstance(value, str):
            assert value in option.type.choices, f"{option.name}={value}"


def test_every_command_line_of_a_page_can_be_typed() -> None:
    wrong, seen = [], 0
    for page, line in typed():
        seen += 1
        try:
            parse(shlex.split(line.replace("...", ""))[1:])
        except (click.UsageError, ValueError, AssertionError, pytest.fail.Exception) as error:
            wrong.append(f"{page.relative_to(ROOT)}: {line}: {error}")
    assert seen > 100
    assert not wrong, "\n".join(wrong)


def test_every_schema_is_published_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "schemas.md").read_text()
    assert {path.name for path in (ROOT / "docs" / "schemas").iterdir()} == set(re.findall(r"/([\w.-]+\.json)\)", page))


def test_every_variable_of_ours_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    read = [*(ROOT / "builder").rglob("*.py"), *(ROOT / "templates").rglob("*.sh"), *(ROOT / "runbooks").rglob("*.py")]
    internal = {"VDBG_ARCH_LIST", "VDBG_NONE", "VDBG_ROOT", "VDBG_ENV", "VDBG_BUILD_NETWORK"}
    named = {name for path in read for name in re.findall(r"\bVDBG_[A-Z_]*[A-Z]\b", path.read_text())} - internal
    guard = group.get_command(click.Context(group), "guard")
    assert guard
    named |= {
        f"VDBG_GUARD_{o.name}".upper()
        for o in guard.params
        if isinstance(o, click.Option) and o.name and o.name not in {"help", "help_all"}
    }
    assert named == set(re.findall(r"`(VDBG_[A-Z_]+)`", page))


def test_every_file_that_a_page_for_maintainers_names_is_there() -> None:
    """A path counts from the root, from builder/ or from one of its packages, and may leave out `.py`."""
    bases = [ROOT, ROOT / "builder", *(path for path in (ROOT / "builder").iterdir() if path.is_dir())]
    gone, seen = [], 0
    for page in [ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "internals").rglob("*.md")]:
        for name in re.findall(r"`([a-z][\w.*-]*(?:/[\w.*{},-]+)+)/?`", page.read_text()):
            if re.search(r"[A-Z]{3}", name) or name.startswith(OF_A_LINE_PACK):
                continue
            before, _, rest = name.partition("{")
            middle, _, after = rest.partition("}")
            for path in [f"{before}{one}{after}" for one in middle.split(",")]:
                seen += 1
                if not any(True for base in bases for end in ("", ".py") for _ in base.glob(path + end)):
                    gone.append(f"{page.relative_to(ROOT)}: {path}")
    assert seen > 50
    assert not gone


def test_every_place_that_a_page_names_is_one() -> None:
    named = {name for page in PAGES for name in re.findall(r"`[^`\n]*--on (\w+)", page.read_text())}
    assert named - {"k8s"} <= {"local", "docker", "slurm"}, "k8s is gone, as the pages say"


def test_the_pages_are_short_enough_to_be_read() -> None:
    docs = ROOT / "docs"
    pages = [*docs.glob("*.md"), *(docs / "guides").rglob("*.md"), *(docs / "internals").rglob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= 16_000


@pytest.mark.parametrize(("address", "name"), [("https://git.example.org/gpu/vdbg", "gpu/vdbg"), ("", None)])
def test_the_site_links_to_the_repository_that_the_package_names(
    monkeypatch: pytest.MonkeyPatch, address: str, name: str | None
) -> None:
    monkeypatch.setattr("vdbg_env.REPOSITORY", address)
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    monkeypatch.setattr("sys.path", [*sys.path])
    config = hooks["on_config"](SimpleNamespace(repo_url=None, repo_name=None))
    assert (config.repo_url, config.repo_name) == (address or None, name)


OBJECTS = ["Sentinel.UNSET", "&lt;function &lt;lambda&gt; at 0x7f7d13fb9300&gt;"]


@pytest.mark.parametrize("default", [*OBJECTS, "()"])
def test_the_page_of_commands_has_no_default_where_none_can_be_typed(default: str) -> None:
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/commands.md"))
    row = "<tr>\n<td>help</td>\n<td>{}</td>\n</tr>"
    made = hooks["on_page_content"](row.format(f"<code>{default}</code>") + row.format("<code>8001</code>"), page=page)
    assert made == row.format("") + row.format("<code>8001</code>")


@pytest.mark.parametrize("shown", OBJECTS)
def test_no_page_of_the_site_shows_an_object_of_python(tmp_path: Path, shown: str) -> None:
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    (tmp_path / "reference").mkdir()
    page = tmp_path / "reference" / "index.html"
    page.write_text("<code>&lt;id&gt; at 0x40</code>")
    hooks["on_post_build"](SimpleNamespace(site_dir=tmp_path))
    page.write_text(f"<td><code>{shown}</code></td>")
    with pytest.raises(SystemExit, match=re.escape(shown)):
        hooks["on_post_build"](SimpleNamespace(site_dir=tmp_path))


def test_the_commands_as_the_site_shows_them_are_all_and_have_no_object_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    pytest.importorskip("mkdocs_click", reason="no mkdocs here: pip install -e '.[docs]'")
    markdown = pytest.importorskip("markdown")  # comes with mkdocs
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    html = markdown.markdown(text, extensions=["attr_list", "mkdocs-click", "tables", "toc", "fenced_code"])
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/commands.md"))
    made = hooks["on_page_content"](html, page=page)
    assert not re.search(r"Sentinel| at 0x[0-9a-f]{8}&|<td>None</td>", made)
    for name in ("lines build", "lines pull", "lines push", "guard"):
        assert re.search(rf"<h\d[^>]*>[^<]*\b{name}<", made), "a command of a plug-in is a command too"
    example = r"<pre><code[^>]*>vdbg-env guard -- vllm serve MODEL\nvdbg-env guard --exit-status-on-crash 70"
    assert re.search(example, made), "each example has a line of its own"
