"""Stories: a plot, a random cast, and questions about both."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_llm import words
from demo_llm.cast import Character, Thing, Word, draw_character, draw_place, draw_thing
from demo_llm.grammar import expand, polish, tell
from demo_llm.plot import Plot, Question, all_plots

_BEGINNINGS = (
    "[Once upon a time|Once upon a time|Once|Long ago|A long time ago], there [was|lived] "
    "{hero.a}[ named| called|, whose name was] {hero}.",
    "There was once {hero.a} [named|called] {hero}.",
    "{hero} was {hero.a}.",
    "This is the story of {hero}, {hero.a}.",
    "[Far away|In a land far away|Not far from here], there lived {hero.a} [named|called] {hero}.",
    "[Do you know {hero}? {hero}|Everybody knew {hero}. {hero}] was {hero.a}.",
)
_DETAILS = {
    "home": (
        "[{hero}|{hero.he}] lived {hero.home}.",
        Question("Where did {hero} live?", "{hero} lived {hero.home}.", "{hero.home}"),
    ),
    "wear": (
        "[{hero}|{hero.he}] [always|] wore a {color} {wear}.",
        Question("What color was the {wear} of {hero}?", "The {wear} of {hero} was {color}.", "{color}"),
    ),
    "food": (
        "[{hero}|{hero.he}] [liked to eat {food}|loved {food}|liked nothing better than {food}].",
        Question("What did {hero} like to eat?", "{hero} liked to eat {food}.", "{food}"),
    ),
}
_OF_THE_HERO = (
    Question("What was the name of {hero.the}?", "The name of {hero.the} was {hero}.", "{hero}"),
    Question("Who is the story about?", "The story is about {hero.who}.", "{hero.who}"),
    Question("Who was {hero}?", "{hero} was {hero.a}.", "{hero.a}"),
    Question("What kind of character was {hero}?", "{hero} was {hero.one}.", "{hero.one}"),
)
_OF_OTHERS = (
    Question("Who was {other}?", "{other} was {other.one}.", "{other.one}"),
    Question("What was the name of {other.the}?", "The name of {other.the} was {other}.", "{other}"),
)
_THEN = (
    "[Some time later|A few weeks later|In the next month|Not long after that], "
    "[something else happened|there was another adventure]."
)
_ENDINGS = ("{lesson}.", "And so they learned: {lesson}.", "That is how {hero} found out: {lesson}.")
_SMALL_WORDS = frozenset(["a", "an", "the", "of", "to", "in", "on", "at", "and", "for", "is", "it", "with", "by"])


@dataclass(frozen=True, slots=True)
class Answer:
    """A question about a story, and its answer as a sentence and in a few words."""

    asked: str
    answer: str
    brief: str


@dataclass(frozen=True, slots=True)
class Story:
    """A complete story. `themes` are words for it in a request, `summary` its main facts."""

    plot: str
    title: str
    hero: Character
    others: tuple[Character, ...]
    things: tuple[Thing, ...]
    paragraphs: tuple[str, ...]
    themes: tuple[str, ...]
    questions: tuple[Answer, ...]
    summary: str
    lesson: str

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)


def draw_story(
    chance: random.Random, *, kind: str = "", name: str = "", plot: Plot | None = None, sequels: int = 0
) -> Story:
    """A story; the hero is of this kind and name if they are given. Each sequel is one more plot with that hero."""
    plots = [plot or chance.choice(all_plots())]
    if not kind and "hero" in plots[0].kinds:
        kind = chance.choice(plots[0].kinds["hero"])
    hero = draw_character(chance, kind=kind, name=name)
    story = _one(chance, plots[0], hero, ())
    for _ in range(sequels):
        plots.append(chance.choice([one for one in all_plots() if one not in plots and "hero" not in one.kinds]))
        story = _joined(story, _one(chance, plots[-1], hero, story.others), tell(_THEN, {}, chance))
    return story


def _one(chance: random.Random, plot: Plot, hero: Character, known: Sequence[Character]) -> Story:
    """The plot with this hero. A sequel, with known characters, has no beginning, and one of them may come again."""
    scene = _scene(chance, plot, hero, known)
    others = tuple(scene[role] for role in plot.cast if isinstance(scene[role], Character))

    def say(template: str) -> str:
        return tell(template, scene, chance)

    paragraphs = []
    questions = []
    if not known:
        sentences = [say(chance.choice(_BEGINNINGS))]
        details = [detail for detail in _DETAILS if detail not in plot.skip]
        for detail in chance.sample(details, chance.choice((0, 1, 1, 2, 2))):
            sentences.append(say(_DETAILS[detail][0]))
            questions.append(_DETAILS[detail][1])
        paragraphs.append(" ".join(sentences))
    for templates in plot.paragraphs:
        kept = [one.removeprefix("~") for one in templates if not one.startswith("~") or chance.random() < 0.6]
        paragraphs.append(polish(" ".join(expand(one, scene, chance).strip() for one in kept)))
    answers = [_answer(one, scene, chance) for one in (*plot.questions, *questions)]
    answers.append(_answer(chance.choice(_OF_THE_HERO), scene, chance))
    if others:
        scene["other"] = chance.choice(others)
        answers.append(_answer(chance.choice(_OF_OTHERS), scene, chance))
    lesson = say(chance.choice(plot.lessons)).rstrip(".")
    if chance.random() < 0.5:
        scene["lesson"] = lesson
        ending = chance.choice(_ENDINGS)
        scene["lesson"] = lesson if ending.startswith("{") else lesson[0].lower() + lesson[1:]
        paragraphs[-1] += " " + say(ending)
    summary = " ".join([tell("{hero} was {hero.a}.", scene, chance), *(one.answer for one in answers[:3])])
    themes = tuple(say(one)[:1].lower() + say(one)[1:] for one in plot.themes)
    return Story(
        plot.name,
        _title(say(chance.choice(plot.titles))),
        hero,
        others,
        tuple(value for value in scene.values() if isinstance(value, Thing)),
        tuple(paragraphs),
        themes,
        tuple(answers),
        summary,
        lesson,
    )


def _scene(chance: random.Random, plot: Plot, hero: Character, known: Sequence[Character]) -> dict[str, object]:
    """The values in the plot's templates, all different from each other."""
    people = [hero]
    scene: dict[str, object] = {"hero": hero, "food": hero.food}
    for role in plot.cast:
        kinds = [kind for kind in plot.kinds.get(role, ()) if kind not in {one.kind for one in people}]
        old = [one for one in known if one not in people]
        if role == "friend" and old and not kinds and chance.random() < 0.7:
            scene[role] = somebody = chance.choice(old)
        else:
            taken = {*people, *known}
            scene[role] = somebody = draw_character(chance, taken, kind=chance.choice(kinds) if kinds else "")
        people.append(somebody)
    things: list[Thing] = []
    for role in plot.things:
        things.append(draw_thing(chance, things))
        scene[role] = things[-1]
    places: list[object] = []
    for role in plot.places:
        places.append(draw_place(chance, places))  # type: ignore[arg-type]
        scene[role] = places[-1]
    scene |= {
        "weather": chance.choice([name for name, _ in words.table(words.WEATHERS)]),
        "time": chance.choice(words.TIMES),
        "season": chance.choice(words.SEASONS),
        "color": chance.choice(words.COLORS),
        "wear": chance.choice(words.WEARS),
    }
    for role, choices in plot.words.items():
        scene[role] = _settled(chance.choice(choices), scene, chance)
    return scene


def _settled(word: Word, scene: dict[str, object], chance: random.Random) -> Word:
    """The word with its names filled in."""
    further = {key: expand(value, scene, chance) for key, value in vars(word).items()}
    return Word(expand(word, scene, chance), **further)


def _answer(question: Question, scene: dict[str, object], chance: random.Random) -> Answer:
    brief = tell(question.brief, scene, chance).rstrip(".?")
    return Answer(tell(question.asked, scene, chance), tell(question.answer, scene, chance), brief + ".")


def _joined(first: Story, second: Story, between: str) -> Story:
    """One story made of two with the same hero."""
    paragraphs = (*first.paragraphs, f"{between} {second.paragraphs[0]}", *second.paragraphs[1:])
    others = tuple(dict.fromkeys((*first.others, *second.others)))
    summary = f"{first.summary} Later, {second.summary.partition('. ')[2]}"
    return Story(
        f"{first.plot} and {second.plot}",
        first.title,
        first.hero,
        others,
        (*first.things, *second.things),
        paragraphs,
        first.themes,
        (*first.questions, *second.questions),
        summary,
        second.lesson,
    )


def _title(text: str) -> str:
    """The text with the capitals of a title."""
    told = [
        one if one in _SMALL_WORDS and number else one[:1].upper() + one[1:] for number, one in enumerate(text.split())
    ]
    return " ".join(told)
