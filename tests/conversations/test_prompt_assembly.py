"""Which messages an engine gets of a conversation, and which of a request are new."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversations.prompt_assembly import NOTHING, CompletedPrompt, complete, complete_text, only_new
from gateway.protocol.llm.canonical import Message, Reasoning, Text, ToolCall
from tests.conversations.making import calls, kept, result, said, system, user

A, B, C = user("a?"), user("b?"), user("c?")
OF_A, OF_B = said("a."), said("b.")
BE_KIND, BE_SHORT = system("be kind"), system("be short")


def test_what_is_new_goes_behind_what_is_kept() -> None:
    """If a client sends its new message alone, the engine gets all turns before it."""
    done = complete(kept(A, OF_A), [B])
    assert done == CompletedPrompt((A, OF_A, B), (B,), num_stored=2)


def test_the_first_message_begins_a_conversation() -> None:
    """Without stored turns all messages are new, including answers that the client sends as examples."""
    assert complete(NOTHING, [A, OF_A, B]) == CompletedPrompt((A, OF_A, B), (A, OF_A, B))


@pytest.mark.parametrize("before", [(), (BE_KIND,)])
def test_who_sends_everything_is_told_as_he_sends_it(before: tuple[Message, ...]) -> None:
    """If a client's messages continue the stored ones, only the rest is new."""
    done = complete(kept(A, OF_A), [*before, A, OF_A, B])
    assert done == CompletedPrompt((*before, A, OF_A, B), (B,), before, num_stored=2)


def test_older_turns_than_those_kept_are_the_clients() -> None:
    """Turns that were dropped here, and that the client still sends, go to the engine and are not stored again."""
    done = complete(kept(B, OF_B), [A, OF_A, B, OF_B, C])
    assert done == CompletedPrompt((A, OF_A, B, OF_B, C), (C,), num_stored=2)


def test_the_end_of_a_conversation_is_known() -> None:
    """If a client sends only its last turns, the engine also gets the earlier ones."""
    done = complete(kept(A, OF_A, B, OF_B), [B, OF_B, C])
    assert done == CompletedPrompt((A, OF_A, B, OF_B, C), (C,), num_stored=4)


@pytest.mark.parametrize(
    "report",
    [
        [A, OF_A, user("b, I mean?")],  # the second question differs
        [A, OF_A, B],  # the second answer is to be generated again
        [user("z?"), OF_A, B, OF_B, C],  # the first question differs
    ],
)
def test_a_client_that_tells_it_otherwise_is_right(report: list[Message]) -> None:
    """After an edited message or a regenerated answer the engine gets what the client sends, which replaces what is
    stored."""
    assert complete(kept(A, OF_A, B, OF_B), report) == CompletedPrompt(tuple(report), tuple(report), replaces=True)


def test_an_exchange_that_was_lost_is_found_again() -> None:
    """A client that sends the whole conversation restores an exchange that was lost while Redis was away."""
    done = complete(kept(A, OF_A), [A, OF_A, B, OF_B, C])
    assert done == CompletedPrompt((A, OF_A, B, OF_B, C), (B, OF_B, C), num_stored=2)


def test_answers_that_are_alike_prove_nothing() -> None:
    """An answer that occurs in both does not make an edited conversation the end of the stored one."""
    before = kept(A, OF_A, B, OF_A)
    report = [B, OF_A, C, OF_A, user("d?")]
    assert complete(before, report) == CompletedPrompt(tuple(report), tuple(report), replaces=True)


WORDS = st.sampled_from(["yes", "no", "go on"])
STEPS = st.lists(
    st.tuples(
        st.lists(WORDS, min_size=1, max_size=2),  # the questions
        WORDS,  # the answer
        st.sampled_from(["new", "all", "last"]),  # what the client sends before it
        st.integers(1, 6),  # of its last messages
        st.booleans(),  # whether its answer is a tool call
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(2, 9))
def test_however_a_client_sends_it_a_conversation_is_told_once(
    steps: list[tuple[list[str], str, str, int, bool]], max_turns: int
) -> None:
    """The client sends new messages alone, all of them, or the last few: the stored conversation grows by the new
    messages and the answer, and the engine gets the new messages after all stored ones, or after the client's if it
    sends more."""
    said_so_far: list[Message] = []
    turns: list[Message] = []
    for at, (words, answer, manner, number, calls_tool) in enumerate(steps):
        requests = [user(word) for word in words]
        if said_so_far and said_so_far[-1].tool_calls:
            requests.insert(0, result(said_so_far[-1].tool_calls[0].id))
        sent = {"new": [], "all": said_so_far, "last": said_so_far[-number:]}[manner]
        done = complete(kept(*turns), [*sent, *requests])
        assert not done.replaces
        assert list(done.new) == requests
        report = list(done.messages)
        assert report == [*(sent if len(sent) > len(turns) else turns), *requests]
        answered = calls(f"c{at}") if calls_tool else said(answer)
        said_so_far = [*said_so_far, *requests, answered]
        turns = [*turns, *requests, answered]
        if len(turns) > max_turns:  # whole exchanges are dropped
            places = range(len(turns) - max_turns, len(turns))
            begins = next((place for place in places if turns[place].role == "user"), len(turns))
            turns = turns[begins:]
        if not turns:
            said_so_far = []  # a client that sends everything would send it all as new


def test_a_last_message_of_the_assistants_begins_the_answer() -> None:
    """The beginning of an answer does not show whether the client sends everything."""
    begun = said("{")
    assert complete(kept(A, OF_A), [B, begun]) == CompletedPrompt((A, OF_A, B, begun), (B, begun), num_stored=2)


def test_a_system_message_is_said_once() -> None:
    """A system message stays before all turns until another one replaces it."""
    assert complete(kept(A, OF_A, system=(BE_KIND,)), [B]).messages == (BE_KIND, A, OF_A, B)
    done = complete(kept(A, OF_A, system=(BE_KIND,)), [BE_SHORT, B])
    assert (done.messages, done.system, done.new) == ((BE_SHORT, A, OF_A, B), (BE_SHORT,), (B,))


def test_a_tools_result_is_a_new_message() -> None:
    """The call that a result answers is stored: the client sends the result alone, or everything."""
    before = kept(A, calls("c1"))
    assert complete(before, [result("c1")]).messages == (A, calls("c1"), result("c1"))
    assert complete(before, [A, calls("c1"), result("c1")]).new == (result("c1"),)


@pytest.mark.parametrize(
    "sent_back",
    [
        Message("assistant", (Text("a"), Text("."))),
        Message("assistant", (Reasoning("hm"), Text("a."))),
        Message("assistant", (Text("a."),), name="bot"),
    ],
)
def test_an_answer_is_known_again(sent_back: Message) -> None:
    """An answer is recognized when the client sends it back in other parts, with reasoning, or with a name."""
    assert complete(kept(A, OF_A), [A, sent_back, B]).new == (B,)


def test_arguments_are_compared_by_what_they_say() -> None:
    """A call's arguments are compared as JSON values, since clients format them in their own way."""
    report = Message("assistant", (), (ToolCall("c1", "clock", '{"in": "Paris", "at": 1}'),))
    before = kept(A, calls("c1", arguments='{"at":1,"in":"Paris"}'))
    assert complete(before, [A, report, result("c1")]).new == (result("c1"),)
    assert complete(before, [A, calls("c1", arguments="{}"), result("c1")]).replaces


def test_a_text_goes_on() -> None:
    """Text prompts that continue a text follow all earlier prompts and answers directly."""
    before = kept(user("Once upon"), said(" a time"))
    done = complete_text(before, " there was")
    assert (done.prompt, done.new, done.num_stored) == ("Once upon a time there was", (user(" there was"),), 2)
    assert complete_text(before, "Once upon a time there was") == done


def test_without_what_is_kept_the_last_question_is_new() -> None:
    """While Redis is away the stored turns are unknown: messages before the last answer are taken for stored ones."""
    assert only_new([BE_KIND, A, OF_A, B]) == CompletedPrompt((BE_KIND, A, OF_A, B), (B,))
    assert only_new([B]) == CompletedPrompt((B,), (B,))
