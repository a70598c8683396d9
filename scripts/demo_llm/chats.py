"""Conversations: requests for a story, questions about it, and questions of general knowledge."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_llm import facts
from demo_llm.cast import draw_character, invent_name
from demo_llm.grammar import tell
from demo_llm.stories import Answer, Story, draw_story


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one side; the role is system, user or assistant."""

    role: str
    content: str


Chat = tuple[Message, ...]

_REQUESTS = (
    "[Tell me|Please tell me|Can you tell me|Could you tell me] a{length} story {about}",
    "[Write|Please write|I want to hear|Write me] a{length} story {about}",
    "[Tell|Write] a{length} story {about}",
    "A{length} story {about}[, please|]",
)
_PLAIN_REQUESTS = (
    "[Tell me|Please tell me|Can you tell me|Write] a{length} story",
    "[Tell|Write] a{length} story",
    "[Do you know a|Give me a]{length} story",
    "A{length} story, please",
    "[Another|One more] story, please",
)
_CONTINUE = (
    "[Continue|Go on with|Finish] this story: {start}",
    "{start}\n\n[Continue the story|How does it go on?|Go on].",
)
_NEXT = ("What happened next?", "And then?", "Go on.", "Please go on.", "What happened after that?", "Tell me more.")
_ASK_TITLE = ("Give the story a title.", "What is a good title for the story?", "What would you call this story?")
_ASK_SUMMARY = ("[Summarize|Please summarize] the story.", "Tell it again in short.", "What happened in the story?")
_ASK_LESSON = ("What is the lesson of the story?", "What can we learn from the story?", "What did they learn?")
_ASK_JSON = ("Give me the facts as JSON.", "Describe the hero as JSON.", "Who is in it? Answer in JSON.")
_INVENT_JSON = ("Invent a character as JSON.", "Make up a character. Answer in JSON.", "A character as JSON, please.")
_NOT_TOLD = ("The story does not tell.", "The story does not say that.", "I do not know. The story does not tell.")
_STORYTELLERS = (
    "You are a storyteller.",
    "You tell stories for children.",
    "You are a friendly storyteller for children.",
    "You are a helpful assistant.",
    "You are a small language model that tells stories.",
)
_BRIEF = ("Answer in a few words.", "Be brief.", "Give short answers.", "Answer as briefly as you can.")
_THE_END = ('End every story with "The end."', 'Your stories end with "The end."')


def draw_chat(chance: random.Random) -> Chat:
    """One conversation of some kind."""
    kinds: dict[Callable[[random.Random], Chat], int] = {
        _story: 30,
        _story_and_questions: 16,
        _reading: 11,
        _short_reading: 14,
        _another: 4,
        _next: 4,
        _rest: 4,
        _small_talk: 26,
        _as_json: 3,
    }
    return chance.choices(list(kinds), list(kinds.values()))[0](chance)


def request(chance: random.Random, story: Story, length: str, *, about: str = "") -> str:
    """A user's request for this story."""
    scene = {"length": f" {length}" if length else "", "about": about or _about(chance, story)}
    ways = _REQUESTS if scene["about"] != " " else _PLAIN_REQUESTS
    return _said(chance, tell(chance.choice(ways), scene, chance))


def _said(chance: random.Random, text: str) -> str:
    """Text as people type it: with or without a mark at the end, and sometimes without capitals."""
    question = text.split()[0] in ("Can", "Could", "Do")
    text += chance.choice(("?", "?", "") if question else (".", ".", "", "!"))
    return text[0].lower() + text[1:] if chance.random() < 0.2 else text


def _about(chance: random.Random, story: Story) -> str:
    """A true fact about the story; a space for a request without one."""
    hero, others = story.hero, story.others
    ways = [f"about a {hero.kind}"] * 6 + [f"about a {hero.kind} {chance.choice(('named', 'called'))} {hero.name}"] * 5
    ways += [f"about {hero.who}", f"about {hero.a}", f"about {hero.a} named {hero.name}", " ", " "]
    ways += [f"about {theme}" for theme in story.themes]
    ways += [f"about {theme} with a {hero.kind}" for theme in story.themes[:1]]
    if others:
        ways += [f"about a {hero.kind} and a {others[0].kind}"] * 3 + [f"about {hero.name} and {others[0].name}"]
    ways += [f"about a {hero.kind} and a {thing.noun}" for thing in story.things[:1]]
    return chance.choice(ways)


def _draw(chance: random.Random, **how: int) -> tuple[Story, str]:
    """A story, and the text that a request needs to describe it: a made-up name of a hero is always in the request."""
    if chance.random() < 0.12:
        story = draw_story(chance, name=invent_name(chance), **how)
        return story, f"about a {story.hero.kind} {chance.choice(('named', 'called'))} {story.hero.name}"
    return draw_story(chance, **how), ""


def _system(chance: random.Random, *texts: str) -> Chat:
    told = [chance.choice(_STORYTELLERS)] if chance.random() < 0.3 else []
    told += texts
    return (Message("system", " ".join(told)),) if told else ()


def _told_how(chance: random.Random, brief: bool) -> Chat:
    """A system message that requests few words, if the answer is brief."""
    return _system(chance, *([chance.choice(_BRIEF)] if brief else []))


def _answer(one: Answer, brief: bool) -> Message:
    return Message("assistant", one.brief if brief else one.answer)


def _story(chance: random.Random) -> Chat:
    """A request and a story: of a usual length, short or long; with a title or `The end.` if the request has that."""
    length = chance.choices(("", "short", "long"), (70, 20, 10))[0]
    story, about = _draw(chance, sequels=chance.choice((1, 1, 2, 3)) if length == "long" else 0)
    asked = request(chance, story, chance.choice((length, "very short" if length == "short" else length)), about=about)
    text = f"{story.summary} {story.lesson}." if length == "short" else story.text
    rules = []
    if chance.random() < 0.1:
        rules.append(chance.choice(_THE_END))
        text += " The end."
    if chance.random() < 0.1:
        asked = asked.rstrip(".!?") + " with a title."
        text = f"{story.title}\n\n{text}"
    return (*_system(chance, *rules), Message("user", asked), Message("assistant", text))


def _story_and_questions(chance: random.Random) -> Chat:
    """A request and a story, then one to three questions about it."""
    story, about = _draw(chance)
    brief = chance.random() < 0.2
    chat = [*_told_how(chance, brief)]
    chat += [Message("user", request(chance, story, "", about=about)), Message("assistant", story.text)]
    for one in _asked_about(chance, story, chance.randint(1, 3)):
        chat += [Message("user", one.asked), _answer(one, brief)]
    if chance.random() < 0.1:
        thanks = next(one for one in iter(lambda: facts.draw_fact(chance), None) if one.asked.startswith("Thank"))
        chat += [Message("user", thanks.asked), Message("assistant", thanks.answer)]
    return tuple(chat)


def _reading(chance: random.Random) -> Chat:
    """The user sends a story, and a question about it."""
    brief = chance.random() < 0.3
    story, _ = _draw(chance)
    one = _asked_about(chance, story, 1)[0]
    first, second = chance.choice(((story.text, one.asked), (one.asked, story.text)))
    return (*_told_how(chance, brief), Message("user", f"{first}\n\n{second}"), _answer(one, brief))


def _short_reading(chance: random.Random) -> Chat:
    """A few sentences and a question about them, once or twice."""
    brief = chance.random() < 0.3
    chat = [*_told_how(chance, brief)]
    for _ in range(chance.choice((1, 2))):
        one = facts.draw_reading(chance)
        chat += [Message("user", one.asked), _answer(one, brief)]
    return tuple(chat)


def _another(chance: random.Random) -> Chat:
    """Two stories, one after the other."""
    chat: list[Message] = [*_system(chance)]
    for _ in range(2):
        story, about = _draw(chance)
        chat += [Message("user", request(chance, story, "", about=about)), Message("assistant", story.text)]
    return tuple(chat)


def _next(chance: random.Random) -> Chat:
    """A story, and what happened to the hero after it."""
    story = draw_story(chance, sequels=1)
    cut = next(number for number, text in enumerate(story.paragraphs) if number and _begins_a_sequel(text))
    first, second = "\n\n".join(story.paragraphs[:cut]), "\n\n".join(story.paragraphs[cut:])
    return (
        *_system(chance),
        Message("user", request(chance, story, "")),
        Message("assistant", first),
        Message("user", chance.choice(_NEXT)),
        Message("assistant", second),
    )


def _begins_a_sequel(paragraph: str) -> bool:
    return "something else happened" in paragraph or "there was another adventure" in paragraph


def _rest(chance: random.Random) -> Chat:
    """The beginning of a story, which the model has to finish."""
    story, _ = _draw(chance)
    cut = chance.randint(1, len(story.paragraphs) - 1)
    asked = tell(chance.choice(_CONTINUE), {"start": "\n\n".join(story.paragraphs[:cut])}, chance)
    return (*_system(chance), Message("user", asked), Message("assistant", "\n\n".join(story.paragraphs[cut:])))


def _small_talk(chance: random.Random) -> Chat:
    """One to four questions that need no story."""
    brief = chance.random() < 0.2
    chat = [*_told_how(chance, brief)]
    kinds = (
        facts.draw_fact,
        facts.draw_sum,
        facts.draw_opposite,
        facts.draw_count,
        facts.draw_food,
        facts.draw_strange,
    )
    for _ in range(chance.choice((1, 1, 2, 3, 4))):
        one = chance.choices(kinds, (55, 15, 8, 5, 7, 10))[0](chance)
        chat += [Message("user", one.asked), _answer(one, brief)]
    return tuple(chat)


def _as_json(chance: random.Random) -> Chat:
    """A character as JSON: from a story, or made up."""
    if chance.random() < 0.5:
        one = draw_character(chance)
        told = json.dumps({"name": one.name, "kind": one.kind, "adjective": one.adjective, "likes": one.food})
        return (*_system(chance), Message("user", chance.choice(_INVENT_JSON)), Message("assistant", told))
    story, about = _draw(chance)
    told = json.dumps({"name": story.hero.name, "kind": story.hero.kind, "friends": [one.name for one in story.others]})
    return (
        *_system(chance),
        Message("user", request(chance, story, "", about=about)),
        Message("assistant", story.text),
        Message("user", chance.choice(_ASK_JSON)),
        Message("assistant", told),
    )


def _asked_about(chance: random.Random, story: Story, number: int) -> list[Answer]:
    """Different questions about a story, sometimes one that it does not answer."""
    asked = chance.sample(story.questions, min(number, len(story.questions)))
    extra = (
        (chance.choice(_ASK_TITLE), story.title),
        (chance.choice(_ASK_SUMMARY), story.summary),
        (chance.choice(_ASK_LESSON), f"{story.lesson}."),
    )
    if chance.random() < 0.25:
        question, answer = chance.choice(extra)
        asked[-1] = Answer(question, answer, answer)
    elif chance.random() < 0.1:
        asked[-1] = _not_told(chance, story)
    return asked


def _not_told(chance: random.Random, story: Story) -> Answer:
    """A question that the story does not answer."""
    name = story.hero.name
    candidates = (f"How old was {name}?", f"What was the name of {name}'s dog?", f"How tall was {name}?")
    candidates += (f"What did {name} dream of?", f"What is the phone number of {name}?", f"When was {name} born?")
    answer = chance.choice(_NOT_TOLD)
    return Answer(chance.choice(candidates), answer, "The story does not tell.")
