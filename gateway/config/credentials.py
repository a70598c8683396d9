"""Credentials that engines ask for: texts of the rules, or the contents of files and environment variables.

A file has one credential. It is read again when it changes, so a secret that Kubernetes or Vault replaces is in use
without a restart; errors never quote what a file holds.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from gateway.config import value_parsers
from gateway.config.host_access import may_name, read_settled
from gateway.yaml.nodes import Map, Node
from gateway.yaml.readers import Reading, record_of, scalar

_MAX_BYTES = 8192

_text = scalar(value_parsers.text)


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """Where a credential is."""

    file: str | None = None
    env: str | None = None


_SOURCE = record_of("a credential", CredentialSource)


def read_credential(node: Node, reading: Reading) -> str | None:
    """The text itself, or that of `{file: PATH}`, relative to the rule file's folder, or of `{env: NAME}`."""
    if not isinstance(node, Map):
        return _text(node, reading)
    source = _SOURCE(node, reading)
    if source is None:
        return None
    if (source.file is None) == (source.env is None):
        reading.error(node.location, "a credential is in one place: {file: PATH}, or {env: NAME}")
        return None
    try:
        if source.file is not None:
            return _of_file(source.file, node.entries["file"].node, reading)
        assert source.env is not None
        return value_parsers.text(_of_environment(source.env, reading))
    except ValueError as error:
        what = f"the file {source.file!r}" if source.file is not None else f"the environment variable {source.env}"
        reading.error(node.location, f"{what} has no credential: {error}")
        return None


def _of_environment(name: str, reading: Reading) -> str:
    """Raises: ValueError where it is not set, or rules may not read it."""
    try:
        return reading.environment[name]
    except KeyError:
        raise ValueError("it is not set") from None


def _of_file(written: str, node: Node, reading: Reading) -> str | None:
    """Raises: ValueError where its content is no credential."""
    path = (Path(node.location.file).parent / written).absolute()
    if not may_name(path, written, node.location, reading):
        return None
    reading.followed_files[str(path)] = None
    try:
        content, mode = read_settled(path, _MAX_BYTES + 1)
    except OSError as error:
        reading.error(node.location, f"the credential file {written!r} cannot be read: {error.strerror} ({path})")
        return None
    if mode & stat.S_IWOTH:
        reading.error(node.location, f"every user of this host may write to the credential file {written!r}: chmod o-w")
        return None
    if mode & stat.S_IROTH:
        cure = "chmod o-r, or defaultMode: 0440 of a Kubernetes volume"
        reading.warn(node.location, f"every user of this host may read the credential file {written!r}: {cure}")
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is longer than {_MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if "\n" in text:
        raise ValueError("it has more than one line")
    if not text.strip():
        raise ValueError("it is empty")
    return value_parsers.text(text)
