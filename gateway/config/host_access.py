"""What rules may name of this host: environment variables and files.

Operators write rule files, which may name any of them. Rules that arrive by the admin API may name what those files
name already, variables that an option lists, and files in the folders of rule files: otherwise an admin key would read
what the gateway's user can read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.yaml.problems import Location
from gateway.yaml.readers import Reading

# A file that changed so recently may be written still: its reader waits, and looks again.
_SETTLED_SECONDS = 0.25
_MAX_LOOKS = 8
# What is shorter is no secret, but may be a part of any word.
_MIN_SECRET_LENGTH = 6
# A part of a value, as of a URL, that may be a secret itself: a message may quote it alone.
_PART = re.compile(r"[^\s/?#&=@:;,'\"]{12,}")
_USER = re.compile(r"(?<=//)[^/\s'@]+@|[^\s/'@:]+:[^\s/'@]+@")


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names of variables, real paths of files, and hooks."""

    variables: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    hooks: frozenset[str] = frozenset()  # code, with its options: see `HookSpec.identity`


@dataclass(frozen=True, slots=True, eq=False)
class Environment(Mapping[str, str]):
    """The values of `${VAR}`. It notes which are read; `allowed` refuses others."""

    values_by_name: Mapping[str, str]
    allowed: HostNames | None
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> str:
        """Raises: KeyError, ValueError where rules may not read the variable."""
        if self.allowed is not None and name not in self.allowed.variables:
            raise ValueError(
                f"rules of the admin API may not read the environment variable {name}: name it in a rule file on disk, "
                f"or serve with --rules-api-env {name}"
            )
        self.read.add(name)
        return self.values_by_name[name]

    def without_values(self, message: str) -> str:
        """A message that names variables in place of their values, which may be secrets, and no user of a URL."""
        values = {name: self.values_by_name.get(name, "") for name in self.read}
        for name, value in sorted(values.items(), key=lambda item: -len(item[1])):
            if len(value) >= _MIN_SECRET_LENGTH:
                for written in (value, repr(value)[1:-1]):
                    message = message.replace(written, f"${{{name}}}")
            for part in _PART.findall(value):
                if any(map(str.isdigit, part)):
                    message = message.replace(part, f"part of ${{{name}}}")
        return _USER.sub("***@", message)

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


def may_name(path: Path, written: str, location: Location, reading: Reading) -> bool:
    """Whether rules may name a file; an error where not. It is noted, whether it exists or not."""
    folder = Path(location.file).parent
    try:
        real = os.path.realpath(path)
    except ValueError:  # a NUL, which its reader reports
        return True
    reading.named_files.add(real)
    if (
        reading.allowed_files is None
        or real in reading.allowed_files
        or Path(real).is_relative_to(os.path.realpath(folder))
    ):
        return True
    reading.error(
        location,
        f"{written!r} is outside of {folder}: rules of the admin API may name files of that folder, and those that the "
        "rule files on disk name",
    )
    return False


def read_settled(path: Path, max_bytes: int = -1) -> tuple[bytes, int]:
    """The content of a regular file that nobody has changed for a moment, or its first bytes, and its mode.

    Raises: OSError.
    """
    for look in range(_MAX_LOOKS):
        try:
            if not path.is_file():  # a pipe would block
                raise OSError(0, "it is not a regular file" if path.exists() else "there is no such file")
            with path.open("rb") as file:
                content = file.read(max_bytes)
                found = os.fstat(file.fileno())
        except ValueError as error:  # a NUL in the path
            raise OSError(0, str(error)) from None
        is_settled = abs(time.time() - found.st_mtime) >= _SETTLED_SECONDS
        if is_settled and (content or look):  # a file system may empty a file before it notes the time
            return content, found.st_mode
        time.sleep(_SETTLED_SECONDS)
    raise OSError(0, "it changes all the time")
