"""Where versions are kept: a file each in a folder, or in memory where there is none.

Texts are as written, `${VAR}` and all: what the environment gives, such as a key, is never kept. The last 200 stay.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from gateway.rule_versions.version import NoSuchVersion, RulesRefused, Version, read_version, write_version
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

KEPT = 200


class VersionStore:
    """The versions of one gateway, by number; numbers only grow, over restarts too."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[int, Version] = {}
        self._texts: dict[int, Mapping[str, str]] = {}  # of those that no file has
        self._last = 0
        if folder is not None:
            self._read_all(folder)

    def __repr__(self) -> str:
        return f"<VersionStore {self._folder or 'in memory'}: {len(self._known)} up to {self._last}>"

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
        """What its files say, by name and in order.

        Raises: NoSuchVersion, also where its file is gone or spoilt.
        """
        version = self.get(number)
        if number in self._texts:
            return dict(self._texts[number])
        try:
            told = json.loads(self._path(number).read_text("utf-8", "surrogatepass"))["texts"]
            return {name: str(told[name]) for name in version.files}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoSuchVersion(f"version {number} cannot be read any more: {error}") from error

    def before(self, version: Version) -> Version | None:
        """What was there before a version, and says something else; None where nothing was, or is kept. Of one that was
        made by going back it is what was there before the one that it has gone back to."""
        there = self._first(version)
        while earlier := [each for each in self._known.values() if each.number < there.number]:
            there = self._first(earlier[-1])
            if there.digest != version.digest:
                return there
        return None

    def _first(self, version: Version) -> Version:
        """Where somebody stands who has gone back: at the version that was there first."""
        while version.is_return and version.of in self._known:
            version = self._known[version.of]
        return version

    def add(self, version: Version, texts: Mapping[str, str]) -> Version:
        """Keep a version under the next free number; tells it with that number."""
        while True:
            numbered = replace(version, number=self._last + 1)
            self._last += 1
            try:
                if self._write(numbered, texts, is_new=True):
                    break
            except FileExistsError:  # another gateway keeps its versions in the same folder
                continue
        self._known[numbered.number] = numbered
        for number in list(self._known)[:-KEPT]:
            self._forget(number)
        return numbered

    def rebase(self, number: int, base: str, base_files: Sequence[str], texts: Mapping[str, str]) -> Version:
        """The files on disk say something else now, or have other names, and this version stays in force."""
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
        for number, path in numbered[-KEPT:]:
            try:
                self._known[number] = read_version(json.loads(path.read_text("utf-8", "surrogatepass")))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                _log.warning("rule version %s is passed over: %s", path, error)

    def _write(self, version: Version, texts: Mapping[str, str], *, is_new: bool) -> bool:
        """Keep it; a folder that takes nothing more leaves it in memory.

        Raises: FileExistsError where it is new, and a file has its number.
        """
        if self._folder is None:
            self._texts[version.number] = texts
            return True
        told = json.dumps(write_version(version) | {"texts": dict(texts)}, indent=1)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with NamedTemporaryFile("w", dir=self._folder, prefix=".", encoding="utf-8", delete=False) as file:
                file.write(told)
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
        return True

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
