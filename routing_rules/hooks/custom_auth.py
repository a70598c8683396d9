"""Custom auth: requests need a signed token of another system, an HMAC over tenant and expiry.

    token = "TENANT.EXPIRES.SIGNATURE", signature = HMAC-SHA256(secret, "TENANT.EXPIRES") in hexadecimal

The engine receives the tenant in `x-verified-tenant`, and no client can send that field past this hook.
"""

import hmac
import time
from hashlib import sha256

from gateway.hooks import Change, HookRequest, Reject


class SignedToken:
    """`secret` signs tokens; `header` has them, after `Bearer ` or bare."""

    inline = True  # a few microseconds of computing

    def __init__(self, secret: str, header: str = "authorization") -> None:
        if len(secret) < 16:
            raise ValueError("the secret has fewer than 16 characters")
        self._secret = secret.encode()
        self._header = header.lower()

    def on_request(self, request: HookRequest) -> Change | Reject:
        token = request.headers.get(self._header, "").removeprefix("Bearer ")
        signed, _, signature = token.rpartition(".")
        tenant, _, expires = signed.rpartition(".")
        expected = hmac.new(self._secret, signed.encode(), sha256).hexdigest()
        if not tenant or not hmac.compare_digest(signature.encode(), expected.encode()):
            return Reject(401, "a signed token is needed", headers={"www-authenticate": "Bearer"})
        if not expires.isdigit() or int(expires) < time.time():
            return Reject(401, "the token has expired", headers={"www-authenticate": "Bearer"})
        return Change(headers={"x-verified-tenant": tenant, self._header: None})
