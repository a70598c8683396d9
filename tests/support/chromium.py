"""The system's Chromium for browser tests, and a record of page errors."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MACOS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
# Only requests to the gateway.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """Chromium's path; POINTSMAN_CHROMIUM overrides it."""
    named = os.environ.get("POINTSMAN_CHROMIUM")
    if named:
        return named
    found = (shutil.which(name) for name in _NAMES)
    return next((path for path in (*found, *_MACOS) if path and Path(path).exists()), None)


@dataclass
class Mishaps:
    """Errors of a page's console, scripts and requests; `expected` are statuses that a test causes on purpose."""

    found: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)

    def watch(self, page: Any) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"exception: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _console(self, message: Any) -> None:
        # Chromium logs each status above 400, which `_answered` records too.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.found.append(f"console: {message.text}")

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was closed or the request cancelled
            self.found.append(f"request: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Any) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.found.append(f"answer: {response.status} of {response.request.method} {response.url}")
