"""What a worker remembers of credentials is bounded."""

import pytest

from gateway.auth import authenticator
from gateway.auth.api_keys import make_key
from gateway.auth.authenticator import Authenticator
from gateway.config.auth_specs import ApiKeySpec, AuthSpec, KeyFileSpec, key_hash


def of_keys(number: int) -> tuple[Authenticator, list[bytes]]:
    made = [make_key() for _ in range(number)]
    specs = tuple(ApiKeySpec(id, "acme", key_hash(digest)) for _, id, digest in made)
    return Authenticator(AuthSpec((KeyFileSpec("keys.yaml", specs),))), [key.encode() for key, _, _ in made]


def test_a_key_is_remembered_as_clients_write_it() -> None:
    """A key behind any number of spaces is valid, and takes no memory beside the key itself."""
    known, (key,) = of_keys(1)
    for spaces in (0, 1, 2, 100, 56_000, 56_001):
        identity = known.identify([(b"authorization", b"Bearer " + b" " * spaces + key)])
        assert identity.error is None
        known.identify([(b"authorization", b"Bearer " + key + b" " * spaces)])
    assert list(known.verified) == [(b"authorization", b"Bearer " + key)]


def test_keys_in_redis() -> None:
    """Keys in Redis are valid beside those of files; while they are not current an unknown key is a 503, and a wrong
    secret of a known one is a 401. A key that is taken away is refused at once."""
    made = [make_key() for _ in range(3)]
    of_file, stored, other = (ApiKeySpec(id, "acme", key_hash(digest)) for _, id, digest in made)
    known = Authenticator(AuthSpec((KeyFileSpec("keys.yaml", (of_file,)),), redis_keys=True))

    def statuses() -> list[int]:
        identities = [known.identify([(b"x-api-key", key.encode())]) for key, _, _ in made]
        return [identity.error.status.http if identity.error else 200 for identity in identities]

    known.use_stored_keys((), is_current=False)
    assert statuses() == [200, 503, 503]
    known.use_stored_keys((stored,), is_current=True)
    assert statuses() == [200, 200, 401]
    known.use_stored_keys((stored,), is_current=False)
    assert statuses() == [200, 200, 503]
    wrong = f"pmi-{stored.id}-{'x' * 43}".encode()
    error = known.identify([(b"x-api-key", wrong)]).error
    assert error is not None and error.status.http == 401
    known.use_stored_keys((other,), is_current=True)
    assert statuses() == [200, 401, 200]
    without = Authenticator(AuthSpec((KeyFileSpec("keys.yaml", (of_file,)),)))
    without.use_stored_keys((stored,), is_current=True)
    assert without.identify([(b"x-api-key", made[1][0].encode())]).error is not None


def test_what_is_remembered_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of more bytes than the bound are not held at once."""
    monkeypatch.setattr(authenticator, "MAX_KNOWN_BYTES", 1000)
    known, keys = of_keys(40)
    for key in keys:
        assert known.identify([(b"x-api-key", key)]).error is None
        assert sum(len(value) for _, value in known.verified) <= 1000
