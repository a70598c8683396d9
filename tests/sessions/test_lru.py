"""A worker remembers the sessions that it has used last."""

from gateway.sessions.lru import LruSessions
from gateway.sessions.session import Session


def test_what_is_used_stays_and_is_counted_once() -> None:
    """However many others come; and nothing is there twice."""
    known = LruSessions(10)
    regular = known.add("regular", Session("regular", 0.0))
    for number in range(100):
        known.add(f"s{number}", Session(f"s{number}", 0.0))
        assert known.use("regular") is regular
        assert len(known) <= 10
        assert len({session.session for session in known}) == len(list(known)) == len(known)
    assert known.look("s99") is not None and known.look("s1") is None


def test_what_is_added_again_takes_the_place_of_the_first() -> None:
    """Whether that is young or old by then; what is forgotten does not come back."""
    known = LruSessions(4)
    for name in ("a", "b", "c"):
        known.add(name, Session(name, 0.0))
    other = known.add("a", Session("a", 1.0))
    assert known.use("a") is other and len(known) == 3
    assert known.pop("a") is other
    assert known.use("a") is None and known.pop("a") is None
