"""A language-model engine that counts (tests/support/counting.py) in every dialect, with faults that a test selects."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

from tests.support.child import Child

MODEL = "canned"


class CannedLLM(Child):
    """One `python -m tests.support.canned_llm`, for use in a test."""

    what = "canned-llm"

    @classmethod
    def start(cls, directory: Path, *, v2: bool = False, extra_args: Sequence[str] = ()) -> Self:
        """Start an engine; with `v2` it speaks Triton's protocol instead of OpenAI's and Anthropic's."""
        command = ["tests.support.canned_llm", "--port", "0", *(["--v2"] if v2 else []), *extra_args]
        return cls.start_module(command, directory)

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Yields itself once it answers. It is stopped afterwards, and must exit cleanly and without a traceback in its
        log."""
        try:
            yield self.wait_ready()
            self.stop()
            assert "Traceback" not in self.log(), self.log()
        finally:
            self.kill()

    def break_down(self, faults: str, times: int | None = None) -> None:
        """Apply faults (see faults.py) to the next `times` generations, or to all further ones; '' removes them."""
        self._request("/test/fault", json.dumps({"faults": faults, "times": times}).encode())

    def seen(self) -> list[dict[str, Any]]:
        """The requests received, oldest first: method, path, headers, body and outcome. `state` is running, done,
        cancelled (the client disconnected) or broken (a fault); `tokens` is the number produced until then."""
        found: list[dict[str, Any]] = json.loads(self._request("/test/seen"))
        return found

    def forget(self) -> None:
        """Clear the received requests and all faults."""
        self._request("/test/forget", b"")

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        with urlopen(Request(self.http_url + path, body), timeout=120) as reply:
            report: bytes = reply.read()
        return report
