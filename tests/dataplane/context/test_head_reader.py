"""Reading of request heads: what is shared, what is a request's own, and what goes on as it came."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.rules import load_texts
from gateway.config.settings import Settings
from gateway.dataplane.context.head_reader import HeadReader, Request
from gateway.dataplane.context.snapshot import Snapshot
from gateway.observability.metrics import Metrics
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import read_request_head

RULES = """
version: 1
engines: {it: {endpoints: ['http://127.0.0.1:9']}}
experiments: {x: {unit: session, arms: [{name: a, engine: it, weight: 1}, {name: b, engine: it, weight: 1}]}}
routes:
  - {name: gold, match: {header: {x-tier: gold}}, engine: it}
  - {name: split, match: {model: split}, experiment: x}
  - {name: rest, engine: it}
"""


def reader(*, trust_forwarded: bool = False, more: str = "") -> HeadReader:
    options = Settings(trust_forwarded=trust_forwarded)
    return HeadReader(Snapshot(load_texts({"rules.yaml": RULES + more}).rules, 1, options, Metrics()), options)


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


def test_fields_that_limits_read_are_at_hand() -> None:
    """A limit's fields are each request's own: clients that differ in them share a plan."""
    read = reader(more="limits: [{name: l, per: [tenant, key], requests_per_second: 9}]\n")
    one, other = read(head("X-Tenant: t", "X-API-Key:  k ", "X-A: 1")), read(head("Authorization: Bearer b"))
    assert one.plan is other.plan
    assert [one.value(name) for name in (b"x-tenant", b"x-api-key", b"authorization", b"x-a")] == [
        b"t",
        b"k",
        None,
        b"1",
    ]
    assert (other.value(b"x-tenant"), other.value(b"authorization")) == (None, b"Bearer b")
    assert one.lines == b"X-Tenant: t\r\nX-API-Key:  k \r\nX-A: 1\r\n"


LINES = st.sampled_from(
    [
        *(b"Host: h", b"host:\th2 ", b"Connection: close", b"connection: Keep-Alive", b"Connection: x-a, close"),
        *(b"Content-Length: 5", b"content-length: 05", b"Content-Length: +5", b"Transfer-Encoding: chunked"),
        *(b"transfer-encoding : chunked", b"Transfer-Encoding: gzip, chunked", b"Expect: 100-continue", b"Expect: x"),
        *(b" folded", b"\tfolded: 1", b"X-A: 1", b"X-B:", b"X-C:\t a b\t", b"x-tier: gold", b"no colon", b": none"),
        *(b"Upgrade: h2c", b"TE: trailers", b"X\x00: 1", b"X-D: \x01", b"X-E: \xe9", b"X-F: a\rb", b"Keep-Alive: 5"),
        *(b"Content-Type: application/json", b"Proxy-Authorization: b", b"Via: 1.1 a", b"x(y): 1", b"X-Z: \x7f"),
    ]
)
OPENINGS = st.sampled_from(
    [
        *(b"POST /v2/models/m/infer HTTP/1.1", b"GET /v2 HTTP/1.0", b"GET http://h/v2 HTTP/1.1", b"OPTIONS * HTTP/1.1"),
        *(b"get /v2 HTTP/1.1", b"GET /v2", b"GET  /v2 HTTP/1.1", b"GET /v2 HTTP/2.0", b"G\xe9T /v2 HTTP/1.1", b""),
        *(b"POST /a b HTTP/1.1", b" POST /v2 HTTP/1.1", b"DESCRIBE /v2 RTSP/1.0", b"POST /v2 HTTP/1.1 "),
    ]
)


@settings(max_examples=400, deadline=None)
@given(OPENINGS, st.lists(LINES, max_size=6))
def test_heads_are_read_as_llhttp_reads_them(opening: bytes, lines: list[bytes]) -> None:
    """The reader takes what llhttp and RFC 9112 take, refuses what they refuse, and reads the same of it."""
    text = b"\r\n".join([opening, *lines, b"", b""])
    expected = None
    with suppress(GatewayError):
        expected = read_request_head(text)
    for _ in range(2):
        try:
            request = READER(text)
        except GatewayError:
            assert expected is None
            continue
        assert expected is not None
        found = request.plan.head
        assert (found.method, found.target, request.length) == (expected.method, expected.target, expected.length)
        assert (found.keep_alive, found.is_http_10) == (expected.keep_alive, expected.is_http_10)
        assert found.expects_continue == expected.expects_continue
        fields = sorted({(name, value.rstrip(b" \t")) for name, value in (*found.fields, *request.fields)})
        assert fields == sorted({(name, value.rstrip(b" \t")) for name, value in expected.fields})


READER = reader()


@pytest.mark.parametrize("name", ["x-forwarded-for", "host", "content-type", "proxy-authorization"])
def test_a_limits_fields_are_judged_as_all_are(name: str) -> None:
    """A limit by a field that only proxies may send, or that the gateway reads, changes nothing for the engine."""
    lines = (f"{name}: a", "Content-Length: 0") if name != "host" else ("Content-Length: 0",)
    plain, limited = reader()(head(*lines)), reader(more=LIMITED % name)(head(*lines))
    assert sent(limited) == sent(plain)
    assert (limited.length, limited.plan.head.keep_alive) == (0, True)
    expected = {"host": b"h", "content-type": b"a"}.get(name)
    assert limited.value(name.encode()) == expected


LIMITED = "limits: [{name: l, per: ['header:%s'], requests_per_second: 9}]\n"


@pytest.mark.parametrize("name", ["connection", "Transfer-Encoding", "content-length", "expect"])
def test_fields_of_messages_tell_no_clients_apart(name: str) -> None:
    """A limit by a field of the connection or of the body's framing is an error of the rules."""
    loaded = load_texts({"rules.yaml": RULES + LIMITED % name})
    assert "about the message or its connection" in str(loaded.problems)


def test_long_names_are_not_cached() -> None:
    """Long names that clients invent take no memory."""
    read = reader()
    for number in range(100):
        read(head(f"X-{'a' * 200}-{number}: 1"))
    assert len(read._kinds) < 20
