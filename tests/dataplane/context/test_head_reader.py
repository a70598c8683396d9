"""Reading of request heads: what is shared, what is a request's own, and what goes on as it came."""

import pytest

from gateway.config.rules import load_texts
from gateway.config.settings import Settings
from gateway.dataplane.context.head_reader import HeadReader, Request
from gateway.dataplane.context.snapshot import Snapshot
from gateway.observability.metrics import Metrics
from gateway.protocol.errors import GatewayError

RULES = """
version: 1
engines: {it: {endpoints: ['http://127.0.0.1:9']}}
experiments: {x: {unit: session, arms: [{name: a, engine: it, weight: 1}, {name: b, engine: it, weight: 1}]}}
routes:
  - {name: gold, match: {header: {x-tier: gold}}, engine: it}
  - {name: split, match: {model: split}, experiment: x}
  - {name: rest, engine: it}
"""


def reader(*, trust_forwarded: bool = False) -> HeadReader:
    settings = Settings(trust_forwarded=trust_forwarded)
    return HeadReader(Snapshot(load_texts({"rules.yaml": RULES}).rules, 1, settings, Metrics()), settings)


def head(*lines: str, target: str = "/v2/models/m/infer", opening: str = "") -> bytes:
    opening = opening or f"POST {target} HTTP/1.1"
    return "".join(f"{line}\r\n" for line in (opening, "Host: h", *lines)).encode("latin-1") + b"\r\n"


def sent(request: Request) -> bytes:
    """The fields as an engine gets them: the plan's and the request's."""
    return request.plan.lines + request.lines


def test_heads_share_a_plan_whatever_no_rule_reads() -> None:
    """Requests that differ in fields that no rule reads have one plan, and each keeps its own fields."""
    read = reader()
    for number in range(3):
        read(head(f"X-User: u{number}", f"Authorization: Bearer {number}", "Content-Length: 3"))
    one = read(head("X-User: a", "User-Agent: curl", "Content-Length: 3", "X-Request-Id: one"))
    other = read(head("Accept: b", "content-length: 40", "x-request-id: other"))
    assert one.plan is other.plan
    assert (one.id, one.length, other.id, other.length) == (b"one", 3, b"other", 40)
    assert one.lines == b"X-User: a\r\nUser-Agent: curl\r\nContent-Length: 3\r\n"
    assert other.lines == b"Accept: b\r\ncontent-length: 40\r\n"
    assert (one.value(b"x-user"), one.value(b"x-none"), one.value(b"x-request-id")) == (b"a", None, b"one")


def test_a_field_that_a_rule_reads_decides() -> None:
    """The rules see a field that one of them reads, in any case and with any blanks."""
    read = reader()
    assert read(head("X-TIER:\t gold ")).plan.route_target.spec.route == "gold"  # type: ignore[union-attr]
    assert read(head("X-Tier: lead")).plan.route_target.spec.route == "rest"  # type: ignore[union-attr]
    assert b"\r\nx-tier: gold" in sent(read(head("X-TIER:\t gold ")))


def test_a_session_is_each_requests_own() -> None:
    """The session's header is read for each request of one plan, and goes on."""
    read = reader()
    one, other = (read(head(f"X-Session-Id: {name}", target="/v2/models/split/infer")) for name in ("a", "b"))
    assert (one.session, other.session) == ("a", "b")
    assert one.plan is not other.plan or one.lines != other.lines
    assert one.lines == b"X-Session-Id: a\r\n"


def test_fields_of_other_proxies_are_dropped() -> None:
    """Where a request comes from may be told by trusted proxies only."""
    lines = ("X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "X-Pointsman-Shadow: r", "X-Forwarded-Proto: https")
    assert b"orwarded-" not in sent(reader()(head(*lines))).replace(b"x-forwarded-host", b"")
    trusted = sent(reader(trust_forwarded=True)(head(*lines)))
    assert b"X-Forwarded-For: 1.2.3.4\r\n" in trusted and b"x-forwarded-proto: https\r\n" in trusted


@pytest.mark.parametrize("option", ["X-Mine", "keep-alive, x-mine", "close,X-MINE"])
def test_fields_of_this_hop_are_not_passed(option: str) -> None:
    """A field that Connection names does not go on, whatever its name; all others do (RFC 9110 section 7.6.1)."""
    request = reader()(head("X-Mine: 1", "X-Other: 2", "X-Session-Id: s", f"Connection: {option}", "Content-Length: 7"))
    assert b"mine" not in sent(request).lower()
    assert b"x-other: 2\r\n" in sent(request).lower()
    assert (request.session, request.length) == ("s", 7)
    assert sent(request).lower().count(b"content-length: 7\r\n") == 1


def test_a_rewritten_body_has_its_own_length() -> None:
    """A request with a rewritten body states the new length once, and its fields follow its lines."""
    request = reader()(head("Content-Length: 3", "X-A: 1", "x-request-id: r"))
    rewritten = request.of(request.plan, 9)
    assert (rewritten.length, rewritten.id) == (9, b"r")
    assert rewritten.lines == b"x-a: 1\r\ncontent-length: 9\r\n"
    assert rewritten.fields == [(b"x-a", b"1"), (b"content-length", b"9")]
    assert request.lines_without({b"x-a"}) == b"content-length: 3\r\n"


MALFORMED = {
    "a bare LF": b"POST / HTTP/1.1\r\nHost: h\r\nX-A: 1\nX-B: 2\r\n\r\n",
    "a bare CR": b"POST / HTTP/1.1\r\nHost: h\r\nX-A: 1\rX-B: 2\r\n\r\n",
    "a NUL": b"POST / HTTP/1.1\r\nHost: h\r\nX-A: 1\x002\r\n\r\n",
    "a folded line": b"POST / HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n 2\r\n\r\n",
    "a blank before the colon": b"POST / HTTP/1.1\r\nHost: h\r\nX-A : 1\r\n\r\n",
    "a blank in a length's name": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 1\r\n\r\n",
    "no name": b"POST / HTTP/1.1\r\nHost: h\r\n: 1\r\n\r\n",
    "no colon": b"POST / HTTP/1.1\r\nHost: h\r\nX-A\r\n\r\n",
    "no host": b"POST / HTTP/1.1\r\nX-A: 1\r\n\r\n",
    "two hosts": b"POST / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n",
    "a length and chunks": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a signed length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n",
    "another coding": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n",
    "another protocol": b"POST / RTSP/1.0\r\nHost: h\r\n\r\n",
    "two words": b"POST /\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_malformed_heads_are_refused(text: bytes) -> None:
    """A malformed head is refused each time, also after the same names were read in sound heads."""
    read = reader()
    read(head("X-A: 1", "X-B: 2", "Content-Length: 1"))
    for _ in range(3):
        with pytest.raises(GatewayError, match="malformed request"):
            read(text)


def test_invented_names_need_no_memory() -> None:
    """Clients that invent names do not fill the memory."""
    read = reader()
    for number in range(10_000):
        assert read(head(f"X-{number}: 1")).lines == b"X-%d: 1\r\n" % number
    assert len(read._kinds) <= 4096
