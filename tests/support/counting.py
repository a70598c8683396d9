"""The text of the tests' language models: they count, so that any prefix determines the continuation.

A text begins with `one` and ends by itself after `twenty`. A text beyond twenty continues from `ninetynine` with
`twentyone` and never ends; a chat starts there when its last user message contains `endless`.
"""

import itertools
import re

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = [*ONES, *TEENS, *(ten + one for ten in TENS for one in ["", *ONES])]  # one .. ninetynine

FIRST = WORDS[0]
LAST = "twenty"  # the last word of a text that ends
FIRST_ENDLESS = "twentyone"
ENDLESS = "endless"  # a user's message with this word gets a text without an end

# Word -> its successor; None: the text ends.
NEXT: dict[str, str | None] = {
    **dict(itertools.pairwise(WORDS)),
    LAST: None,
    WORDS[-1]: FIRST_ENDLESS,
}

_LAST_WORD = re.compile(r"( ?)(?<![^\W\d_])([a-z]+)\Z")


def word_after(text: str) -> str | None:
    """The word that follows a text: the next number, the first one after anything else, None after the last.

    Without a space before it only a word that begins a text counts as one.
    """
    found = _LAST_WORD.search(text)
    if found is None or not (found[1] or found[2] in (FIRST, FIRST_ENDLESS)):
        return FIRST
    return NEXT.get(found[2], FIRST)


def counted(last_number: int, first_number: int = 1) -> str:
    """The words from one number to another, both included, as a complete text."""
    return " ".join(WORDS[first_number - 1 : last_number])
