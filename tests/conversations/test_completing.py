"""What an engine is told of a conversation, and what of a request is new."""

import pytest

from gateway.conversations.completing import NOTHING, Completed, complete, complete_text, only_new
from gateway.protocol.llm.values import Message, Reasoning, Text, ToolCall
from tests.conversations.making import calls, kept, result, said, system, user

A, B, C = user("a?"), user("b?"), user("c?")
OF_A, OF_B = said("a."), said("b.")
BE_KIND, BE_SHORT = system("be kind"), system("be short")


def test_what_is_new_goes_behind_what_is_kept() -> None:
    """A client that sends its new message alone is told with all the turns before it."""
    done = complete(kept(A, OF_A), [B])
    assert done == Completed((A, OF_A, B), (B,), num_kept=2)


def test_the_first_message_begins_a_conversation() -> None:
    """Where nothing is kept all that comes is new, answers that the client shows as examples too."""
    assert complete(NOTHING, [A, OF_A, B]) == Completed((A, OF_A, B), (A, OF_A, B))


@pytest.mark.parametrize("before", [(), (BE_KIND,)])
def test_who_sends_everything_is_told_as_he_sends_it(before: tuple[Message, ...]) -> None:
    """Where a client's messages go on from what is kept, only the rest is new."""
    done = complete(kept(A, OF_A), [*before, A, OF_A, B])
    assert done == Completed((*before, A, OF_A, B), (B,), before, num_kept=2)


def test_older_turns_than_those_kept_are_the_clients() -> None:
    """Turns that were dropped here, and that the client still has, go to the engine and are not kept anew."""
    done = complete(kept(B, OF_B), [A, OF_A, B, OF_B, C])
    assert done == Completed((A, OF_A, B, OF_B, C), (C,), num_kept=2)


def test_the_end_of_a_conversation_is_known() -> None:
    """A client that has room for its last turns alone gets the earlier ones back."""
    done = complete(kept(A, OF_A, B, OF_B), [B, OF_B, C])
    assert done == Completed((A, OF_A, B, OF_B, C), (C,), num_kept=4)


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
    assert complete(kept(A, OF_A, B, OF_B), told) == Completed(tuple(told), tuple(told), replaces=True)


def test_a_last_message_of_the_assistants_begins_the_answer() -> None:
    """It says nothing of whether the client sends everything."""
    begun = said("{")
    assert complete(kept(A, OF_A), [B, begun]) == Completed((A, OF_A, B, begun), (B, begun), num_kept=2)


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
    assert (done.prompt, done.new, done.num_kept) == ("Once upon a time there was", (user(" there was"),), 2)
    assert complete_text(before, "Once upon a time there was") == done


def test_without_what_is_kept_the_last_question_is_new() -> None:
    """While Redis is away nobody knows what is kept: what stands before the last answer is taken for known."""
    assert only_new([BE_KIND, A, OF_A, B]) == Completed((BE_KIND, A, OF_A, B), (B,))
    assert only_new([B]) == Completed((B,), (B,))
