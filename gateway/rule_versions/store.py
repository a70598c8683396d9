"""The store of versions: one file each in a folder, or memory without one; and the names of their files.

Texts are stored as written, including `${VAR}`: values from the environment, such as keys, are never stored. The last
200 versions are kept.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from gateway.rule_versions.version import NoSuchVersion, RulesRefused, Version, read_version
from gateway.yaml.problems import Location, Problem

_SUFFIXES = (".yaml", ".yml")


def named(files: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The texts by the paths of the files that they are, in the order in which the disk has them; new ones last.

    A file that is known may be named by its last part, where no other has the same. A new one lies in a folder in which
    there are rule files already: what rules name beside themselves is then looked for where operators have put such
    files, and nowhere else.
    Raises: RulesRefused.
    """
    if not files:
        raise RulesRefused([Problem(Location("rules", 1, 1), "there is no file: an activation names all of them")])
    found: dict[str, str] = {}
    for name, text in files.items():
        path = _path(name, known)
        if path in found:
            raise RulesRefused([Problem(Location(name, 1, 1), f"{path} is given twice")])
        found[path] = text
    order = {path: place for place, path in enumerate(known)}
    return {path: found[path] for path in sorted(found, key=lambda path: (order.get(path, len(order)), path))}


def _path(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    same = [path for path in known if Path(path).name == name]
    if len(same) == 1:
        return same[0]
    path = Path(name)
    folders = dict.fromkeys(Path(each).parent for each in known)
    if path.suffix not in _SUFFIXES or path.name.startswith(".") or "\0" in name:
        raise RulesRefused([Problem(Location(name, 1, 1), "a rule file's name ends with .yaml or .yml")])
    if path.name == name and folders:
        return str(next(iter(folders)) / name)
    if path.parent not in folders:
        places = ", ".join(map(str, folders))
        message = f"there is no rule file in this folder; a new file's name has no folder, or one of: {places}"
        raise RulesRefused([Problem(Location(name, 1, 1), message)])
    return str(path)


_log = logging.getLogger("pointsman")

MAX_VERSIONS = 200


class VersionStore:
    """The versions of one gateway, by number; numbers only grow, over restarts too."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[int, Version] = {}
        self._texts: dict[int, Mapping[str, str]] = {}  # of those that no file has
        self._last = 0
        if folder is not None:
            self._read_all(folder)

    @property
    def versions(self) -> Sequence[Version]:
        """Oldest first."""
        return list(self._known.values())

    @property
    def latest(self) -> Version | None:
        return next(reversed(self._known.values()), None)

    def get(self, number: int) -> Version:
        """Raises: NoSuchVersion."""
        found = self._known.get(number)
        if found is None:
            known = f"there are {min(self._known)} to {self._last}" if self._known else "there is none"
            raise NoSuchVersion(f"there is no version {number}: {known}")
        return found

    def texts(self, number: int) -> dict[str, str]:
        """The texts of its files, by name and in order.

        Raises: NoSuchVersion, also if its file is missing or damaged.
        """
        version = self.get(number)
        if number in self._texts:
            return dict(self._texts[number])
        try:
            stored = json.loads(self._path(number).read_text("utf-8", "surrogatepass"))["texts"]
            return {name: str(stored[name]) for name in version.files}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoSuchVersion(f"version {number} cannot be read any more: {error}") from error

    def before(self, version: Version) -> Version | None:
        """The version to roll back to: the last earlier one with other texts, None if there is none. After a rollback
        it is the one before the restored version."""
        there = self._first(version)
        while earlier := [each for each in self._known.values() if each.number < there.number]:
            there = self._first(earlier[-1])
            if there.digest != version.digest:
                return there
        return None

    def _first(self, version: Version) -> Version:
        """The original version behind a chain of rollbacks."""
        while version.is_return and version.of in self._known:
            version = self._known[version.of]
        return version

    def add(self, version: Version, texts: Mapping[str, str]) -> Version:
        """Store a version under the next free number, and return it with that number."""
        while True:
            self._last += 1
            numbered = replace(version, number=self._last)
            with suppress(FileExistsError):  # another gateway uses the same folder
                self._write(numbered, texts, is_new=True)
                break
        self._known[numbered.number] = numbered
        for number in list(self._known)[:-MAX_VERSIONS]:
            self._forget(number)
        return numbered

    def rebase(self, number: int, base: str, base_files: Sequence[str], texts: Mapping[str, str]) -> Version:
        """The files on disk have changed or were renamed, and this version stays active."""
        rebased = replace(self.get(number), base=base, base_files=tuple(base_files), files=tuple(texts))
        self._write(rebased, texts, is_new=False)
        self._known[number] = rebased
        return rebased

    # Files

    def _read_all(self, folder: Path) -> None:
        try:
            numbered = sorted((int(path.stem), path) for path in folder.glob("*.json") if path.stem.isdecimal())
        except OSError as error:
            _log.warning("rule versions are kept in memory alone: %s", error)
            self._folder = None
            return
        self._last = numbered[-1][0] if numbered else 0  # one that cannot be read has its number all the same
        for number, path in numbered[-MAX_VERSIONS:]:
            try:
                self._known[number] = read_version(json.loads(path.read_text("utf-8", "surrogatepass")))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                _log.warning("rule version %s is passed over: %s", path, error)

    def _write(self, version: Version, texts: Mapping[str, str], *, is_new: bool) -> None:
        """Store it; if the folder cannot be written, it stays in memory.

        Raises: FileExistsError if it is new and its number is taken.
        """
        if self._folder is None:
            self._texts[version.number] = texts
            return
        stored = json.dumps(asdict(version) | {"texts": dict(texts)}, indent=1)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with NamedTemporaryFile("w", dir=self._folder, prefix=".", encoding="utf-8", delete=False) as file:
                file.write(stored)
                file.flush()
                os.fsync(file.fileno())
            try:
                # A link is refused where the name is taken, so that two gateways never write one number.
                (os.link if is_new else os.replace)(file.name, self._path(version.number))
            finally:
                Path(file.name).unlink(missing_ok=True)
        except FileExistsError:
            raise
        except OSError as error:
            _log.error("version %d of the rules is kept in memory alone: %s", version.number, error)
            self._texts[version.number] = texts
        else:
            self._texts.pop(version.number, None)

    def _forget(self, number: int) -> None:
        del self._known[number]
        self._texts.pop(number, None)
        if self._folder is not None:
            try:
                self._path(number).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("an old version of the rules stays: %s", error)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number:06d}.json"
