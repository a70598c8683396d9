"""Pages of the repository as pages of the site: long ones are split at their second-level headings, links between them
follow, and headings keep the anchors that GitHub gives them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_FENCE = re.compile(r"^(```|~~~)")
_HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$")
_LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ASSETS = {".png", ".svg", ".jpg", ".yaml", ".jinja"}


@dataclass(frozen=True, slots=True)
class Source:
    """A page of the repository and its place in the site. `is_split`: each second-level heading is a page of its own,
    in a folder; what stands before the first one is that folder's first page."""

    path: str
    place: str  # of the site, without .md
    title: str
    is_split: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation: pages in their order."""

    title: str
    sources: tuple[Source, ...]


NAVIGATION = (
    Section("Home", (Source("README.md", "index", "Pointsman"),)),
    Section(
        "Get started",
        (
            Source("gateway/guides/triton.md", "start/triton", "In front of your Triton"),
            Source("gateway/guides/vllm.md", "start/vllm", "In front of your vLLM"),
            Source("engines/MACOS.md", "start/mac", "On a Mac"),
            Source("docker/README.md", "start/containers", "Containers and Kubernetes"),
        ),
    ),
    Section(
        "Migrate",
        (
            Source("gateway/guides/from-triton.md", "migrate/triton", "From a bare Triton"),
            Source("gateway/guides/from-litellm.md", "migrate/litellm", "From LiteLLM"),
            Source("gateway/guides/from-envoy.md", "migrate/envoy", "From Envoy"),
        ),
    ),
    Section(
        "Guides",
        (
            Source("gateway/guides/migrate.md", "guides/migrate", "Migrate between engines"),
            Source("gateway/guides/language-models.md", "guides/language-models", "Language models"),
            Source("gateway/guides/availability.md", "guides/availability", "Availability and state"),
            Source("gateway/guides/grpc.md", "guides/grpc", "gRPC"),
        ),
    ),
    Section("Rules", (Source("routing_rules/README.md", "rules", "The rule language", is_split=True),)),
    Section(
        "Operate",
        (
            Source("gateway/README.md", "operate", "Operating the gateway", is_split=True),
            Source("gateway/guides/operations.md", "operate/operations", "Operations and alerts"),
            Source("gateway/sessions/README.md", "operate/state", "Sessions and Redis"),
            Source("gateway/guides/inference-extension.md", "operate/endpoint-picker", "An endpoint picker for Envoy"),
            Source("gateway/guides/troubleshooting.md", "operate/troubleshooting", "Troubleshooting"),
            Source("gateway/guides/hooks.md", "operate/hooks", "Python hooks"),
            Source("gateway/guides/openapi.md", "operate/openapi", "OpenAPI and clients"),
            Source("SECURITY.md", "operate/security-model", "Security model"),
        ),
    ),
    Section(
        "Engines",
        (
            Source("engines/README.md", "engines/host", "The engine host"),
            Source("engines/paged/README.md", "engines/llm", "The language-model engine"),
            Source("engines/fleet/README.md", "engines/fleet", "Fleets"),
            Source("engines/analyze/README.md", "engines/analyze", "Analyze a model"),
            Source("engines/ray_app/README.md", "engines/ray", "On Ray Serve"),
            Source("scripts/README.md", "engines/scripts", "Scripts, remote TensorRT-LLM"),
        ),
    ),
    Section(
        "Reference",
        (
            Source("scripts/bench/RESULTS.md", "reference/results", "Results of the benchmarks"),
            Source("scripts/bench/README.md", "reference/benchmarks", "Benchmarks"),
            Source("CHANGELOG.md", "reference/changes", "Changes"),
        ),
    ),
    Section(
        "Contribute",
        (
            Source("CONTRIBUTING.md", "contribute/index", "Contribute"),
            Source("gateway/DESIGN.md", "contribute/design", "How a request passes"),
            Source("tests/README.md", "contribute/tests", "Tests"),
        ),
    ),
)


def anchor_of(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[(.+?)\]\(.*?\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@dataclass(slots=True)
class Page:
    """A page of the site. `place` is its path without .md; `lines` are Markdown. `is_part`: it begins at a
    second-level heading, so its headings move up a level."""

    source: str
    place: str
    title: str
    lines: list[str] = field(default_factory=list)
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """All pages, the navigation in mkdocs' form, and the files of the repository that pages show or link."""

    pages: Sequence[Page]
    navigation: Sequence[dict[str, object]]
    assets: frozenset[str]


def read_site(root: Path, navigation: Sequence[Section] = NAVIGATION) -> Site:
    """The site of the repository at `root`."""
    pages: list[Page] = []
    entries: list[dict[str, object]] = []
    places: dict[tuple[str, str], tuple[str, str]] = {}  # (file, anchor) -> (place, anchor); "" for the top
    for section in navigation:
        children: list[dict[str, object]] = []
        for source in section.sources:
            own = list(_split(source, (root / source.path).read_text()))
            pages += own
            children += [{page.title: f"{page.place}.md"} for page in own]
            places |= _places(source.path, own)
        entries.append({section.title: children if len(children) > 1 else f"{pages[-1].place}.md"})
    assets: set[str] = set()
    for page in pages:
        page.lines[:] = list(_linked(page, root, places, assets))
    return Site(pages, entries, frozenset(assets))


def _split(source: Source, text: str) -> Iterator[Page]:
    page = Page(source.path, f"{source.place}/index" if source.is_split else source.place, source.title)
    for is_code, line in _lines(text):
        heading = None if is_code else _HEADING.match(line)
        if heading is not None and source.is_split and len(heading[1]) == 2:
            yield page
            name = anchor_of(heading[2])
            page = Page(source.path, f"{source.place}/{name}", heading[2].replace("`", ""), is_part=True)
        page.lines.append(line)
    yield page


def _lines(text: str) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it is of a block of code."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found is not None and fence in ("", found[1]):
            fence = "" if fence else found[1]
            yield True, line
        else:
            yield bool(fence), line


def _places(path: str, pages: Sequence[Page]) -> dict[tuple[str, str], tuple[str, str]]:
    found = {(path, ""): (pages[0].place, "")}
    for page in pages:
        for is_code, line in _lines("\n".join(page.lines)):
            heading = None if is_code else _HEADING.match(line)
            if heading is not None:
                anchor = anchor_of(heading[2])
                found[path, anchor] = (page.place, anchor)
    return found


def _linked(page: Page, root: Path, places: dict[tuple[str, str], tuple[str, str]], assets: set[str]) -> Iterator[str]:
    folder = PurePosixPath(page.source).parent

    def link(found: re.Match[str]) -> str:
        mark, text, target = found[1], found[2], found[3]
        if re.match(r"[a-z]+:", target):
            return found[0]
        name, _, anchor = target.partition("#")
        path = os.path.normpath(folder / name) if name else page.source
        if (path, anchor) in places:
            place, at = places[path, anchor]
            relative = os.path.relpath(f"{place}.md", PurePosixPath(page.place).parent)
            return f"{mark}[{text}]({relative}{'#' + at if at else ''})"
        if (root / path).is_file() and PurePosixPath(path).suffix in ASSETS:
            assets.add(path)
            return f"{mark}[{text}]({os.path.relpath(f'files/{path}', PurePosixPath(page.place).parent)})"
        return text  # a file or folder of the repository that the site does not have

    for is_code, line in _lines("\n".join(page.lines)):
        heading = None if is_code else _HEADING.match(line)
        if is_code:
            yield line
        elif heading is not None:
            level = len(heading[1]) - page.is_part
            yield f"{'#' * level} {_LINK.sub(link, heading[2])} {{#{anchor_of(heading[2])}}}"
        else:
            yield _LINK.sub(link, line)
