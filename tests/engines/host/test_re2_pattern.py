"""Patterns in RE2's syntax."""

import pytest

from engines.host.re2_pattern import compile_re2

# Pattern, texts in which it matches, texts in which it does not; as google-re2 1.1 has it, case-insensitive from the
# start as Triton's options are.
MATCHES = [
    ("PREFIX_.*", ["prefix_a", "my-Prefix_"], ["prefix-a"]),
    ("(?-i)MY_HEADER.*", ["MY_HEADER_1"], ["my_header_1"]),
    ("^a|(?-i)B|c", ["A", "ab", "xB", "xc"], ["xb", "xC"]),
    ("a(?-i:B)c", ["ABC", "aBc"], ["abc"]),
    ("(a(?-i)B)c", ["aBC", "ABc"], ["abC"]),
    (r"x-[[:alpha:]][[:^digit:]_]\z", ["x-ab", "x-a_"], ["x-a1", "x-ab\n"]),
    (r"^\pL\PN\p{Nd}\p{^Lu}$", ["a-1-"], ["1-1-", "a-1-\n"]),
    (r"\Qa.b*\E\x2d\x{2D}\055", ["A.B*---"], ["axb*---"]),
    (r"^[]a^-]+$", ["]a^-"], ["b"]),
    (r"^[^\W\d]\C[&&--]$", ["a\n&", "_x-"], ["1x&"]),
    (r"^\s$", [" ", "\t"], ["\v"]),
    (r"(?s)^a.b$", ["a\nb"], ["a\nb\n"]),
    (r"(?m)^b$", ["a\nb\nc"], ["ab"]),
    (r"(?U)^a+?{,2}$", ["aa{,2}"], ["aa"]),
    (r"(?P<one>a){2,3}?(?<two>b)", ["aab"], ["ab"]),
    (r"\bx\B", ["a-xy"], ["x", "ax"]),
    (r"\p{Latin}\p{Common}[^\P{Any}]", ["a-x"], ["ab-"]),
    ("", ["", "a"], []),
]

REFUSED = [
    ("(", "missing )"),
    (")", "unexpected )"),
    ("[a", "missing ]: [a"),
    ("[z-a]", "invalid character class range: z-a"),
    ("[[:letters:]]", "invalid character class range: [:letters:]"),
    ("*a", "no argument for repetition operator: *"),
    ("a**", "bad repetition operator: *"),
    ("a*+", "bad repetition operator: +"),
    ("a{1001}", "invalid repetition size: {1001}"),
    ("a{3,2}", "invalid repetition size: {3,2}"),
    ("(?=a)", "invalid perl operator: (?=a"),
    ("(?<!a)", "invalid perl operator: (?<!"),
    ("(?x)a", "invalid perl operator: (?x)"),
    ("(?P<a>b)(?P<a>b)", "duplicate capture group name: a"),
    (r"(a)\1", r"invalid escape sequence: \1"),
    (r"a\Z", r"invalid escape sequence: \Z"),
    (r"\x{110000}", r"invalid escape sequence: \x{110000}"),
    ("a\\", "trailing \\"),
    (r"\pX", "the character class X is not supported"),
    (r"\p{Greek}", "the character class Greek is not supported: names of headers are ASCII"),
]


@pytest.mark.parametrize("pattern, matching, others", MATCHES)
def test_pattern(pattern: str, matching: list[str], others: list[str]) -> None:
    """A pattern matches where RE2 finds it."""
    regex = compile_re2(pattern, ignores_case=True)
    assert [text for text in matching if not regex.search(text)] == []
    assert [text for text in others if regex.search(text)] == []


@pytest.mark.parametrize("pattern, reason", REFUSED)
def test_what_is_no_pattern(pattern: str, reason: str) -> None:
    """The error quotes the pattern and names the part that RE2 does not accept, or that has no counterpart."""
    with pytest.raises(ValueError) as caught:
        compile_re2(pattern)
    assert str(caught.value).startswith(f"'{pattern}' is no regular expression of RE2: ")
    assert reason in str(caught.value)


def test_case_counts_by_default() -> None:
    """RE2 itself tells cases apart; Triton's options put `(?i)` in front."""
    assert not compile_re2("a").search("A")
