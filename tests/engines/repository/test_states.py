"""The states of a version."""

from pathlib import Path

import pytest

from engines.core.errors import EngineError, ErrorCode, invalid
from engines.repository.config import read
from engines.repository.sources import VersionSource
from engines.repository.states import TRANSITIONS, ModelState, Version, as_engine_error, code_text

LOADING, READY, UNLOADING, UNAVAILABLE = ModelState


def version_at(*states: ModelState) -> Version:
    version = Version(VersionSource("m", Path("m"), read(""), None), 1)
    for state in states:
        version.go(state)
    return version


# Every path through the table, and where it leads.
WAYS = [
    (),
    (READY,),
    (UNAVAILABLE,),
    (UNLOADING,),
    (UNLOADING, UNAVAILABLE),
    (READY, UNLOADING),
    (READY, UNLOADING, UNAVAILABLE),
]


@pytest.mark.parametrize("states", WAYS)
def test_the_way_of_a_version(states: tuple[ModelState, ...]) -> None:
    """A version cannot take a transition that the table lacks."""
    version = version_at(*states)
    for state in set(ModelState) - TRANSITIONS[version.state]:
        with pytest.raises(AssertionError):
            version.go(state)


def test_every_state_has_a_row() -> None:
    """Every state has a row, and every state but the first can be reached."""
    assert TRANSITIONS.keys() == set(ModelState)
    assert set().union(*TRANSITIONS.values()) == set(ModelState) - {LOADING}


def test_reasons() -> None:
    """A failure has Triton's text for its code. An unloaded version has a reason too, and counts as ready."""
    failed = version_at()
    failed.fail(invalid("it is wrong"))
    assert (failed.reason, failed.is_as_wanted, failed.source) == ("Invalid argument: it is wrong", False, None)
    unloaded = version_at(READY, UNLOADING)
    assert not unloaded.is_as_wanted
    unloaded.become_unloaded()
    assert (unloaded.reason, unloaded.is_as_wanted, unloaded.source) == ("unloaded", True, None)


def test_every_code_has_a_text() -> None:
    texts = ["Unknown", "Internal", "Not found", "Invalid argument", "Unavailable", "Unsupported", "Already exists"]
    assert [code_text(code) for code in ErrorCode] == [*texts, "Cancelled"]


def test_whatever_a_load_raises_is_the_models_failure() -> None:
    """An EngineError keeps its code; any other exception becomes an internal error that names its type."""
    error = EngineError(ErrorCode.UNSUPPORTED, "no")
    assert as_engine_error(error) is error
    created = as_engine_error(KeyError("x"))
    assert (created.code, created.message) == (ErrorCode.INTERNAL, "KeyError: 'x'")
