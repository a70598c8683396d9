"""The documentation's site: pages, links, commands, and what a reader's browser loads."""

import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.main import get_command

import gateway.config
from gateway.cli.app import make_app
from gateway.cli.command_table import PROGRAMS
from gateway.config import rules
from gateway.config.sessions import read_session
from gateway.config.specs import RulesSpec, SessionSpec
from gateway.protocol.errors import ErrorKind
from gateway.yaml.readers import Record
from scripts.docs_site import rule_keys, tables
from scripts.docs_site.pages import Section, Source, read_site
from tests.support.child import REPOSITORY
from tests.support.chromium import ARGUMENTS, find_chromium

pytestmark = pytest.mark.timeout(120)

GUIDE = """\
# Guide

Read [the next part](#second-part), [its detail](#a-detail), [the other](../other.md#end), [an example](../rules/a.yaml)
and [the code](../code.py).

## First part

See [below](#second-part).

## Second part

```sh
## not a heading, [not a link](nowhere.md)
```

### A `detail`

Back to [the top](guide.md).
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in {
        "docs/guide.md": GUIDE,
        "other.md": "# Other\n\n## End\n\n[A detail](docs/guide.md#a-detail)\n",
        "rules/a.yaml": "version: 1\n",
        "code.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_long_page_is_split(repository: Path) -> None:
    """Each second-level heading is a page; links follow headings to their page, and code stays as it is."""
    split = Section("Guide", (Source("docs/guide.md", "guide", "The guide", is_split=True),))
    site = read_site(repository, [split, Section("Other", (Source("other.md", "more/other", "Other"),))])
    pages = {page.place: "\n".join(page.lines) for page in site.pages}
    assert list(pages) == ["guide/index", "guide/first-part", "guide/second-part", "more/other"]
    assert "[the next part](second-part.md#second-part), [its detail](second-part.md#a-detail)" in pages["guide/index"]
    assert "[the other](../more/other.md#end)" in pages["guide/index"]
    assert "[an example](../files/rules/a.yaml)\nand the code." in pages["guide/index"]
    assert "# Second part {#second-part}" in pages["guide/second-part"].splitlines()
    assert "## not a heading, [not a link](nowhere.md)" in pages["guide/second-part"]
    assert "## A `detail` {#a-detail}" in pages["guide/second-part"].splitlines()
    assert "[the top](index.md)" in pages["guide/second-part"]
    assert "[A detail](../guide/second-part.md#a-detail)" in pages["more/other"]
    assert site.assets == {"rules/a.yaml"}
    assert site.navigation[1] == {"Other": "more/other.md"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's folder."""
    pytest.importorskip("mkdocs", reason="needs pip install 'pointsman[docs]'")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "scripts.docs_site.build", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site(built: Path) -> None:
    """mkdocs finds no broken link or anchor, pages load nothing from elsewhere, and all commands are there."""
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 40
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link[^>]* href=\"(?:https?:)?//[^>]*stylesheet"
    )
    assert [page for page in pages if loads.search(page.read_text())] == []
    reference = (built / "reference" / "commands.html").read_text()
    assert [path for path, _ in commands() if path.replace(" ", "-") not in reference] == []
    assert (built / "search" / "search_index.json").stat().st_size > 100_000
    for page, words in {
        "rule-keys": ("engines.NAME.breaker", "unhealthy_after", "routes.session.sequences", "on_loss"),
        "metrics": ("pointsman_requests_total", "pointsman_overload_waiting"),
        "errors": ("no_healthy_endpoint", "FAILED_PRECONDITION"),
    }.items():
        text = (built / "reference" / f"{page}.html").read_text()
        assert [word for word in words if word not in text] == [], page


def test_a_reader_searches(built: Path) -> None:
    """A real Chromium finds a key of the rules by the site's search, without a request to another host."""
    playwright = pytest.importorskip("playwright.sync_api")
    if (path := find_chromium()) is None:
        pytest.skip("no Chromium here")
    handler = partial(QuietHandler, directory=str(built))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as it:
        Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        browser = it.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        page = browser.new_page()
        page.set_default_timeout(60_000)
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto(f"{home}index.html")
        page.click("input.md-search__input")
        page.keyboard.type("unhealthy_after")
        page.wait_for_selector("a.md-search-result__link[href*='reference/rule-keys.html']")
        browser.close()
        server.shutdown()
    assert [url for url in requested if not url.startswith((home, "data:", "blob:"))] == []


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


def records() -> Iterator[Record[Any]]:
    """The readers of maps in rule files."""
    for module in pkgutil.iter_modules(gateway.config.__path__, "gateway.config."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Record):
                yield value


def test_the_reference_has_the_keys_that_are_read() -> None:
    """Each map of the reference has the keys of its reader; keys have a type and a meaning, and links lead to a map."""
    sections = {section.spec: section for section in rule_keys.sections()}
    anchors = {section.anchor for section in sections.values()}
    compared = 0
    for record in records():
        if record.make in sections:
            keys = {key.name for key in sections[record.make].keys}
            assert keys - {"on_loss"} == record.fields.keys(), record.what
            compared += 1
    assert compared > 15
    assert {key.name for key in sections[RulesSpec].keys} == set(rules._SECTIONS)
    assert {key.name for key in sections[SessionSpec].keys} == read_session.fields.keys()
    for section in sections.values():
        assert [key.name for key in section.keys if not (key.kind and key.meaning)] == [], section.path
        linked = {link for key in section.keys for link in re.findall(r"\(#([\w-]+)\)", key.kind)}
        assert linked <= anchors, section.path
    lines = rule_keys.rule_key_page().lines
    assert "| `timeout` | duration, more than 0 | `1s` | a probe that takes longer has failed |" in lines


@pytest.mark.parametrize(("page", "columns"), [(tables.CAUSES, 4), (tables.CURES, 3)])
def test_the_pages_explain_every_error(page: str, columns: int) -> None:
    """Each reason has a row in the table of failures and one in the guide of troubleshooting, with its status."""
    found = tables.rows(REPOSITORY / page, columns)
    assert {kind.value for kind in ErrorKind} - found.keys() == set()
    for kind in ErrorKind:
        stated = found[kind.value][1 if columns == 4 else 0]
        assert str(kind.status.http) in stated, kind


@cache
def known_commands() -> dict[str, Any]:
    return dict(commands())


def commands(path: str = "pointsman", command: Any = None) -> Iterator[tuple[str, Any]]:
    command = command or get_command(make_app())
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield f"{path} {name}", child
            yield from commands(f"{path} {name}", child)


PAGES = subprocess.check_output(["git", "ls-files", "*.md"], cwd=REPOSITORY, text=True).split()


@pytest.mark.parametrize("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_the_commands_of_a_page_exist(name: str) -> None:
    """Each `pointsman` command of a page is one, and has the options that it is given."""
    text = (REPOSITORY / name).read_text()
    wrong = []
    blocks = re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"`(pointsman [a-z][^`|]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for block in blocks:
        for line in re.findall(r"^(?:\$ )?(?:\w+=\S+ )*(pointsman .*)$", block.replace("\\\n", " "), re.MULTILINE):
            words = shlex.split(line, comments=True)
            known = known_commands()
            path = next((each for each in (" ".join(words[:depth]) for depth in (4, 3, 2)) if each in known), None)
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            if path is None and given != {"--version"}:
                wrong.append(line)
            elif path is not None and (unknown := given - options(path) - {"--help"}):
                wrong.append(f"{line}: {unknown}")
    assert wrong == []


@cache
def options(path: str) -> set[str]:
    if path.split()[-1] in {*PROGRAMS, "doctor"}:
        help_text = subprocess.run(
            [sys.executable, "-m", "engines", path.split()[-1], "--help"], capture_output=True, text=True, check=True
        ).stdout
        return {*re.findall(r"--[\w-]+", help_text), "--rules"}
    return {
        name for parameter in known_commands()[path].params for name in (*parameter.opts, *parameter.secondary_opts)
    }
