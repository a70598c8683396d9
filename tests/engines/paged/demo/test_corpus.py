"""The corpus of the demo's language model: its text is well formed, consistent and reproducible."""

import os
import random
import re
import subprocess
import sys

import pytest
from demo_llm import facts, plot, words
from demo_llm.cast import Character, Word, all_kinds, draw_character, draw_thing, invent_name
from demo_llm.chats import draw_chat
from demo_llm.corpus import digest, document, documents
from demo_llm.grammar import TemplateError, polish, tell
from demo_llm.stories import draw_story

from tests.engines.paged.demo.conftest import SCRIPTS

MIA = Character("Mia", "owl", "old", True, "in a tree", "soup")


@pytest.mark.parametrize(
    ("template", "reply"),
    [
        ("{hero} was {hero.a}.", "Mia was an old owl."),
        ("{hero.he} saw {hero.the}. {hero.his} hat, {hero.himself}!", "She saw the owl. Her hat, herself!"),
        ('"where is it?" asked {hero}. then {hero.he} left.', '"Where is it?" asked Mia. Then she left.'),
        ('"my home is small," said {hero}, "but come in."', '"My home is small," said Mia, "but come in."'),
        ('{hero} said, "Yes." "no." so it was.', 'Mia said, "Yes." "No." So it was.'),
        ("a unicorn, a apple , a umbrella", "A unicorn, an apple, an umbrella"),
        ("[is it you?]. [it is]. {thing.use}", "Is it you? It is. Pulled"),
        ("one\n\ntwo [|] three", "One\n\nTwo three"),
    ],
)
def test_a_template_becomes_english(template: str, reply: str) -> None:
    """The printer fills slots and corrects articles, capitals, spaces and punctuation."""
    scene = {"hero": MIA, "thing": Word("a rope", use="pulled")}
    assert tell(template, scene, random.Random(0)) == reply


def test_every_branch_of_a_template_is_printed() -> None:
    """Alternatives, including nested ones, are chosen at random."""
    reply = {tell("[a|b[1|2|]]", {}, random.Random(seed)) for seed in range(100)}
    assert reply == {"A", "B1", "B2", "B"}


@pytest.mark.parametrize("template", ["[a|b", "a|b", "a]", "{nobody}", "{hero.age}"])
def test_a_template_that_cannot_be_printed_is_refused(template: str) -> None:
    """A template with unbalanced brackets or names missing from the scene is refused."""
    with pytest.raises(TemplateError, match=r"bracket|is not in the scene"):
        tell(template, {"hero": MIA}, random.Random(0))


@pytest.mark.parametrize("one", plot.all_plots(), ids=lambda one: one.name)
def test_a_plot_prints_whole_sentences(one: plot.Plot) -> None:
    """Any random choice yields whole sentences: no template syntax remains, quotations are closed, sentences begin with
    a capital and end with a mark."""
    for seed in range(30):
        story = draw_story(random.Random(f"{one.name} {seed}"), plot=one)
        for paragraph in (*story.paragraphs, story.summary, *(each.answer for each in story.questions)):
            assert not re.search(r"[\[\]{}|~]|  |\.\.| [.,!?]|[.,!?][A-Za-z]", paragraph), paragraph
            assert paragraph.count('"') % 2 == 0, paragraph
            assert paragraph[0].isupper() or paragraph[0] == '"', paragraph
            assert paragraph.endswith((".", "!", "?", '."', '!"', '?"')), paragraph
            assert not re.search(r'(?<!Mr)[.!?] "?[a-z]', paragraph), paragraph
            assert not re.search(r"\b[Aa] [aeio]", paragraph.replace("a one", "")), paragraph
            assert not re.search(r"\b(\w+) \1\b", paragraph.replace("that that", "")), paragraph


@pytest.mark.parametrize("one", plot.all_plots(), ids=lambda one: one.name)
def test_questions_about_a_story_have_answers_in_it(one: plot.Plot) -> None:
    """The names in questions and answers occur in the story, and no two characters share a name or a kind."""
    for seed in range(10):
        story = draw_story(random.Random(f"{one.name} {seed}"), plot=one)
        people = (story.hero, *story.others)
        assert len({each.name for each in people}) == len({each.kind for each in people}) == len(people)
        assert story.hero.name in story.text
        reply = set(re.findall(r"\w+", story.text))
        for each in story.questions:
            names = {name for name in (*words.HER_NAMES, *words.HIS_NAMES) if re.search(rf"\b{name}\b", each.answer)}
            assert names <= reply, (each, story.text)
        assert len(story.questions) >= 4 and story.lesson and story.themes and story.title[0].isupper()


def test_a_request_gets_what_it_names() -> None:
    """A story requested by kind or name has a hero of that kind and name."""
    requested = 0
    for seed in range(250):
        chat = [message for message in draw_chat(random.Random(seed)) if message.role != "system"]
        found = re.search(r"story about an? (\w+) (?:named|called) (\w+)", chat[0].content)
        if found:
            requested += 1
            kind, name = found.groups()
            assert kind in all_kinds() and kind in chat[1].content and name in chat[1].content, chat
    assert requested > 20


def test_a_conversation_takes_turns() -> None:
    """A conversation has at most one system message, then alternating user and assistant messages, the assistant's
    last."""
    for seed in range(200):
        roles = [message.role for message in draw_chat(random.Random(seed))]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == ["user", "assistant"] * (len(turns) // 2) and turns


def test_sums_are_right() -> None:
    """The sums in the corpus are correct."""
    for seed in range(200):
        one = facts.draw_sum(random.Random(seed))
        found = re.search(r"(\d+) ([+-]) (\d+)", one.asked)
        if found:
            first, second = int(found[1]), int(found[3])
            assert one.answer.endswith(f"= {first + second if found[2] == '+' else first - second}.")
        else:
            first, sign, second = re.findall(r"What is (\w+) (\w+) (\w+)\?", one.asked)[0]
            numbers = facts.NUMBERS
            right = numbers.index(first) + (1 if sign == "plus" else -1) * numbers.index(second)
            assert one.answer.lower().endswith(f" is {numbers[right]}.")


def test_a_reading_holds_its_answer() -> None:
    """Each question of a generated reading is answered by the sentences before it."""
    for seed in range(200):
        one = facts.draw_reading(random.Random(seed))
        reply, _, requested = one.asked.rpartition(". ")
        assert requested.endswith("?")
        assert one.brief.rstrip(".").lower().split(" ", 1)[-1] in reply.lower(), one  # without in, at, a


def test_the_corpus_is_the_same_every_time() -> None:
    """A seed yields the same corpus in any process; another seed or split yields another corpus."""
    program = "from demo_llm.corpus import *; print(digest(documents(7, 40)))"
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(SCRIPTS)}
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    ).stdout.strip()
    assert elsewhere == digest(documents(7, 40))
    assert len({elsewhere, digest(documents(8, 40)), digest(documents(7, 40, "held out"))}) == 3


def test_documents_differ() -> None:
    """Thousands of generated stories are all different."""
    stories = [one.text for one in documents(0, 600) if one.text]
    assert len(set(stories)) == len(stories) > 140
    assert document(random.Random("train 0 3")) == list(documents(0, 4))[3]


def test_names_agree_with_pronouns() -> None:
    """Characters with female names are female, a king is male, and invented names are rarely known names."""
    for seed in range(200):
        one = draw_character(random.Random(seed))
        assert (one.name in words.HER_NAMES) == one.is_her
    assert not draw_character(random.Random(0), kind="king").is_her
    known = {*words.HER_NAMES, *words.HIS_NAMES}
    assert sum(invent_name(random.Random(seed)) in known for seed in range(200)) < 5
    assert draw_thing(random.Random(0), noun="lantern").noun == "lantern"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n=== lost\nthemes: a\n---\nOne.\n", "lost: needs a paragraph and a last part"),
        ("\n=== lost\nthemes\n---\nOne.\n---\n! x\n", "lost: 'themes' has no colon"),
        ("\n=== lost\nthemes: a\n---\nOne.\n---\n? who // Mia\n", "neither a question with two answers nor a lesson"),
    ],
)
def test_a_plot_that_cannot_be_read_is_named(text: str, message: str) -> None:
    """The error for an unreadable plot names the plot and the line."""
    with pytest.raises(plot.PlotError, match=message):
        list(plot.read(text))


def test_polishing_twice_changes_nothing() -> None:
    """Polishing polished text leaves it unchanged."""
    for one in documents(3, 100):
        assert polish(one.text) == one.text
