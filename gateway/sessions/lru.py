"""The sessions that were used last."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.sessions.session import Session


class LruSessions:
    """At most so many sessions, by name. The ones used least recently are forgotten first, about half of them at a
    time: what is used moves to the young, and where these are half of all, the others go."""

    __slots__ = ("_generation", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._generation = max(1, most // 2)
        self._young: dict[str, Session] = {}
        self._old: dict[str, Session] = {}

    def __repr__(self) -> str:
        return f"<LruSessions: {len(self._young)} young, {len(self._old)} old>"

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[Session]:
        yield from self._young.values()
        yield from self._old.values()

    def use(self, name: str) -> Session | None:
        """The session of this name, which is young from now on."""
        found = self._young.get(name)
        if found is None:
            found = self._old.pop(name, None)
            if found is not None:
                self.add(name, found)
        return found

    def look(self, name: str) -> Session | None:
        """The same, as old as it is."""
        return self._young.get(name) or self._old.get(name)

    def add(self, name: str, session: Session) -> Session:
        """Know a session, in place of what was known by its name."""
        if len(self._young) >= self._generation:
            self._old, self._young = self._young, {}
        self._old.pop(name, None)
        self._young[name] = session
        return session

    def pop(self, name: str) -> Session | None:
        """Forget a session."""
        return self._young.pop(name, None) or self._old.pop(name, None)
