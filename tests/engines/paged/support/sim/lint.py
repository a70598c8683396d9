"""Static checks of a Metal source, for rules that a host's compiler does not check."""

from __future__ import annotations

import re

from tests.engines.paged.support.sim.signatures import without_comments

# (pattern, what is wrong with it)
_FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\[\[\s*threadgroup\("), "torch.mps binds no threadgroup arguments: declare arrays with TG_ARRAY"),
    (re.compile(r"\bfunction_constant\b"), "torch.mps sets no function constants: specialise by the generated header"),
    (re.compile(r"\bdouble\b"), "Metal has no double"),
    (re.compile(r"\blong\s+long\b"), "Metal's long has 64 bits; it has no long long"),
    (re.compile(r"\b(?:new|delete|throw|try|catch|dynamic_cast|goto|virtual)\b"), "not in Metal"),
    (re.compile(r"\[\s*[&=]?\s*\]\s*\([^)]*\)\s*(?:->\s*\w+\s*)?\{"), "lambdas need Metal 3.2 (macOS 15)"),
    (re.compile(r"\bif\s+constexpr\b"), "if constexpr needs Metal 4 (macOS 26)"),
    (re.compile(r"\bstd::"), "Metal's library is in the namespace metal"),
    (
        re.compile(r"\bthreadgroup\s+(?:const\s+)?[\w:<>, ]+?\s+\w+\s*(?:\[|;)"),
        "declare threadgroup arrays with TG_ARRAY: the simulation must know them",
    ),
)


def check_text(source: str) -> None:
    """Raises SyntaxError with the line where a rule is broken."""
    for number, line in enumerate(source.split("\n"), 1):
        if not line.isascii():
            raise SyntaxError(f"line {number} is not ASCII, which torch.mps hands to Metal: {line.strip()!r}")
    text = without_comments(source)
    for pattern, rule in _FORBIDDEN:
        if found := pattern.search(text):
            number = text.count("\n", 0, found.start()) + 1
            raise SyntaxError(f"line {number}: '{found.group().strip()}': {rule}")
