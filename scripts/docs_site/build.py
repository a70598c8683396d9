"""python -m scripts.docs_site.build FOLDER: writes the site. mkdocs checks every link and anchor."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from gateway.cli.openapi import openapi as write_documents
from scripts.docs_site.commands import command_page
from scripts.docs_site.pages import Page, Site, read_site
from scripts.docs_site.rule_keys import rule_key_page
from scripts.docs_site.tables import error_page, metric_page

# Room for tables, whose names and values stay in one line.
STYLE = """
.md-grid { max-width: 82rem; }
.md-typeset table:not([class]) { display: table; width: 100%; }
.md-typeset table:not([class]) th { min-width: 3rem; }
.md-typeset table:not([class]) td:first-child code { word-break: normal; }
"""
ROOT = Path(__file__).resolve().parents[2]


def generated() -> list[Page]:
    """The pages that come from code."""
    return [rule_key_page(), command_page(), metric_page(), error_page(ROOT)]


def config(site: Site, reference: Sequence[Page], pages: Path, output: Path) -> dict[str, object]:
    """mkdocs' configuration: search in the browser, and nothing that is loaded from elsewhere."""
    more = [{page.title: f"{page.place}.md"} for page in reference]
    navigation: list[object] = [
        {title: [*more, *children]} if title == "Reference" else {title: children}
        for entry in site.navigation
        for title, children in entry.items()
        if isinstance(children, list | str)
    ]
    return {
        "site_name": "Pointsman",
        "docs_dir": str(pages),
        "site_dir": str(output.resolve()),
        "use_directory_urls": False,  # pages can be read from the folder, too
        "nav": navigation,
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "navigation.tabs",
                "navigation.sections",
                "navigation.top",
                "search.highlight",
                "content.code.copy",
            ],
            "palette": [
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "toggle": {"icon": "material/weather-night", "name": "Dark"},
                },
                {
                    "media": "(prefers-color-scheme: dark)",
                    "scheme": "slate",
                    "toggle": {"icon": "material/weather-sunny", "name": "Light"},
                },
            ],
        },
        "extra_css": ["site.css"],
        "plugins": ["search"],
        "markdown_extensions": [
            "attr_list",
            "tables",
            "pymdownx.superfences",
            "pymdownx.highlight",
            {"toc": {"permalink": True}},
        ],
        "validation": {"nav": {"omitted_files": "warn"}, "links": {"anchors": "warn", "not_found": "warn"}},
        "strict": True,
    }


def build(output: Path) -> int:
    """The exit status of mkdocs: not 0 where a link leads nowhere."""
    site, reference = read_site(ROOT), generated()
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        for page in (*site.pages, *reference):
            _write(pages, page)
        for asset in sorted(site.assets):
            target = pages / "files" / asset
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / asset, target)
        (pages / "site.css").write_text(STYLE)
        settings = Path(folder) / "mkdocs.yml"
        settings.write_text(yaml.safe_dump(config(site, reference, pages, output), sort_keys=False))
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(settings)]
        status = subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
    return status or write_documents(output / "openapi")


def _write(folder: Path, page: Page) -> None:
    path = folder / f"{page.place}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page.lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "site")
    sys.exit(build(parser.parse_args().folder))
