"""Questions that need no story: common knowledge, sums, small readings, and topics that a small model does not know."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path

from demo_llm import words
from demo_llm.cast import draw_character, draw_place, draw_thing
from demo_llm.grammar import polish, tell
from demo_llm.stories import Answer

FACTS = Path(__file__).parent / "facts.txt"
NUMBERS = words.listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
OPPOSITES = words.listed(
    "big/small hot/cold day/night up/down left/right old/new happy/sad fast/slow hard/soft light/dark wet/dry "
    "open/closed high/low long/short early/late full/empty good/bad loud/quiet strong/weak near/far first/last "
    "sweet/sour rich/poor clean/dirty thick/thin heavy/light inside/outside brave/afraid summer/winter"
)
# Topics that users may ask about, and that no story covers.
STRANGE_TOPICS = words.listed(
    "quantum physics; the stock market; the theory of relativity; taxes; world politics; computer programming; "
    "Python; chemistry; the French language; the president; football results; the capital of France; algebra; "
    "medicine; the law; electric cars; the news; black holes; philosophy; the history of Rome; a database; the "
    "internet; the weather tomorrow; machine learning; insurance; airplanes; the economy; DNA; volcanoes; "
    "religion; video games; movies; marketing",
    "; ",
)
_STRANGE = (
    "[What is|Explain|Tell me about|What do you know about|Can you explain|Write an essay about|Help me with] {topic}"
    "[.|?|]"
)
_UNKNOWN = (
    "I do not know [that|anything about that]. I am a small model, and I only know stories. [Shall I tell you one?|]"
)


@cache
def common_knowledge() -> tuple[tuple[str, str, str], ...]:
    """Templates of facts.txt: question, answer, brief answer."""
    lines = [line for line in FACTS.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return tuple((asked, answer, brief) for asked, answer, brief in (line.split(" // ") for line in lines))


def draw_fact(chance: random.Random) -> Answer:
    """A question of common knowledge."""
    asked, answer, brief = chance.choice(common_knowledge())
    return Answer(tell(asked, {}, chance), tell(answer, {}, chance), tell(brief, {}, chance).rstrip(".") + ".")


def draw_opposite(chance: random.Random) -> Answer:
    one, other = chance.choice(OPPOSITES).split("/")
    if chance.random() < 0.5:
        one, other = other, one
    return Answer(f"What is the opposite of {one}?", f"The opposite of {one} is {other}.", other.capitalize() + ".")


def draw_sum(chance: random.Random) -> Answer:
    """A sum of numbers up to ten, in words or in digits; or a difference."""
    first, second = chance.randint(0, 10), chance.randint(0, 10)
    sign, result = "plus", first + second
    if chance.random() < 0.35:
        first, second = max(first, second), min(first, second)
        sign, result = "minus", first - second
    if chance.random() < 0.5:
        mark = {"plus": "+", "minus": "-"}[sign]
        asked = chance.choice((f"What is {first} {mark} {second}?", f"{first} {mark} {second} = ?"))
        return Answer(asked, f"{first} {mark} {second} = {result}.", f"{result}.")
    one, two, three = (NUMBERS[number] for number in (first, second, result))
    return Answer(
        f"What is {one} {sign} {two}?", f"{one.capitalize()} {sign} {two} is {three}.", f"{three.capitalize()}."
    )


def draw_count(chance: random.Random) -> Answer:
    last = chance.randint(2, 20)
    counted = ", ".join(NUMBERS[1 : last + 1]).capitalize() + "."
    return Answer(chance.choice((f"Count to {NUMBERS[last]}.", f"Can you count to {NUMBERS[last]}?")), counted, counted)


def draw_food(chance: random.Random) -> Answer:
    """The food of an animal in the stories."""
    table = [(kind, food) for kind, _, food, _ in words.table(words.KINDS) if kind not in words.PEOPLE]
    kind, food = chance.choice(table)
    return Answer(
        f"What does {_a(kind)} like to eat?", polish(f"a {kind} likes to eat {food}."), food.capitalize() + "."
    )


def draw_strange(chance: random.Random) -> Answer:
    """A small model's answer to a question that is not about stories."""
    answer = tell(_UNKNOWN, {}, chance)
    return Answer(tell(_STRANGE, {"topic": chance.choice(STRANGE_TOPICS)}, chance), answer, "I do not know that.")


def draw_reading(chance: random.Random) -> Answer:
    """A few sentences and a question that one of them answers; the question comes after the sentences."""
    return chance.choice((_who_has_what, _who_is_where, _who_got_it, _who_is_what))(chance)


def _people(chance: random.Random, number: int) -> list[str]:
    people: list[str] = []
    while len(people) < number:
        name = draw_character(chance).name
        if name not in people:
            people.append(name)
    return people


def _who_has_what(chance: random.Random) -> Answer:
    people = _people(chance, chance.choice((2, 3, 4)))
    things = [draw_thing(chance)]
    while len(things) < len(people):
        things.append(draw_thing(chance, things))
    told = " ".join(polish(f"{name} has a {thing}.") for name, thing in zip(people, things, strict=True))
    name, thing = chance.choice(list(zip(people, things, strict=True)))
    full = polish(f"{name} has a {thing}.")
    if chance.random() < 0.5:
        return Answer(f"{told} What does {name} have?", full, polish(f"a {thing}."))
    return Answer(f"{told} Who has the {thing.noun}?", f"{name} has the {thing.noun}.", f"{name}.")


def _who_is_where(chance: random.Random) -> Answer:
    people = _people(chance, chance.choice((2, 3)))
    where: dict[str, object] = {}
    told = []
    for _ in range(chance.randint(2, 5)):
        name, place = chance.choice(people), draw_place(chance)
        where[name] = place.at
        told.append(f"{name} {chance.choice(('went', 'walked', 'ran'))} to {place}.")
    name = chance.choice(list(where))
    return Answer(f"{' '.join(told)} Where is {name}?", f"{name} is {where[name]}.", polish(f"{where[name]}."))


def _who_got_it(chance: random.Random) -> Answer:
    people = _people(chance, chance.choice((2, 3, 4)))
    thing = draw_thing(chance)
    told = [polish(f"{people[0]} had a {thing}.")]
    told += [f"{giver} gave the {thing.noun} to {taker}." for giver, taker in pairwise(people)]
    last = people[-1]
    return Answer(f"{' '.join(told)} Who has the {thing.noun} now?", f"{last} has the {thing.noun} now.", f"{last}.")


def _who_is_what(chance: random.Random) -> Answer:
    cast = [draw_character(chance)]
    while len(cast) < 3:
        cast.append(draw_character(chance, cast))
    told = " ".join(polish(f"{one} is {one.a}.") for one in cast)
    one = chance.choice(cast)
    if chance.random() < 0.5:
        return Answer(f"{told} Who is {one.the}?", f"{one} is {one.the}.", f"{one}.")
    return Answer(f"{told} What is {one}?", polish(f"{one} is {one.one}."), polish(f"{one.one}."))


def _a(noun: str) -> str:
    return polish(f"x a {noun}")[2:]
