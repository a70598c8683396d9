"""The keys of a limit, and the number of accounts that a worker stores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.limit_specs import LimitSpec
from gateway.config.specs import IdentitySpec
from gateway.limits import limit as limit_module
from gateway.limits.limit import Limit, expected_tokens
from gateway.limits.limit_key import digest, reader_of, shown


class Request:
    """The request as a limit reads it."""

    def __init__(self, session: str | None = None, **fields: str) -> None:
        self.route = "chat"
        self.session = session
        self._fields = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}

    def field(self, name: bytes) -> bytes | None:
        return self._fields.get(name)

    def expected_tokens(self) -> int:
        return 0


WHOSE = [
    ((), Request(), b""),
    (("route",), Request(), b"chat"),
    (("tenant",), Request(x_org="acme"), b"acme"),
    (("tenant",), Request(), b""),
    (("session",), Request("s1", x_session_id="s2"), b"s1"),
    (("session",), Request(x_session_id="s2"), b"s2"),
    (("session",), Request("caf\u00e9"), "caf\u00e9".encode()),
    (("session",), Request(x_session_id="caf\u00e9"), "caf\u00e9".encode()),
    (("header:x-user",), Request(x_user="u"), b"u"),
    (("key",), Request(authorization="Bearer k"), b"k"),
    (("key",), Request(authorization="bearer  k "), b"k"),
    (("key",), Request(authorization="Basic k"), b"Basic k"),
    (("key",), Request(x_api_key="k"), b"k"),
    (("key",), Request(api_key="k"), b"k"),
    (("route", "tenant"), Request(x_org="acme"), (b"chat", b"acme")),
]


@pytest.mark.parametrize("per, request_, limit_key", WHOSE)
def test_the_key_of_a_request(per: tuple[str, ...], request_: Request, limit_key: object) -> None:
    """A key consists of the route, the session or a field; a missing value has no key of its own."""
    spec = LimitSpec("l", per=per, concurrency=1)
    assert reader_of(spec, IdentitySpec(tenant_header="x-org"))(request_) == limit_key


@pytest.mark.parametrize("per", ["session", "key", "tenant", "header:x-user"])
def test_what_is_long_is_remembered_short(per: str) -> None:
    """Long names are stored as short keys that remain distinct."""
    read = reader_of(LimitSpec("l", per=(per,), concurrency=1), IdentitySpec())
    names = {letter * 10_000 for letter in "abc"}
    found = {read(Request(x_session_id=name, x_api_key=name, x_tenant=name, x_user=name)) for name in names}
    assert len(found) == 3 and all(len(limit_key) < 100 for limit_key in found)


@given(st.lists(st.binary(max_size=5), min_size=2, max_size=2), st.lists(st.binary(max_size=5), min_size=2, max_size=2))
def test_different_people_have_different_names_in_redis(one: list[bytes], other: list[bytes]) -> None:
    """Different field values have different digests, and the digest does not reveal them."""
    spec = LimitSpec("l", per=("tenant", "key"), concurrency=1)
    assert (digest(spec, tuple(one)) == digest(spec, tuple(other))) == (one == other)
    assert len(digest(spec, tuple(one))) == 32


def test_operators_read_who_it_is_but_no_secret() -> None:
    """Keys, credentials and sessions are shown as a digest, other values in printable characters."""
    spec = LimitSpec("l", per=("tenant", "key", "header:x-goog-api-key", "session", "header:cookie"), concurrency=1)
    text = shown(spec, (b"ac\x07me", b"sk-secret", b"secret-2", b"acme\1secret-3", b""))
    assert text.startswith("tenant ac?me, key sha256:")
    assert text.endswith(", header:cookie (none)")
    assert "secret" not in text


def test_those_not_seen_for_long_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of accounts is bounded; one with active requests or recent use is not evicted."""
    monkeypatch.setattr(limit_module, "MAX_ACCOUNTS", 3)
    limit = Limit(LimitSpec("l", per=("tenant",), concurrency=1), IdentitySpec())
    for number, limit_key in enumerate((b"busy", b"old", b"new")):
        account, evicted = limit.open(limit_key, 1, 0.0)
        assert evicted is None
        account.used_at = float(number)
    busy = limit.accounts[b"busy"]
    assert busy.slots is not None
    busy.slots.in_use = 1
    _, evicted = limit.open(b"next", 1, 2.5)
    assert evicted is not None and evicted.limit_key == b"old"
    assert set(limit.accounts) == {b"busy", b"new", b"next"}
    for number in range(100):
        limit.open(b"%d" % number, 1, 2.5)
    assert len(limit.accounts) == 3
    assert limit.accounts[b"busy"] is busy


BODIES = [
    (b'{"prompt": "hi"}', 256),
    (b'{"max_tokens": 7}', 7),
    (b'{"max_tokens":7}', 7),
    (b'{"max_completion_tokens": 8}', 8),
    (b'{"max_output_tokens": 9}', 9),
    (b'{"max_new_tokens": 10}', 10),
    (b'{"max_tokens": null}', 256),
    (b'{"max_tokens": "many"}', 256),
]


@pytest.mark.parametrize("body, reply", BODIES)
def test_a_request_for_text_is_taken_for_so_many_tokens(body: bytes, reply: int) -> None:
    """The estimate is a quarter of the body's bytes plus the reply's bound or the usual length."""
    assert expected_tokens(body, 400) == 101 + reply
