"""Which values are credentials, by the names of their header fields, parameters or settings, and what stands for one
where people read it."""

from __future__ import annotations

import re
from hashlib import sha256

_WORDS = r"(?:api)?(?:key|token|secret|password|passwd|passphrase|authorization|cookie|credentials?|jwt)"
_CAMEL = (
    r"(?<=[a-z0-9])(?:API)?(?:Key|Token|Secret|Password|Passwd|Passphrase|Authorization|Cookie|Credentials?|Jwt|JWT)"
)
# "max_tokens" and "requests_per_second" are none; "api_key", "x-auth-token" and "clientSecret" are, and "key" and
# "header:x-api-key" in a `per`.
_CREDENTIAL = re.compile(rf"(?i:(?:^|[-_.:]){_WORDS})\Z|{_CAMEL}\Z")
# Such a name inside a text.
CREDENTIAL_IN_TEXT = rf"(?:(?<![A-Za-z0-9])(?i:{_WORDS})|{_CAMEL})"


def is_credential(name: str) -> bool:
    """Whether what has this name is a credential, so that no log, account, recording or viewer may have its value."""
    return _CREDENTIAL.search(name) is not None


def digest_of(value: bytes, length: int = 32) -> str:
    """What stands for a credential, or for the name of a session: equal for equal values."""
    return f"sha256:{sha256(value).hexdigest()[:length]}"
