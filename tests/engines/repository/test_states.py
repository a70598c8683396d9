"""The states of a version."""

from pathlib import Path

import pytest

from engines.core.errors import EngineError, ErrorCode, invalid
from engines.repository.config import read
from engines.repository.sources import VersionSource
from engines.repository.states import CODE_TEXTS, TRANSITIONS, Event, ModelState, Version, as_engine_error


def version_at(*events: Event) -> Version:
    version = Version(VersionSource("m", Path("m"), read(""), None), 1)
    for event in events:
        version._go(event)
    return version


# Every way through the table, and where it leads.
WAYS = [
    ((Event.LOAD,), ModelState.LOADING),
    ((Event.LOAD, Event.LOADED), ModelState.READY),
    ((Event.LOAD, Event.FAILED), ModelState.UNAVAILABLE),
    ((Event.LOAD, Event.UNLOAD), ModelState.UNLOADING),
    ((Event.LOAD, Event.UNLOAD, Event.UNLOADED), ModelState.UNAVAILABLE),
    ((Event.LOAD, Event.LOADED, Event.UNLOAD), ModelState.UNLOADING),
    ((Event.LOAD, Event.LOADED, Event.UNLOAD, Event.UNLOADED), ModelState.UNAVAILABLE),
]


@pytest.mark.parametrize("events, state", WAYS)
def test_the_way_of_a_version(events: tuple[Event, ...], state: ModelState) -> None:
    """A version is loaded once and unloaded once."""
    version = version_at(*events)
    assert version.state is state
    for event in set(Event) - TRANSITIONS[state].keys():
        with pytest.raises(AssertionError):
            version._go(event)


def test_every_state_has_a_row() -> None:
    """And every state but the first is reached from another."""
    assert TRANSITIONS.keys() == set(ModelState)
    assert {state for row in TRANSITIONS.values() for state in row.values()} == set(ModelState) - {ModelState.UNKNOWN}


def test_reasons() -> None:
    """A failure has Triton's text of its code; an unloaded version has its reason, and does not prevent readiness."""
    failed = version_at(Event.LOAD)
    failed.fail(invalid("it is wrong"))
    assert (failed.reason, failed.is_as_wanted, failed.source) == ("Invalid argument: it is wrong", False, None)
    unloaded = version_at(Event.LOAD, Event.LOADED, Event.UNLOAD)
    assert not unloaded.is_as_wanted
    unloaded.become_unloaded()
    assert (unloaded.reason, unloaded.is_as_wanted, unloaded.source) == ("unloaded", True, None)


def test_every_code_has_a_text() -> None:
    assert CODE_TEXTS.keys() == set(ErrorCode)


def test_whatever_a_load_raises_is_the_models_failure() -> None:
    """An error of the host's own keeps its code; any other becomes an internal one that names its kind."""
    error = EngineError(ErrorCode.UNSUPPORTED, "no")
    assert as_engine_error(error) is error
    created = as_engine_error(KeyError("x"))
    assert (created.code, created.message) == (ErrorCode.INTERNAL, "KeyError: 'x'")
