"""The public keys of an issuer (RFC 7517): from a file, or fetched and refreshed."""

from __future__ import annotations

import logging
import threading
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from gateway.config.auth_specs import JwtSpec
from gateway.protocol.jwks import read_key_set

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

_log = logging.getLogger(__name__)

_FETCH_SECONDS = 5.0
_MAX_BYTES = 1024 * 1024


class KeySetError(Exception):
    """The keys cannot be read; the message says why."""


@cache
def _opener() -> OpenerDirector:
    """Made for the first fetch: a gateway without key sets does not load the client."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Keys come from where the rules say, and from nowhere else."""

    return build_opener(NoRedirects)


class KeySet:
    """The keys of one issuer by their ids. Used by threads that verify tokens."""

    def __init__(self, spec: JwtSpec) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._keys: dict[str | None, Any] = {}
        self._read_at: float | None = None  # of `monotonic`; the last good reading
        self._tried_at: float | None = None
        if spec.jwks.text:
            self._take(spec.jwks.text)

    def find(self, id: object) -> Any:
        """The key with this id, or the only key where a token names none; None where there is none.

        An unknown id has the keys fetched again, but not more often than `refresh_at_most`.

        Raises: KeySetError where there are no keys at all.
        """
        if not self.spec.jwks.url:
            return self._known(id)
        if not self._is_old() and (known := self._known(id)) is not None:
            return known
        with self._lock:
            now = monotonic()
            is_old = self._is_old()
            may_try = self._tried_at is None or now - self._tried_at > self.spec.refresh_at_most
            if may_try and (is_old or self._known(id) is None):
                self._tried_at = now
                try:
                    self._take(self._fetch())
                    self._read_at = now
                except KeySetError as error:
                    if self._read_at is None:
                        raise
                    _log.warning("%s; those read before are used", error)
            if self._read_at is None:
                raise KeySetError(f"the keys of {self.spec.issuer} were not read")
            return self._known(id)

    def _is_old(self) -> bool:
        return self._read_at is None or monotonic() - self._read_at > self.spec.refresh

    def _known(self, id: object) -> Any:
        if isinstance(id, str):
            return self._keys.get(id)
        return next(iter(self._keys.values())) if id is None and len(self._keys) == 1 else None

    def _fetch(self) -> str:
        url = self.spec.jwks.url
        try:
            with _opener().open(url, timeout=_FETCH_SECONDS) as reply:
                content = b""
                until = monotonic() + _FETCH_SECONDS
                while piece := reply.read1(65536):
                    content += piece
                    if len(content) > _MAX_BYTES or monotonic() > until:
                        raise ValueError(f"more than {_MAX_BYTES} bytes or {_FETCH_SECONDS:g} s")
            return content.decode()
        except (URLError, OSError, ValueError) as error:
            raise KeySetError(f"the keys at {url} cannot be read: {error}") from error

    def _take(self, text: str) -> None:
        try:
            self._keys = read_key_set(text, self.spec.algorithms)
        except ValueError as error:
            raise KeySetError(f"the keys of {self.spec.issuer} cannot be read: {error}") from error
