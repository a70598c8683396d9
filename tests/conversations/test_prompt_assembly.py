"""What an engine is told of a conversation, and what of a request is new."""

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
    """A client that sends its new message alone is told with all the turns before it."""
    done = complete(kept(A, OF_A), [B])
    assert done == CompletedPrompt((A, OF_A, B), (B,), num_stored=2)


def test_the_first_message_begins_a_conversation() -> None:
    """Where nothing is kept all that comes is new, answers that the client shows as examples too."""
    assert complete(NOTHING, [A, OF_A, B]) == CompletedPrompt((A, OF_A, B), (A, OF_A, B))


@pytest.mark.parametrize("before", [(), (BE_KIND,)])
def test_who_sends_everything_is_told_as_he_sends_it(before: tuple[Message, ...]) -> None:
    """Where a client's messages go on from what is kept, only the rest is new."""
    done = complete(kept(A, OF_A), [*before, A, OF_A, B])
    assert done == CompletedPrompt((*before, A, OF_A, B), (B,), before, num_stored=2)


def test_older_turns_than_those_kept_are_the_clients() -> None:
    """Turns that were dropped here, and that the client still has, go to the engine and are not kept anew."""
    done = complete(kept(B, OF_B), [A, OF_A, B, OF_B, C])
    assert done == CompletedPrompt((A, OF_A, B, OF_B, C), (C,), num_stored=2)


def test_the_end_of_a_conversation_is_known() -> None:
    """A client that has room for its last turns alone gets the earlier ones back."""
    done = complete(kept(A, OF_A, B, OF_B), [B, OF_B, C])
    assert done == CompletedPrompt((A, OF_A, B, OF_B, C), (C,), num_stored=4)


@pytest.mark.parametrize(
    "told",
    [
        [A, OF_A, user("b, I mean?")],  # the second question is another
        [A, OF_A, B],  # the second answer is to come anew
        [user("z?"), OF_A, B, OF_B, C],  # the first question was another
    ],
)
def test_a_client_that_tells_it_otherwise_is_right(told: list[Message]) -> None:
    """A message edited, an answer made anew: the engine is told what the client sends, and that is kept from now on."""
    assert complete(kept(A, OF_A, B, OF_B), told) == CompletedPrompt(tuple(told), tuple(told), replaces=True)


def test_an_exchange_that_was_lost_is_found_again() -> None:
    """Where Redis was away for one, a client that keeps everything brings it back."""
    done = complete(kept(A, OF_A), [A, OF_A, B, OF_B, C])
    assert done == CompletedPrompt((A, OF_A, B, OF_B, C), (B, OF_B, C), num_stored=2)


def test_answers_that_are_alike_prove_nothing() -> None:
    """An edited conversation is not taken for the end of what is kept, because an answer in it comes again there."""
    before = kept(A, OF_A, B, OF_A)
    told = [B, OF_A, C, OF_A, user("d?")]
    assert complete(before, told) == CompletedPrompt(tuple(told), tuple(told), replaces=True)


WORDS = st.sampled_from(["yes", "no", "go on"])
STEPS = st.lists(
    st.tuples(
        st.lists(WORDS, min_size=1, max_size=2),  # what is asked
        WORDS,  # the answer
        st.sampled_from(["new", "all", "last"]),  # what the client sends before it
        st.integers(1, 6),  # of its last messages
        st.booleans(),  # whether its answer comes as a call of a tool
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(2, 9))
def test_however_a_client_sends_it_a_conversation_is_told_once(
    steps: list[tuple[list[str], str, str, int, bool]], max_turns: int
) -> None:
    """New messages alone, all of them, or the last few: what is kept grows by the new ones and the answer, and the
    engine is told these, with all that is kept before them, and where the client has more, that."""
    said_so_far: list[Message] = []
    turns: list[Message] = []
    for at, (words, answer, manner, number, calls_tool) in enumerate(steps):
        asked = [user(word) for word in words]
        if said_so_far and said_so_far[-1].tool_calls:
            asked.insert(0, result(said_so_far[-1].tool_calls[0].id))
        sent = {"new": [], "all": said_so_far, "last": said_so_far[-number:]}[manner]
        done = complete(kept(*turns), [*sent, *asked])
        assert not done.replaces
        assert list(done.new) == asked
        told = list(done.messages)
        assert told == [*(sent if len(sent) > len(turns) else turns), *asked]
        answered = calls(f"c{at}") if calls_tool else said(answer)
        said_so_far = [*said_so_far, *asked, answered]
        turns = [*turns, *asked, answered]
        if len(turns) > max_turns:  # whole exchanges are dropped
            places = range(len(turns) - max_turns, len(turns))
            begins = next((place for place in places if turns[place].role == "user"), len(turns))
            turns = turns[begins:]
        if not turns:
            said_so_far = []  # a client that sends everything would tell it all anew


def test_a_last_message_of_the_assistants_begins_the_answer() -> None:
    """It says nothing of whether the client sends everything."""
    begun = said("{")
    assert complete(kept(A, OF_A), [B, begun]) == CompletedPrompt((A, OF_A, B, begun), (B, begun), num_stored=2)


def test_a_system_message_is_said_once() -> None:
    """It stays before all turns until another one is said."""
    assert complete(kept(A, OF_A, system=(BE_KIND,)), [B]).messages == (BE_KIND, A, OF_A, B)
    done = complete(kept(A, OF_A, system=(BE_KIND,)), [BE_SHORT, B])
    assert (done.messages, done.system, done.new) == ((BE_SHORT, A, OF_A, B), (BE_SHORT,), (B,))


def test_a_tools_result_is_a_new_message() -> None:
    """The call that it answers is kept: the client sends the result alone, or everything."""
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
    """Clients send an answer back as they keep it: in other parts, with thoughts, with a name."""
    assert complete(kept(A, OF_A), [A, sent_back, B]).new == (B,)


def test_arguments_are_compared_by_what_they_say() -> None:
    """A client that has read a call's arguments writes them in its own way."""
    told = Message("assistant", (), (ToolCall("c1", "clock", '{"in": "Paris", "at": 1}'),))
    before = kept(A, calls("c1", arguments='{"at":1,"in":"Paris"}'))
    assert complete(before, [A, told, result("c1")]).new == (result("c1"),)
    assert complete(before, [A, calls("c1", arguments="{}"), result("c1")]).replaces


def test_a_text_goes_on() -> None:
    """Where prompts are more of one text, they stand behind all that was asked and answered, with nothing between."""
    before = kept(user("Once upon"), said(" a time"))
    done = complete_text(before, " there was")
    assert (done.prompt, done.new, done.num_stored) == ("Once upon a time there was", (user(" there was"),), 2)
    assert complete_text(before, "Once upon a time there was") == done


def test_without_what_is_kept_the_last_question_is_new() -> None:
    """While Redis is away nobody knows what is kept: what stands before the last answer is taken for known."""
    assert only_new([BE_KIND, A, OF_A, B]) == CompletedPrompt((BE_KIND, A, OF_A, B), (B,))
    assert only_new([B]) == CompletedPrompt((B,), (B,))
