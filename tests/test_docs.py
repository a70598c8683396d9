"""The documentation: links between pages lead to files and headings that exist."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FILES = subprocess.check_output(["git", "ls-files"], cwd=REPOSITORY, text=True).split()
PAGES = [REPOSITORY / name for name in subprocess.check_output(
    ["git", "ls-files", "*.md"], cwd=REPOSITORY, text=True
).split()]  # fmt: skip
# What a Triton model repository has.
TRITONS = {"model.py"}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub derives them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[(.+?)\]\(.*?\)", r"\1", title).lower()).replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file of the repository, and each `#anchor` a heading of it."""
    broken = []
    for link in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_named_modules_exist(page: Path) -> None:
    """Each Python file that a page names (`upstream/engine.py`) is the end of a path in the repository."""
    if page.name == "CHANGELOG.md":
        pytest.skip("names modules of earlier releases")
    named = set(re.findall(r"`([\w/]+\.py)`", page.read_text())) - TRITONS
    missing = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in FILES)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_named_tests_exist(page: Path) -> None:
    """Each test that a page names (`rest/test_app.py::test_infer`) is a function of such a file."""
    named = set(re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text()))
    missing = {
        f"{name}::{function}"
        for name, function in named
        if not any(
            f"/{file}".endswith(f"/{name}") and re.search(rf"def {function}\(", (REPOSITORY / file).read_text())
            for file in FILES
        )
    }
    assert not missing
