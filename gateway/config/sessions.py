"""The `session:` section of a route and its requirements on the route's engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gateway.config.engine_specs import EngineSpec
from gateway.config.specs import HistorySpec, ReplaySpec, RouteSpec, RulesSpec, SessionSpec
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node, Scalar
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reader, Reading, Record, record_of, scalar

T = TypeVar("T")

_SEQUENCE_ID = "sequence_id"


def _switch(
    what: str, words: Mapping[str, T], read_map: Reader[T], normalized: Callable[[str], str] = str
) -> Reader[T]:
    """Read one of the words, or a map."""

    def read(node: Node, reading: Reading) -> T | None:
        if not isinstance(node, Scalar) or node.is_null:
            return read_map(node, reading)
        if normalized(node.text) in words:
            return words[normalized(node.text)]
        known = f"{what} is {', '.join(words)} or a map"
        reading.error(node.location, f"{known}, not {node.text!r}{suggest(node.text, words)}")
        return None

    return read


_HISTORY = record_of("history", HistorySpec)


def _history(node: Node, reading: Reading) -> HistorySpec | bool | None:
    """Read a map; None is for errors, False elsewhere for what is switched off."""
    history = _HISTORY(node, reading)
    if history is None:
        return None
    if history.session_field is not None and not history.engine_holds_state:
        reading.error(node.location, "session_field is for engines that hold state: set 'engine_holds_state: true'")
    if history.engine_holds_state and isinstance(node, Map):
        for key in node.entries.keys() - {"engine_holds_state", "session_field"}:
            reading.error(node.entries[key].location, f"{key!r} has no effect: the engine holds the conversation")
    return history


def _replay(on_loss: str = "replay", **limits: Any) -> ReplaySpec | bool:
    return ReplaySpec(**limits) if on_loss == "replay" else False


_ON_LOSS: Mapping[str, ReplaySpec | bool] = {"end": False, "replay": ReplaySpec()}
_SEQUENCES = Record(
    "sequences",
    _replay,
    {"on_loss": scalar(values.one_of(_ON_LOSS)), **record_of("sequences", ReplaySpec).fields},
)


def _session(history: HistorySpec | bool = False, sequences: ReplaySpec | bool = False) -> SessionSpec:
    return SessionSpec(
        history=history if isinstance(history, HistorySpec) else None,
        replay=sequences if isinstance(sequences, ReplaySpec) else None,
    )


_SWITCH: Mapping[str, HistorySpec | bool] = {
    "true": HistorySpec(),
    "false": False,
    "engine": HistorySpec(engine_holds_state=True),
}
read_session = Record(
    "session",
    _session,
    {
        "history": _switch("history", _SWITCH, _history, str.lower),
        "sequences": _switch("sequences", _ON_LOSS, _SEQUENCES),
    },
)


def check_sessions(rules: RulesSpec, reading: Reading) -> None:
    """Find routes whose engines cannot receive a conversation, or have no sequences that could be replayed; undeclared
    names are reported elsewhere."""
    for route in rules.routes:
        engines = _engines_of(route, rules)
        assert route.location is not None
        history = route.session.history
        for engine in engines:
            if history is None or history.engine_holds_state:
                break
            where = f"route {route.name!r} keeps conversations, and engine {engine.name!r}"
            if not engine.protocol.traits.generates_text:
                what = f"{where} speaks {engine.protocol.value}, which has no place for one"
                reading.error(route.location, what)
            elif engine.protocol.is_v2 and engine.chat_template is None and history.prompts == "message":
                what = f"{where} takes a prompt, not messages: give it a 'chat_template', or set 'prompts: text'"
                reading.warn(route.location, what)
        if route.session.replay is None:
            continue
        where = f"route {route.name!r} replays sequences"
        if _SEQUENCE_ID not in rules.identity.session_parameters:
            reading.warn(route.location, f"{where}, and identity's session_parameters have no {_SEQUENCE_ID!r}")
        for engine in engines:
            if not engine.protocol.is_v2:
                what = f"{where}, and engine {engine.name!r} speaks {engine.protocol.value}, which has none"
                reading.warn(route.location, what)


def _engines_of(route: RouteSpec, rules: RulesSpec) -> list[EngineSpec]:
    """Those that are declared, each once."""
    experiment = rules.experiments.get(route.experiment or "")
    names = [arm.engine for arm in experiment.arms] if experiment is not None else [route.engine or ""]
    fallbacks = [*route.fallback, *(each for arm in (experiment.arms if experiment else ()) for each in arm.fallback)]
    names += [fallback.engine for fallback in fallbacks]
    return [rules.engines[name] for name in dict.fromkeys(names) if name in rules.engines]
