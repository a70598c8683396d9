"""Which versions of a model are there, and which of them its version policy takes.

Source: Triton core `model_lifecycle.cc` VersionsToLoad.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from gateway.protocol.protobuf import Message

_log = logging.getLogger(__name__)

# Directories beside the versions that have a meaning of their own.
OTHER_DIRECTORIES = frozenset({"warmup", "initial_state", "configs"})


def version_of(directory_name: str) -> int | None:
    """The version that a directory holds; None where its name is no whole number, or has zeros in front."""
    is_number = directory_name.isascii() and directory_name.isdigit()
    return int(directory_name) if is_number and str(int(directory_name)) == directory_name else None


def versions_in(model_directory: Path) -> list[int]:
    """All versions that are there, in order. Raises: OSError."""
    found = []
    for entry in model_directory.iterdir():
        if entry.name in OTHER_DIRECTORIES or entry.name.startswith(".") or not entry.is_dir():
            continue
        version = version_of(entry.name)
        if version is None:
            _log.warning("ignore version directory '%s', whose name is not a version: 1, 2, 3", entry)
        else:
            found.append(version)
    return sorted(found)


def wanted_versions(config: Message, versions: Iterable[int]) -> list[int]:
    """Those of the versions that the policy of `config` takes, in order."""
    policy, there = config.version_policy, sorted(versions)
    match policy.WhichOneof("policy_choice"):
        case "specific":
            for version in sorted(set(policy.specific.versions) - set(there)):
                _log.error(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    config.name,
                )
            return [version for version in there if version in policy.specific.versions]
        case "latest":
            return there[-policy.latest.num_versions :] if policy.latest.num_versions else []
        case _:
            return there
