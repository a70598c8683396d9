"""What stands for sessions and credentials where the admin API shows them: digests with a secret key, so that nobody
who reads them can try names."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from hmac import new as hmac

from gateway.protocol.credentials import digest_of

_DIGEST = re.compile(r"\bsha256:([0-9a-f]{12,64})\b")
_PURPOSE = b"viewer digests"


class ViewerDigests:
    """Digests by one secret, which is read or made when the first one is needed. Equal values have equal digests;
    gateways with one secret have the same."""

    def __init__(self, secret: Callable[[], bytes]) -> None:
        self._secret = secret
        self._key = b""

    def of(self, value: str) -> str:
        """The digest of a session's name; nothing of none."""
        return self.in_text(digest_of(value.encode(errors="replace"))) if value else value

    def in_text(self, text: str) -> str:
        """A text with keyed digests in place of the plain ones that workers and Redis have."""
        return _DIGEST.sub(self._keyed, text)

    def _keyed(self, found: re.Match[str]) -> str:
        self._key = self._key or hmac(self._secret(), _PURPOSE, sha256).digest()
        return "hmac:" + hmac(self._key, found[1].encode(), sha256).hexdigest()[: len(found[1])]
