"""What is wrong with a text that is no JSON, in RapidJSON's words: Triton's clients read them.

The walk follows RapidJSON's iterative parser, state by state, so that it stops at the byte where that one stops.
Source: RapidJSON `reader.h` (IterativeParse, ParseString, ParseNumber), `error/en.h`; Triton common `triton_json.h`.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_MISSING_QUOTE = "Missing a closing quotation mark in string."
_BAD_ESCAPE = "Invalid escape character in string."
_BAD_HEX = "Incorrect hex digit after \\u escape in string."
_BAD_SURROGATE = "The surrogate pair in string is invalid."
_NO_VALUE = "Invalid value."
_NO_FRACTION = "Miss fraction part in number."
_NO_EXPONENT = "Miss exponent in number."
_TOO_BIG = "Number too big to be stored in double."


class _State(Enum):
    """Where the walk is."""

    START = auto()
    FINISH = auto()
    OBJECT = auto()
    NEXT_MEMBER = auto()
    KEY = auto()
    COLON = auto()
    MEMBER = auto()
    ARRAY = auto()
    NEXT_ELEMENT = auto()
    ELEMENT = auto()


# What is wrong where nothing that may stand there does.
_MISSING = {
    _State.START: "The document is empty.",
    _State.FINISH: "The document root must not be followed by other values.",
    _State.OBJECT: "Missing a name for object member.",
    _State.NEXT_MEMBER: "Missing a name for object member.",
    _State.KEY: "Missing a colon after a name of object member.",
    _State.COLON: _NO_VALUE,
    _State.MEMBER: "Missing a comma or '}' after an object member.",
    _State.ARRAY: _NO_VALUE,
    _State.NEXT_ELEMENT: _NO_VALUE,
    _State.ELEMENT: "Missing a comma or ']' after an array element.",
}
_TAKES_VALUE = frozenset({_State.START, _State.COLON, _State.ARRAY, _State.NEXT_ELEMENT})
_TAKES_KEY = frozenset({_State.OBJECT, _State.NEXT_MEMBER})
_AFTER_VALUE = {
    _State.START: _State.FINISH,
    _State.COLON: _State.MEMBER,
    _State.ARRAY: _State.ELEMENT,
    _State.NEXT_ELEMENT: _State.ELEMENT,
}
_CLOSES = {
    (_State.OBJECT, b"}"),
    (_State.MEMBER, b"}"),
    (_State.ARRAY, b"]"),
    (_State.ELEMENT, b"]"),
}
_NEXT = {
    (_State.KEY, b":"): _State.COLON,
    (_State.MEMBER, b","): _State.NEXT_MEMBER,
    (_State.ELEMENT, b","): _State.NEXT_ELEMENT,
}
_STRUCTURAL = b"{}[],:"

# Values, names and marks; about a tenth of a second. The host does nothing else meanwhile.
_MAX_STEPS = 100_000
_MAX_BYTES = 256 * 1024
# How far before the end of a text a fault may be that is none but of the end.
_MAX_LOOK_BACK_BYTES = 16

_BLANKS = re.compile(rb"[ \n\r\t]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9A-Fa-f]*")
_DIGITS = re.compile(rb"[0-9]*")
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_LITERALS = {b"n": b"null", b"t": b"true", b"f": b"false"}


class _FaultError(Exception):
    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.text = text
        self.at = at


def fault_of(text: bytes) -> str:
    """`failed to parse the request JSON buffer: ...`, with the byte at which it goes wrong. Of a text that takes too
    long to walk it says no more than that something does."""
    text = text.partition(b"\0")[0]
    try:
        _walk(text[:_MAX_BYTES])
    except _FaultError as fault:
        if len(text) <= _MAX_BYTES or fault.at < _MAX_BYTES - _MAX_LOOK_BACK_BYTES:
            return f"failed to parse the request JSON buffer: {fault.text} at {fault.at}"
    return f"failed to parse the request JSON buffer: Unspecific syntax error. at {len(text)}"


def _walk(text: bytes) -> None:
    state = _State.START
    outer: list[_State] = []  # what comes after the objects and arrays that are open
    at, end = _skip(text, 0), len(text)
    for _ in range(_MAX_STEPS):
        if at >= end:
            break
        byte = text[at : at + 1]
        if state in _TAKES_KEY and byte == b'"':
            at, state = _string(text, at), _State.KEY
        elif state in _TAKES_VALUE and byte in (b"{", b"["):
            outer.append(_AFTER_VALUE[state])
            state = _State.OBJECT if byte == b"{" else _State.ARRAY
            at += 1
        elif (state, byte) in _CLOSES:
            state = outer.pop()
            at += 1
        elif (state, byte) in _NEXT:
            state = _NEXT[state, byte]
            at += 1
        elif state in _TAKES_VALUE and byte not in _STRUCTURAL:
            at, state = _value(text, at), _AFTER_VALUE[state]
        else:
            raise _FaultError(_NO_VALUE if state is _State.START else _MISSING[state], at)
        at = _skip(text, at)
    else:
        return
    if state is not _State.FINISH:
        raise _FaultError(_MISSING[state], at)


def _skip(text: bytes, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def _value(text: bytes, at: int) -> int:
    """Where a string, number or literal ends."""
    byte = text[at : at + 1]
    if byte == b'"':
        return _string(text, at)
    literal = _LITERALS.get(byte)
    if literal is None:
        return _number(text, at)
    return at + _matched(text, at, literal)


def _matched(text: bytes, at: int, literal: bytes) -> int:
    for index, byte in enumerate(literal):
        if text[at + index : at + index + 1] != bytes((byte,)):
            raise _FaultError(_NO_VALUE, at + index)
    return len(literal)


def _number(text: bytes, start: int) -> int:
    at = start + (text[start : start + 1] == b"-")
    if text[at : at + 1] == b"N":
        return at + _matched(text, at, b"NaN")
    if text[at : at + 1] == b"I":
        at += _matched(text, at, b"Inf")
        return at + _matched(text, at, b"inity") if text[at : at + 1] == b"i" else at
    whole = _INTEGER.match(text, at)
    if whole is None or text[at : at + 1] == b"-":
        raise _FaultError(_NO_VALUE, at)
    at = whole.end()
    if text[at : at + 1] == b".":
        at = _digits(text, at + 1, _NO_FRACTION)
    if text[at : at + 1] in (b"e", b"E"):
        at += 1
        if text[at : at + 1] in (b"+", b"-"):
            at += 1
        at = _digits(text, at, _NO_EXPONENT)
    if float(text[start:at]) in (float("inf"), float("-inf")):
        raise _FaultError(_TOO_BIG, start)
    return at


def _digits(text: bytes, at: int, missing: str) -> int:
    found = _DIGITS.match(text, at)
    assert found is not None
    if found.end() == at:
        raise _FaultError(missing, at)
    return found.end()


def _string(text: bytes, at: int) -> int:
    """Where the string that begins with this quote ends."""
    at += 1
    while True:
        plain = _PLAIN.match(text, at)
        assert plain is not None
        at = plain.end()
        byte = text[at : at + 1]
        if byte == b'"':
            return at + 1
        if byte == b"\\":
            at = _escape(text, at)
        elif byte:
            raise _FaultError(_BAD_ESCAPE, at)  # its word for a control character
        else:
            raise _FaultError(_MISSING_QUOTE, at)


def _escape(text: bytes, at: int) -> int:
    kind = text[at + 1 : at + 2]
    if kind and kind in b'"\\/bfnrt':
        return at + 2
    if kind != b"u":
        raise _FaultError(_BAD_ESCAPE, at)
    unit, end = _hex(text, at + 2, at)
    if not 0xD800 <= unit <= 0xDBFF:
        return end
    if text[end : end + 2] != b"\\u":
        raise _FaultError(_BAD_SURROGATE, at)
    low, end = _hex(text, end + 2, at)
    if not 0xDC00 <= low <= 0xDFFF:
        raise _FaultError(_BAD_SURROGATE, at)
    return end


def _hex(text: bytes, at: int, escape_at: int) -> tuple[int, int]:
    found = _HEX.match(text, at, at + 4)
    assert found is not None
    if found.end() != at + 4:
        raise _FaultError(_BAD_HEX, escape_at)
    return int(found[0], 16), at + 4
