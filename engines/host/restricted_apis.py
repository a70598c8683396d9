"""APIs that want a secret header: `--http-restricted-api` and `--grpc-restricted-protocol`.

Source: Triton server `src/restricted_features.h`, `command_line_parser.cc` ParseRestrictedFeatureOption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

CATEGORIES = (
    *("health", "metadata", "inference", "shared-memory", "model-config"),
    *("model-repository", "statistics", "trace", "logging"),
)

# The header that a category wants, and its value.
Restrictions = Mapping[str, tuple[str, str]]

_GRPC_PREFIX = "triton-grpc-protocol-"


def http_restrictions(options: Iterable[str]) -> Restrictions:
    """What `--http-restricted-api` says.

    Raises: ValueError.
    """
    return _read(options, "http-restricted-api", "", "api")


def grpc_restrictions(options: Iterable[str]) -> Restrictions:
    """What `--grpc-restricted-protocol` says; the header's name has Triton's prefix.

    Raises: ValueError.
    """
    return _read(options, "grpc-restricted-protocol", _GRPC_PREFIX, "protocol")


def _read(options: Iterable[str], option: str, prefix: str, called: str) -> Restrictions:
    wanted: dict[str, tuple[str, str]] = {}
    for text in options:
        names, _, setting = text.partition(":")
        key, _, value = setting.partition("=")
        if not (names and key and value):
            raise ValueError(f"--{option} option format is '<{called}s>:<key>=<value>'. Got {text}")
        for name in names.split(","):
            if name not in CATEGORIES:
                raise ValueError(f"unknown restricted {called} '{name}'; there are {', '.join(CATEGORIES)}")
            if name in wanted:
                raise ValueError(f"restricted {called} '{name}' can not be specified in multiple config groups")
            wanted[name] = (prefix + key, value)
    return wanted
