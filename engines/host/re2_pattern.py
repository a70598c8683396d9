"""RE2's syntax, which Triton's patterns are written in, as patterns of `re`.

A pattern only has to tell whether it matches somewhere in the name of a header, which is ASCII: groups capture nothing,
and Unicode classes hold ASCII characters only.
Source: RE2 `doc/syntax.txt`, `re2/parse.cc`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

# Inclusive code points.
Ranges = Sequence[tuple[int, int]]

_LAST = 0x10FFFF
_MAX_REPEAT = 1000

_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": ((48, 57),),
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_PERL: dict[str, Ranges] = {"d": _POSIX["digit"], "s": ((9, 10), (12, 13), (32, 32)), "w": _WORD}
_CHARACTERS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ASSERTIONS = {"A": r"\A", "z": r"\Z", "b": r"\b", "B": r"(?!\b)", "C": "(?s:.)"}
# Of general categories, by their major class.
_CATEGORIES = {"C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps"}
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_NAMED = re.compile(r"\(\?P?<(\w+)>", re.ASCII)
_COUNT = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_HEX = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_POSIX_CLASS = re.compile(r"\[:(\^?)(\w*):\]")
_UNICODE_CLASS = re.compile(r"([pP])(?:([A-Za-z])|\{(\^?)(\w+)\})")


def compile_re2(pattern: str, *, ignores_case: bool = False) -> re.Pattern[str]:
    """Raises: ValueError for what RE2 does not accept, or what has no counterpart here."""
    try:
        return re.compile(_Translation(pattern, "i" if ignores_case else "").translated(), re.ASCII)
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{pattern}' is no regular expression of RE2: {error}") from error


class _Translation:
    """One pass over a pattern. Each run of a group with the same flags becomes a group of `re` with these flags, so
    that a flag ends where its group ends, and holds across alternatives."""

    def __init__(self, pattern: str, flags: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._flags = frozenset(flags)
        self._groups: list[frozenset[str]] = []  # the flags outside of each open group
        self._names: set[str] = set()
        self._parts: list[str] = []
        self._run: frozenset[str] | None = None  # the flags of the open run
        self._can_repeat = False  # what came last
        self._was_repeated = False

    def translated(self) -> str:
        pattern = self._pattern
        while self._at < len(pattern):
            _READERS.get(pattern[self._at], _Translation._literal)(self)
        if self._groups:
            raise ValueError("missing )")
        self._end_run()
        return "".join(self._parts)

    # What a character begins

    def _literal(self) -> None:
        self._atom(re.escape(self._pattern[self._at]))
        self._at += 1

    def _open(self) -> None:
        pattern = self._pattern
        if not pattern.startswith("(?", self._at):
            self._begin_group(1, self._flags)
            return
        if named := _NAMED.match(pattern, self._at):
            if named[1] in self._names:
                raise ValueError(f"duplicate capture group name: {named[1]}")
            self._names.add(named[1])
            self._begin_group(named.end() - self._at, self._flags)
            return
        flags = _FLAGS.match(pattern, self._at)
        if flags is None:
            raise ValueError(f"invalid perl operator: {pattern[self._at : self._at + 4]}")
        changed = (self._flags | set(flags[1])) - set(flags[2] or "")
        if flags[3] == ":":
            self._begin_group(flags.end() - self._at, changed)
            return
        self._at = flags.end()
        self._flags = changed

    def _close(self) -> None:
        if not self._groups:
            raise ValueError("unexpected )")
        self._end_run()
        self._flags = self._run = self._groups.pop()
        self._parts.append(")")
        self._at += 1
        self._can_repeat, self._was_repeated = True, False

    def _alternative(self) -> None:
        self._end_run()
        self._parts.append("|")
        self._at += 1
        self._can_repeat = self._was_repeated = False

    def _any(self) -> None:
        self._atom(".")
        self._at += 1

    def _begin_of_text(self) -> None:
        self._atom("(?:^)" if "m" in self._flags else r"(?:\A)")
        self._at += 1

    def _end_of_text(self) -> None:
        self._atom("(?:$)" if "m" in self._flags else r"(?:\Z)")
        self._at += 1

    def _repeat(self) -> None:
        self._repeated(self._pattern[self._at], 1)

    def _count(self) -> None:
        count = _COUNT.match(self._pattern, self._at)
        if count is None:
            self._literal()
            return
        least = int(count[1])
        most = least if count[2] is None else int(count[3]) if count[3] else None
        if least > _MAX_REPEAT or (most is not None and not least <= most <= _MAX_REPEAT):
            raise ValueError(f"invalid repetition size: {count[0]}")
        self._repeated(count[0], len(count[0]))

    def _escape(self) -> None:
        pattern, at = self._pattern, self._at + 1
        following = pattern[at : at + 1]
        if following == "Q":
            end = pattern.find("\\E", at)
            quoted = pattern[at + 1 : end if end >= 0 else None]
            for character in quoted:
                self._atom(re.escape(character))
            self._at = at + 1 + len(quoted) + (2 if end >= 0 else 0)
        elif following in _ASSERTIONS:
            self._atom(f"(?:{_ASSERTIONS[following]})")
            self._at += 2
        elif (ranges := self._class_escape()) is not None:
            self._atom(_set_of(ranges))
        else:
            self._atom(re.escape(chr(self._character_escape())))

    def _class(self) -> None:
        pattern, start = self._pattern, self._at
        is_negated = pattern.startswith("^", start + 1)
        self._at = first = start + 1 + is_negated
        ranges: list[tuple[int, int]] = []
        while not pattern.startswith("]", self._at) or self._at == first:
            if self._at >= len(pattern):
                raise ValueError(f"missing ]: {pattern[start:]}")
            ranges += self._class_item()
        self._at += 1
        self._atom(_set_of(ranges, is_negated=is_negated))

    # Parts of classes and escapes

    def _class_item(self) -> Ranges:
        pattern, at = self._pattern, self._at
        if posix := _POSIX_CLASS.match(pattern, at):
            if posix[2] not in _POSIX:
                raise ValueError(f"invalid character class range: {posix[0]}")
            self._at = posix.end()
            return _negated(_POSIX[posix[2]]) if posix[1] else _POSIX[posix[2]]
        if pattern[at] == "\\" and (ranges := self._class_escape()) is not None:
            return ranges
        low = high = self._class_character()
        if pattern.startswith("-", self._at) and not pattern.startswith("-]", self._at):
            self._at += 1
            if self._at >= len(pattern):
                raise ValueError("missing ]")
            high = self._class_character()
            if high < low:
                raise ValueError(f"invalid character class range: {pattern[at : self._at]}")
        return ((low, high),)

    def _class_character(self) -> int:
        if self._pattern[self._at] == "\\":
            return self._character_escape()
        self._at += 1
        return ord(self._pattern[self._at - 1])

    def _class_escape(self) -> Ranges | None:
        """The characters of \\d, \\pN and their like; None for any other escape."""
        pattern, at = self._pattern, self._at + 1
        following = pattern[at : at + 1]
        if following.lower() in _PERL:
            self._at += 2
            ranges = _PERL[following.lower()]
            return _negated(ranges) if following.isupper() else ranges
        if following not in ("p", "P"):
            return None
        name = _UNICODE_CLASS.match(pattern, at)
        if name is None:
            raise ValueError(f"invalid character class range: {pattern[self._at : at + 2]}")
        self._at = name.end()
        ranges = _unicode_class(name[2] or name[4])
        return _negated(ranges) if (name[1] == "P") != bool(name[3]) else ranges

    def _character_escape(self) -> int:
        """The character of an escape that stands for one."""
        pattern, at = self._pattern, self._at + 1
        following = pattern[at : at + 1]
        if not following:
            raise ValueError("trailing \\")
        if found := _OCTAL.match(pattern, at):
            self._at = found.end()
            return int(found[0], 8)
        if found := _HEX.match(pattern, at):
            self._at = found.end()
            code = int(found[1] or found[2], 16)
            if code > _LAST:
                raise ValueError(f"invalid escape sequence: \\{found[0]}")
            return code
        if following in _CHARACTERS:
            self._at += 2
            return _CHARACTERS[following]
        if following.isalnum() or not following.isascii():
            raise ValueError(f"invalid escape sequence: \\{following}")
        self._at += 2
        return ord(following)

    # Writing

    def _atom(self, text: str) -> None:
        self._begin_run()
        self._parts.append(text)
        self._can_repeat, self._was_repeated = True, False

    def _begin_run(self) -> None:
        if self._run != self._flags:
            self._end_run()
            on = "".join(sorted(self._flags - {"U"}))
            off = "".join(sorted({"i", "m", "s"} - self._flags))
            self._parts.append(f"(?{on}{'-' if off else ''}{off}:")
            self._run = self._flags

    def _end_run(self) -> None:
        if self._run is not None:
            self._parts.append(")")
            self._run = None

    def _begin_group(self, num_characters: int, flags: frozenset[str]) -> None:
        self._begin_run()
        self._parts.append("(?:")
        self._groups.append(self._flags)
        self._flags, self._run = flags, None
        self._at += num_characters
        self._can_repeat = self._was_repeated = False

    def _repeated(self, operator: str, num_characters: int) -> None:
        if self._was_repeated:
            raise ValueError(f"bad repetition operator: {operator}")
        if not self._can_repeat:
            raise ValueError(f"no argument for repetition operator: {operator}")
        self._at += num_characters
        # Whether a repetition is greedy does not change whether there is a match.
        self._at += self._pattern.startswith("?", self._at)
        self._parts.append(operator)
        self._was_repeated = True


_READERS: dict[str, Callable[[_Translation], None]] = {
    "(": _Translation._open,
    ")": _Translation._close,
    "|": _Translation._alternative,
    ".": _Translation._any,
    "^": _Translation._begin_of_text,
    "$": _Translation._end_of_text,
    "*": _Translation._repeat,
    "+": _Translation._repeat,
    "?": _Translation._repeat,
    "{": _Translation._count,
    "\\": _Translation._escape,
    "[": _Translation._class,
}


def _negated(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    outside, following = [], 0
    for low, high in sorted(ranges):
        if low > following:
            outside.append((following, low - 1))
        following = max(following, high + 1)
    if following <= _LAST:
        outside.append((following, _LAST))
    return outside


def _set_of(ranges: Ranges, *, is_negated: bool = False) -> str:
    if not ranges:
        return "(?s:.)" if is_negated else "(?!)"
    written = "".join([f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges])
    return f"[{'^' * is_negated}{written}]"


def _unicode_class(name: str) -> Ranges:
    """Raises: ValueError."""
    if name == "Any":
        return ((0, _LAST),)
    codes: Iterable[int] = range(128)
    if name[0] in _CATEGORIES and (len(name) == 1 or (len(name) == 2 and name[1] in _CATEGORIES[name[0]])):
        return [(code, code) for code in codes if unicodedata.category(chr(code)).startswith(name)]
    if name == "Latin":
        return _POSIX["alpha"]
    if name == "Common":
        return [(code, code) for code in codes if not chr(code).isalpha()]
    raise ValueError(f"the character class {name} is not supported: names of headers are ASCII")
