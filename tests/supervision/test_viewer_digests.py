"""Digests that stand for sessions and credentials where people read them."""

import re
from pathlib import Path

from gateway.protocol.credentials import digest_of
from gateway.supervision.stored_secret import digest_secret
from gateway.supervision.viewer_digests import ViewerDigests


def test_digests_need_the_secret_of_the_gateway(tmp_path: Path) -> None:
    """Equal values have equal digests in all views of gateways with one secret, and others with another secret; the
    plain digest is in none, so names cannot be tried."""
    one, same, other = (ViewerDigests(lambda secret=secret: secret) for secret in (b"a", b"a", b"b"))  # type: ignore[misc]
    plain = digest_of(b"joe@example.com")
    digest = one.of("joe@example.com")
    assert re.fullmatch("hmac:[0-9a-f]{32}", digest)
    assert digest == same.of("joe@example.com") == one.in_text(plain) != other.in_text(plain)
    assert one.in_text(f"tenant acme, session {plain}") == f"tenant acme, session {digest}"
    assert one.of("") == "" and one.in_text("tenant sha256:x") == "tenant sha256:x"


def test_the_secret_outlives_the_gateway(tmp_path: Path) -> None:
    """The secret is made with the first digest, in a file that only its user can read; gateways on one folder have the
    same, and without a folder each has its own."""
    digests = ViewerDigests(digest_secret(tmp_path))
    file = tmp_path / "digest_secret"
    assert not file.exists()
    digest = digests.of("joe")
    assert file.stat().st_mode & 0o777 == 0o600
    assert ViewerDigests(digest_secret(tmp_path)).of("joe") == digest
    assert len({digest, *(ViewerDigests(digest_secret(None)).of("joe") for _ in range(2))}) == 3
