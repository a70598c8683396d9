"""Which file a text is, that somebody sends by a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.rule_versions.errors import RulesRefused
from gateway.yaml.location import Location
from gateway.yaml.problems import Problem

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
