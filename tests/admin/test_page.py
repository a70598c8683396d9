"""The page's files: complete, and without scripts from other origins."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from gateway.admin import app
from gateway.admin.app import make_app
from tests.admin.test_app import ACCESS, BASE, State

PAGE = Path(app.__file__).with_name("page")
OURS = [
    path for path in sorted(PAGE.rglob("*")) if path.suffix in (".js", ".html", ".css") and "uplot" not in path.parts
]


@pytest.fixture
def client() -> TestClient:
    return TestClient(make_app(State(), ACCESS), base_url=BASE)


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/assets/styles/base.css", "/assets/uplot/uPlot.iife.min.js"])
def test_no_script_from_elsewhere_can_run(client: TestClient, path: str) -> None:
    """The content security policy forbids inline scripts, eval and framing."""
    reply = client.get(path)
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_no_page_of_others_is_served(client: TestClient) -> None:
    """Swagger's page would load a script from elsewhere; the description for such tools is there."""
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    assert "http" not in client.get("/").text.replace("http-equiv", "")
    assert client.get("/openapi.json").json()["openapi"].startswith("3.1")


def test_only_the_page_is_served(client: TestClient) -> None:
    """No path leads out of the page's folder."""
    for path in ("/assets/../../app.py", "/assets/%2e%2e/%2e%2e/app.py", "/assets/", "/assets/nothing.js"):
        assert client.get(path).status_code == 404, path


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(PAGE).as_posix())
def test_what_a_file_names_is_there(path: Path) -> None:
    """Imports, scripts and styles are files of the page, and no script parses text as markup."""
    text = path.read_text()
    named = re.findall(r"""(?:from|import) "(\.[^"]+)";""", text)
    named += [f"../{name}" for name in re.findall(r'(?:src|href)="/(assets/[^"]+)"', text)]
    base = path.parent if path.suffix == ".js" else PAGE / "assets"
    for name in named:
        assert (base / name).resolve().is_file(), f"{path.name} names {name}"
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style="):
        assert forbidden not in text, forbidden
