"""Formats of the gateway's log."""

import json
import logging
from collections.abc import Iterator

import pytest

from gateway.observability.logs import set_up_logging


@pytest.fixture(autouse=True)
def kept_handlers() -> Iterator[None]:
    """Restore pytest's own handlers after a test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_text_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An event is one line on stderr: time, level, logger, message."""
    set_up_logging("text")
    logging.getLogger("pointsman").warning("%s is %s", "it", "down")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(" WARNING pointsman: it is down\n")
    assert err.count("\n") == 1


def test_no_text_of_a_callers_looks_like_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line end in a client's text cannot start a log line, and control characters are escaped."""
    set_up_logging("text")
    logging.getLogger("pointsman").info("by ann (%s)", "why\n2026 ERROR pointsman: all is lost\r\x1b[2J\x9b")
    _, further = capsys.readouterr().err.splitlines()
    assert further == "    2026 ERROR pointsman: all is lost\\x0d\\x1b[2J\\x9b)"


def test_a_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    """In the JSON format an event is one object on one line, with a time in UTC; an exception is inside the object."""
    set_up_logging("json")
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("pointsman").exception("two\nlines")
    (line,) = capsys.readouterr().err.splitlines()
    reply = json.loads(line)
    assert (reply["level"], reply["logger"], reply["message"]) == ("error", "pointsman", "two\nlines")
    assert reply["time"].endswith("+00:00")
    assert reply["exception"].splitlines()[-1] == "ValueError: odd"


def test_libraries_keep_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Info lines of httpx and uvicorn for each request are not logged; their warnings are."""
    set_up_logging("text")
    for name in ("httpx", "httpcore", "uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).info("noise")
        logging.getLogger(name).warning("trouble")
    err = capsys.readouterr().err
    assert "noise" not in err
    assert err.count("trouble") == 5
