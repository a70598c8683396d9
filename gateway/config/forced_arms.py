"""The `forcing:` section: who may choose an arm for requests of their own."""

from __future__ import annotations

import re

from gateway.config import value_parsers
from gateway.config.experiment_specs import ForcingSpec
from gateway.yaml.nodes import Node
from gateway.yaml.readers import Reading, Record, one_or_many, scalar

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def _hashed(text: str) -> str:
    """A key's SHA-256. A key itself is a secret, and stands in no rule file; nor in what is told of it."""
    if not _SHA256.fullmatch(text):
        what = "a key stands here by its SHA-256, 64 hexadecimal digits"
        raise ValueError(f"{what}: `printf %s 'the key' | sha256sum` tells it")
    return text.lower()


_FORCING = Record(
    "forcing",
    ForcingSpec,
    {
        "header": scalar(value_parsers.header_name),
        "key_header": scalar(value_parsers.header_name),
        "keys": one_or_many(scalar(_hashed)),
        "parameter": scalar(value_parsers.text),
        "key_parameter": scalar(value_parsers.text),
    },
    required=("keys",),
)


def read_forcing(node: Node, reading: Reading) -> ForcingSpec | None:
    """Read the section."""
    forcing = _FORCING(node, reading)
    if forcing is None:
        return None
    if forcing.header == forcing.key_header:
        reading.error(node.location, f"header {forcing.header!r} cannot have both the arm and the key")
    if forcing.parameter == forcing.key_parameter:
        reading.error(node.location, f"parameter {forcing.parameter!r} cannot have both the arm and the key")
    return forcing
