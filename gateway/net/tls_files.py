"""TLS files: what is wrong with them, until when certificates are valid, and contexts that follow their changes."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import time
from typing import IO
from weakref import WeakKeyDictionary

from gateway.net.regular_file import read_regular
from gateway.yaml.problems import Severity

_log = logging.getLogger(__name__)

_FOLDER_OF_DESCRIPTORS = Path("/proc/self/fd")
_DAY = 86_400
# Authorities that renew by themselves do so earlier.
_WARN_DAYS = 14

Stamp = tuple[int, ...] | None


class TlsFileError(ValueError):
    """A file that cannot be used; the message names it and its option."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The first certificate of a PEM file: the host names that it is for, and its end, in seconds since 1970."""

    names: tuple[str, ...]
    ends_at: float


def read_certificate(path: str) -> Certificate:
    """Raises: OSError where the file cannot be read, or holds no certificate (ssl.SSLError)."""
    found = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # what `getpeercert` of a connection has
    names = tuple(value for kind, value in found.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))
    return Certificate(names, float(ssl.cert_time_to_seconds(found["notAfter"])))


def find_problems(
    ca: str | None, cert: str | None, key: str | None, *, names: tuple[str, str, str]
) -> Iterator[tuple[Severity, str]]:
    """What is wrong with the files of one context; `names` are those of the three options."""
    ca_name, cert_name, key_name = names
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is not None:
            _used(ca, ca_name, lambda: context.load_verify_locations(ca), "holds no PEM certificate")
        if cert is not None:
            _used(cert, cert_name, lambda: read_certificate(cert), "holds no PEM certificate")
            if key is not None:
                _used(key, key_name, lambda: None, "")
            what = f"and {key_name} ({key or cert}) do not fit: the key is another one's, encrypted, or missing"
            _used(cert, cert_name, lambda: context.load_cert_chain(cert, key, password=""), what)
    except TlsFileError as error:
        yield Severity.ERROR, str(error)
        return
    for path, name in ((ca, ca_name), (cert, cert_name)):
        if path is not None and (warning := _expiry(path)):
            yield Severity.WARNING, f"the certificate {path} ({name}) {warning}"


def _used(path: str, name: str, use: Callable[[], object], otherwise: str) -> None:
    try:
        read_regular(path)
        use()
    except ssl.SSLError as error:
        raise TlsFileError(f"{name} ({path}) {otherwise}") from error
    except OSError as error:
        raise TlsFileError(f"{name} ({path}) cannot be read: {error.strerror or error}") from error


def _expiry(path: str) -> str:
    left = read_certificate(path).ends_at - time()
    day = datetime.fromtimestamp(time() + left, UTC).date()
    if left <= 0:
        return f"expired on {day}"
    return f"expires on {day}, in {left / _DAY:.0f} days" if left < _WARN_DAYS * _DAY else ""


@contextmanager
def as_files(*contents: bytes) -> Iterator[list[str]]:
    """Paths at which OpenSSL, which reads keys from files alone, finds these contents; on Linux they are in memory."""
    with ExitStack() as open_files:
        paths = []
        for content in contents:
            if _FOLDER_OF_DESCRIPTORS.is_dir() and hasattr(os, "memfd_create"):
                file: IO[bytes] = open_files.enter_context(open(os.memfd_create("pem"), "wb"))  # noqa: PTH123
                paths.append(str(_FOLDER_OF_DESCRIPTORS / str(file.fileno())))
            else:
                file = open_files.enter_context(NamedTemporaryFile())  # only its user may read it
                paths.append(file.name)
            file.write(content)
            file.flush()
        yield paths


# Contexts that follow their files


@dataclass(slots=True)
class _Followed:
    files: tuple[str, ...]
    reload: Callable[[ssl.SSLContext], None]
    stamps: tuple[Stamp, ...]


_followed: WeakKeyDictionary[ssl.SSLContext, _Followed] = WeakKeyDictionary()


def follow(context: ssl.SSLContext, files: Iterable[str | None], reload: Callable[[ssl.SSLContext], None]) -> None:
    """Have `reload_changed` call `reload`, which must not hold the context, when one of the files has changed."""
    named = tuple(file for file in files if file is not None)
    _followed[context] = _Followed(named, reload, stamps_of(named))


def reload_changed() -> None:
    """Read the files that have changed since the last call again. Of those that cannot be used, as while they are being
    written, what was read before stays in use."""
    for context, one in list(_followed.items()):
        stamps = stamps_of(one.files)
        if stamps == one.stamps:
            continue
        one.stamps = stamps
        try:
            one.reload(context)
        except OSError as error:  # ssl.SSLError is one
            _log.warning("changed TLS files cannot be used, the former stay in use: %s", error)
        else:
            _log.info("the changed TLS files %s are in use", ", ".join(one.files))


def stamps_of(files: Sequence[str]) -> tuple[Stamp, ...]:
    """What differs when one of the files is replaced or written."""
    return tuple(map(_stamp, files))


def _stamp(path: str) -> Stamp:
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
