"""Triton's sequences: requests of one model that belong together, by a correlation id."""

from __future__ import annotations


class Sequence(str):
    """The id of a Triton sequence, with the model it is of and which end of it a request is.

    It is a session to all who only ask where it goes; `name` tells it from a session with the same text.
    """

    model: str
    starts: bool
    ends: bool
    # Of a request whose input is kept: its place in its sequence, from 1; 0 where it has none, and `unkept` says why;
    # None where nobody keeps it. `run` tells the sequence from others that had its id before. `adrift` says why nobody
    # can tell where it is.
    step: int | None
    run: str
    unkept: str
    adrift: str

    def __new__(cls, text: str, model: str, *, starts: bool = False, ends: bool = False) -> Sequence:
        made = super().__new__(cls, text)
        made.model = model
        made.starts = starts
        made.ends = ends
        made.step = None
        made.run = ""
        made.unkept = ""
        made.adrift = ""
        return made

    def __repr__(self) -> str:
        end = " starts" if self.starts else ""
        return f"<Sequence {self!s} of {self.model}{end}{' ends' if self.ends else ''}>"

    @property
    def name(self) -> str:
        """What it is known by among sessions and other models' sequences."""
        return f"{self.model}\0{self}"


def name_of(session: str) -> str:
    """What a session or a sequence is known by in this process."""
    return session.name if isinstance(session, Sequence) else session
