"""One Chromium, and one gateway before scripted engines, for all browser tests."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.engines import TensorEngine
from tests.browser.fleet import Fleet, rules_of
from tests.support.canned_llm import CannedLLM
from tests.support.chromium import ARGUMENTS, Mishaps, find_chromium
from tests.support.servers import GatewayProcess

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 360, "height": 740}
# Interval of background requests, so that the page shows traffic.
_PAUSE_SECONDS = 0.05
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]}]}


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """The browser; Playwright's loop runs in this thread, so it ends before tests of other packages begin."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = find_chromium()
    with playwright.sync_playwright() as it:
        if path is None and not Path(it.chromium.executable_path).exists():  # Playwright's own Chromium serves too
            pytest.skip("no Chromium here: install one (apt-get install chromium), or name it in POINTSMAN_CHROMIUM")
        browser = it.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The gateway with its engines and constant background traffic."""
    directory = tmp_path_factory.mktemp("browser")
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(TensorEngine(delta)) for delta in (0.0, 0.0, 0.25)]
        texts = CannedLLM.start(directory / "texts", extra_args=["--interval-seconds", "0.02"])
        v2 = CannedLLM.start(directory / "v2", v2=True)
        stack.enter_context(texts.running())
        stack.enter_context(v2.running())
        rules = rules_of(*[engine.url for engine in engines], texts.http_url, v2.http_url)
        gateway = GatewayProcess.start(
            rules, directory / "gateway", workers=2, redis="embedded", extra_args=["--experiment-tick", "500ms"]
        ).wait_ready()
        stack.callback(gateway.stop)
        stop = threading.Event()
        traffic = threading.Thread(target=_keep_asking, args=(gateway.http_url, stop), daemon=True)
        traffic.start()
        stack.callback(traffic.join)
        stack.callback(stop.set)
        yield Fleet(gateway, engines)


def _keep_asking(url: str, stop: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        number = 0
        while not stop.wait(_PAUSE_SECONDS):
            number += 1
            model = "ranker" if number % 3 else "plain"
            with contextlib.suppress(httpx.HTTPError):
                client.post(f"/v2/models/{model}/infer", json=BODY, headers={"x-session-id": f"s{number // 5}"})


@pytest.fixture(scope="package")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the screenshots of all pages: POINTSMAN_SCREENSHOTS, or one of pytest's."""
    named = os.environ.get("POINTSMAN_SCREENSHOTS")
    folder = Path(named).absolute() if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def mishaps() -> Mishaps:
    return Mishaps()


def sign_in(context: Any, gateway: GatewayProcess) -> None:
    """Have the pages of a browser context find the gateway's key, as after a sign-in."""
    context.add_init_script(f"sessionStorage.setItem('pointsman-key', '{gateway.admin_key}')")


@pytest.fixture
def page(chromium: Any, fleet: Fleet, mishaps: Mishaps, screenshots: Path, request: Any) -> Iterator[Any]:
    """A page in a fresh browser context. A test fails on any console error or failed request that it does not
    expect."""
    options = {"viewport": DESKTOP, **(getattr(request, "param", None) or {})}
    context = chromium.new_context(base_url=fleet.gateway.page_url, **options)
    context.set_default_timeout(10_000)
    sign_in(context, fleet.gateway)
    page = context.new_page()
    mishaps.watch(page)
    yield page
    page.screenshot(path=screenshots / f"{request.node.name}.png", full_page=True)
    context.close()
    assert not mishaps.found, "\n".join(mishaps.found)


@pytest.fixture
def shot(page: Any, screenshots: Path, request: Any) -> Callable[[str], None]:
    """A function that takes a screenshot in the middle of a test."""

    def take(name: str) -> None:
        page.screenshot(path=screenshots / f"{request.node.name}, {name}.png", full_page=True)

    return take
