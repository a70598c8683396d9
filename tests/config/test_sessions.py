"""The `session:` section of a route."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.rules import load_rules
from gateway.config.specs import HistorySpec, ReplaySpec, SessionSpec
from tests.config.conftest import Load

ENGINES = "version: 1\nengines: {e: {protocol: openai, endpoints: 'http://a'}}\n"

TRUST = "identity: {trust_header: true}\n"

HISTORIES = [
    ("true", HistorySpec()),
    ("false", None),
    ("engine", HistorySpec(engine_holds_state=True)),
    ("{}", HistorySpec()),
    (
        "{max_turns: 20, max_tokens: 4000, max_bytes: 64KiB, ttl: 30m}",
        HistorySpec(max_turns=20, max_tokens=4000, max_bytes=65536, ttl=1800.0),
    ),
    (
        "{system: request, on_overflow: refuse, prompts: text, required: true, patience: 20ms}",
        HistorySpec(system="request", on_overflow="refuse", prompts="text", required=True, patience=0.02),
    ),
    (
        "{engine_holds_state: true, session_field: conversation}",
        HistorySpec(engine_holds_state=True, session_field="conversation"),
    ),
]


@pytest.mark.parametrize("history, expected", HISTORIES)
def test_what_is_kept_of_conversations(load: Load, history: str, expected: HistorySpec | None) -> None:
    """`history` is a boolean, `engine`, or limits on the size and age of the stored conversation."""
    loaded = load(f"{ENGINES}routes: [{{name: r, engine: e, session: {{history: {history}}}}}]\n{TRUST}")
    assert loaded.problems == ()
    assert loaded.rules is not None
    assert loaded.rules.routes[0].session == SessionSpec(expected)


REPLAYS = [
    ("end", None),
    ("replay", ReplaySpec()),
    ("{on_loss: end, max_steps: 10}", None),
    ("{}", ReplaySpec()),
    (
        "{on_loss: replay, max_steps: 10, max_bytes: 16MB, ttl: 1m, patience: 50ms}",
        ReplaySpec(max_steps=10, max_bytes=16_000_000, ttl=60.0, patience=0.05),
    ),
]


@pytest.mark.parametrize("sequences, expected", REPLAYS)
def test_what_becomes_of_sequences_without_their_endpoint(
    load: Load, sequences: str, expected: ReplaySpec | None
) -> None:
    """`sequences` is a word, or limits on the size and age of the stored sequences."""
    text = f"{ENGINES.replace('openai', 'kserve')}routes: [{{name: r, engine: e, session: {{sequences: {sequences}}}}}]"
    loaded = load(f"{text}\n")
    assert loaded.problems == ()
    assert loaded.rules is not None
    assert loaded.rules.routes[0].session == SessionSpec(replay=expected)


NO_SEQUENCES = [
    ("openai", "", "route 'r' replays sequences, and engine 'e' speaks openai, which has none"),
    (
        "kserve",
        "identity: {session_parameters: [session_id]}\n",
        "route 'r' replays sequences, and identity's session_parameters have no 'sequence_id'",
    ),
]


@pytest.mark.parametrize("protocol, identity, problem", NO_SEQUENCES)
def test_a_route_that_has_no_sequences_to_replay(load: Load, protocol: str, identity: str, problem: str) -> None:
    """A route whose sequences cannot be replayed loads with a warning."""
    route = "routes: [{name: r, engine: e, session: {sequences: replay}}]\n"
    loaded = load(f"{ENGINES.replace('openai', protocol)}{identity}{route}")
    assert [str(found).split(": ", 1)[1] for found in loaded.problems] == [f"warning: {problem}"]


PROBLEMS = [
    ("{sequences: replya}", "3:52: error: sequences is end, replay or a map, not 'replya': did you mean 'replay'?"),
    ("{sequences: {on_los: end}}", "3:53: error: unknown key 'on_los' in sequences: did you mean 'on_loss'?"),
    ("{sequences: {on_loss: ende}}", "3:62: error: unknown value 'ende': did you mean 'end'?"),
    ("{sequences: {max_steps: 0}}", "3:64: error: 0 is too small: at least 1"),
    ("{histroy: true}", "3:41: error: unknown key 'histroy' in session: did you mean 'history'?"),
    (
        "{history: yes}",
        "3:50: error: history is true, false, engine or a map, not 'yes'; known: true, false, engine",
    ),
    ("{history: engin}", "3:50: error: history is true, false, engine or a map, not 'engin': did you mean 'engine'?"),
    ("{history: {max_turn: 3}}", "3:51: error: unknown key 'max_turn' in history: did you mean 'max_turns'?"),
    ("{history: {max_turns: 0}}", "3:62: error: 0 is too small: at least 1"),
    ("{history: {ttl: 1d}}", "3:56: error: '1d' is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds"),
    ("{history: {ttl: 0}}", "3:56: error: 0 is out of range: 1 to 315360000"),
    ("{history: {system: kep}}", "3:59: error: unknown value 'kep': did you mean 'keep'?"),
    ("{history: {on_overflow: drop_old}}", "3:64: error: unknown value 'drop_old': did you mean 'drop_oldest'?"),
    (
        "{history: {session_field: id}}",
        "3:50: error: session_field is for engines that hold state: set 'engine_holds_state: true'",
    ),
    (
        "{history: {engine_holds_state: true, ttl: 1h}}",
        "3:77: error: 'ttl' has no effect: the engine holds the conversation",
    ),
]


@pytest.mark.parametrize("session, problem", PROBLEMS)
def test_what_is_wrong_is_told_with_its_place(load: Load, session: str, problem: str) -> None:
    """An error has line and column, and suggests the nearest correct spelling."""
    loaded = load(f"{ENGINES}routes: [{{name: r, engine: e, session: {session}}}]\n")
    assert [str(found) for found in loaded.problems if found.is_error] == [f"rules.yaml:{problem}"]


ENGINE_PROBLEMS = [
    (
        "protocol: torchserve",
        "true",
        "error: route 'r' keeps conversations, and engine 'e' speaks torchserve, which has no place for one",
    ),
    (
        "protocol: kserve",
        "true",
        "warning: route 'r' keeps conversations, and engine 'e' takes a prompt, not messages: give it a "
        "'chat_template', or set 'prompts: text'",
    ),
    ("protocol: kserve", "{prompts: text}", None),
    ("protocol: torchserve", "engine", None),
    ("protocol: openai", "true", None),
]


@pytest.mark.parametrize("arms", [False, True])
@pytest.mark.parametrize("engine, history, problem", ENGINE_PROBLEMS)
def test_engines_that_cannot_be_told_a_conversation(
    load: Load, engine: str, history: str, problem: str | None, arms: bool
) -> None:
    """The engine of the route and of each arm must accept messages."""
    split = "experiments: {x: {arms: [{name: a, engine: e, weight: 1}]}}\n" if arms else ""
    to = "experiment: x" if arms else "engine: e"
    text = f"version: 1\nengines: {{e: {{endpoints: 'http://a', {engine}}}}}\n{split}"
    loaded = load(f"{text}routes: [{{name: r, {to}, session: {{history: {history}}}}}]\n{TRUST}")
    assert [str(found).split(": ", 1)[1] for found in loaded.problems] == ([problem] if problem else [])


def test_conversations_need_somebody_who_is_known(load: Load, tmp_path: Path) -> None:
    """Without `auth:` anybody who names a session gets its conversation, so the rules must say that a header is
    trusted."""
    text = f"{ENGINES}routes: [{{name: r, engine: e, session: {{history: true}}}}]\n"
    (problem,) = load(text).problems
    assert "route 'r' keeps conversations, and anybody who names a session gets it: add 'auth'" in str(problem)
    (tmp_path / "keys.yml").write_text("")
    (tmp_path / "auth.yaml").write_text(text + "auth: {keys: keys.yml}\n")
    assert load_rules([tmp_path / "auth.yaml"]).problems == ()
