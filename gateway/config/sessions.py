"""The `session:` section of a route and its requirements on the route's engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.config.experiment_specs import ExperimentSpec
from gateway.config.specs import (
    EngineSpec,
    HistorySpec,
    IdentitySpec,
    ReplaySpec,
    RouteSpec,
    SessionSpec,
)
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node, Scalar
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, Record, record_of, scalar

_SWITCH = ("true", "false", "engine")
_ON_LOSS = ("end", "replay")

_SEQUENCE_ID = "sequence_id"

_HISTORY = record_of("history", HistorySpec)


def _replay(on_loss: str = "replay", **limits: Any) -> ReplaySpec | bool:
    return ReplaySpec(**limits) if on_loss == "replay" else False


_REPLAY = Record(
    "sequences",
    _replay,
    {"on_loss": scalar(values.one_of(_ON_LOSS)), **record_of("sequences", ReplaySpec).fields},
)


def _sequences(node: Node, reading: Reading) -> ReplaySpec | bool | None:
    """Read `replay`, `end` (False: None is for errors), or a map of keys."""
    if not isinstance(node, Scalar) or node.is_null:
        return _REPLAY(node, reading)
    if node.text in _ON_LOSS:
        return ReplaySpec() if node.text == "replay" else False
    what = f"sequences is end, replay or a map, not {node.text!r}{suggest(node.text, _ON_LOSS)}"
    reading.error(node.location, what)
    return None


def _session(history: HistorySpec | bool = False, sequences: ReplaySpec | bool = False) -> SessionSpec:
    return SessionSpec(
        history=history if isinstance(history, HistorySpec) else None,
        replay=sequences if isinstance(sequences, ReplaySpec) else None,
    )


def _history(node: Node, reading: Reading) -> HistorySpec | bool | None:
    """Read `true`, `false` (None is for errors), `engine`, or a map of keys."""
    if isinstance(node, Scalar) and not node.is_null:
        match node.text.lower():
            case "true":
                return HistorySpec()
            case "false":
                return False
            case "engine":
                return HistorySpec(engine_holds_state=True)
        what = f"history is true, false, engine or a map, not {node.text!r}{suggest(node.text, _SWITCH)}"
        reading.error(node.location, what)
        return None
    history = _HISTORY(node, reading)
    if history is None:
        return None
    if history.session_field is not None and not history.engine_holds_state:
        reading.error(node.location, "session_field is for engines that hold state: set 'engine_holds_state: true'")
    if history.engine_holds_state and isinstance(node, Map):
        for key in node.entries.keys() - {"engine_holds_state", "session_field"}:
            reading.error(node.entries[key].location, f"{key!r} has no effect: the engine holds the conversation")
    return history


read_session = Record("session", _session, {"history": _history, "sequences": _sequences})


def check_history(
    routes: Iterable[RouteSpec],
    engines: Mapping[str, EngineSpec],
    experiments: Mapping[str, ExperimentSpec],
    reading: Reading,
) -> None:
    """Find routes whose engines cannot receive a conversation; undeclared names are reported elsewhere."""
    for route in routes:
        history = route.session.history
        if history is None or history.engine_holds_state:
            continue
        assert route.location is not None
        for engine in _engines_of(route, engines, experiments):
            where = f"route {route.name!r} keeps conversations, and engine {engine.name!r}"
            if not engine.protocol.traits.generates_text:
                what = f"{where} speaks {engine.protocol.value}, which has no place for one"
                reading.error(route.location, what)
            elif engine.protocol.is_v2 and engine.chat_template is None and history.prompts == "message":
                what = f"{where} takes a prompt, not messages: give it a 'chat_template', or set 'prompts: text'"
                reading.warn(route.location, what)


def check_replay(
    routes: Iterable[RouteSpec],
    engines: Mapping[str, EngineSpec],
    experiments: Mapping[str, ExperimentSpec],
    identity: IdentitySpec,
    reading: Reading,
) -> None:
    """Find routes that replay sequences where there are none."""
    for route in routes:
        if route.session.replay is None:
            continue
        assert route.location is not None
        where = f"route {route.name!r} replays sequences"
        if _SEQUENCE_ID not in identity.session_parameters:
            reading.warn(route.location, f"{where}, and identity's session_parameters have no {_SEQUENCE_ID!r}")
        for engine in _engines_of(route, engines, experiments):
            if not engine.protocol.is_v2:
                what = f"{where}, and engine {engine.name!r} speaks {engine.protocol.value}, which has none"
                reading.warn(route.location, what)


def _engines_of(
    route: RouteSpec, engines: Mapping[str, EngineSpec], experiments: Mapping[str, ExperimentSpec]
) -> list[EngineSpec]:
    """Those that are declared, each once."""
    experiment = experiments.get(route.experiment or "")
    names = [arm.engine for arm in experiment.arms] if experiment is not None else [route.engine or ""]
    return [engines[name] for name in dict.fromkeys(names) if name in engines]
