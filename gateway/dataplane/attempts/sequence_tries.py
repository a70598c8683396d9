"""What a request has to do with the sequence that it is of, on a route that keeps sequences' inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic

from gateway.dataplane.attempts.sequence_replay import GONE, NOT_STARTED, SequenceReplay
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.session_affinity import SequenceDisplacedError
from gateway.dataplane.context.snapshot import Lane
from gateway.protocol.errors import GatewayError
from gateway.protocol.sequence import Sequence
from gateway.sessions.sequence_log import Input
from gateway.upstream.endpoint import Endpoint


class SequenceTries(ABC):
    """The part of `Tries` that keeps a request's input, and has it wait while another endpoint is told those before."""

    __slots__ = ("_attempts", "_replay")

    _attempts: int
    _replay: SequenceReplay | None
    # As `Tries` has them
    _expires_at: float
    _lane: Lane | None
    _plane: DataPlane
    _sent_at: float
    _session: str | None
    _started_at: float
    _waited: float

    @abstractmethod
    def field(self, name: bytes) -> bytes | None:
        """The first field of this name, in lower case, that the client has sent."""

    @abstractmethod
    def _can_be_sent_again(self) -> bool:
        """Whether all of the request is still at hand."""

    @abstractmethod
    def sequence_moved(self, endpoint: Endpoint) -> None:
        """Its sequence is at this endpoint."""

    @abstractmethod
    def sequence_stuck(self, error: GatewayError) -> None:
        """Nobody can go on with its sequence."""

    @property
    def _is_numbered(self) -> bool:
        """Whether it is a request of a sequence whose inputs its route keeps."""
        lane = self._lane
        return lane is not None and lane.replay is not None and type(self._session) is Sequence

    def _input(self) -> Input | None:
        """What the engine got, to be told to another one; None where not all of it is at hand."""
        return None

    def _keep_input(self, is_good: bool) -> None:
        """An engine has answered, well or not."""
        lane, session = self._lane, self._session
        if lane is None or lane.replay is None or type(session) is not Sequence or session.ends:
            return
        inputs, told = self._plane.keeper.inputs, self._input() if is_good else None
        if is_good and told is None:
            what = f"one of them, of more than {lane.replay.max_bytes} bytes (max_bytes), was not kept"
            inputs.give_up(session, lane.replay, what)
        else:
            inputs.keep(session, lane.replay, told)

    def _is_forgotten(self, told: bytes) -> bool:
        """Whether an engine refuses the request since it knows nothing of the sequence: it was started anew, or has
        waited for too long."""
        session = self._session
        is_under_way = type(session) is Sequence and bool(session.step) and not session.starts
        return is_under_way and NOT_STARTED in told and self._can_be_sent_again()

    def _may_replay(self, error: GatewayError) -> bool:
        """Whether another endpoint may be told the request, after one that failed so has got it or may have."""
        return self._is_numbered and error.kind in GONE and self._can_be_sent_again()

    def _replay_sequence(self, why: SequenceDisplacedError) -> None:
        """Have another endpoint told the sequence's inputs; the request waits."""
        lane, session, now = self._lane, self._session, monotonic()
        assert lane is not None and type(session) is Sequence
        if self._replay is None:
            self._replay = SequenceReplay(self, self._plane.keeper, lane, session)
        self._attempts += 1
        limit = lane.engine.spec.timeout
        ends = [at for at in (self._started_at + self._waited + limit if limit else 0.0, self._expires_at) if at]
        seconds = max(0.0, min(ends) - now) if ends else None
        if seconds is not None and why.may_stay:
            seconds /= 2  # where that takes too long, it must still be in time where it is
        self._replay.start(why, seconds)

    def _settle_input(self) -> None:
        """No engine has answered: what becomes of the input."""
        lane, session = self._lane, self._session
        if lane is None or lane.replay is None or type(session) is not Sequence:
            return
        if self._sent_at:
            self._plane.keeper.inputs.doubt(session, lane.replay)
        else:  # nobody has got it
            self._plane.keeper.inputs.keep(session, lane.replay, None)
