"""How much a peer may waste: frames that bring nothing, streams broken off (RFC 9113 section 10.5)."""

from __future__ import annotations

from gateway.wire.http2.frames import ErrorCode, Http2Error

# Frames that ask for work and bring nothing; counted anew each second.
_MAX_IDLE_FRAMES = 10_000
# Who reads much has much to acknowledge, a message on its stream and again on the connection: one more frame for each
# so many bytes of data sent to it, since the smallest message has five.
_SENT_BYTES_A_FRAME = 2
# A change of settings goes through all streams.
SETTINGS_COST = 20


class FloodGuard:
    """Counts what costs this side more than the peer, and forgets it by and by."""

    __slots__ = ("_max_resets", "_num_idle", "_num_resets", "_sent_before")

    def __init__(self, max_resets: int | None) -> None:
        """`max_resets` None: the peer may break off what it likes."""
        self._max_resets = max_resets
        self._num_idle = 0
        self._num_resets = 0
        self._sent_before = 0

    def __repr__(self) -> str:
        return f"<FloodGuard {self._num_idle} idle frames, {self._num_resets} resets>"

    def count_idle_frame(self, sent_bytes: int, cost: int = 1) -> None:
        """The peer sent a frame that brings nothing; `sent_bytes` is all the data that it was ever sent.

        Raises: Http2Error (ENHANCE_YOUR_CALM).
        """
        self._num_idle += cost
        if self._num_idle > _MAX_IDLE_FRAMES:
            allowed = _MAX_IDLE_FRAMES + (sent_bytes - self._sent_before) // _SENT_BYTES_A_FRAME
            if self._num_idle > allowed:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def count_reset(self) -> None:
        """A stream was broken off, by the peer or for what it did wrong.

        Raises: Http2Error (ENHANCE_YOUR_CALM).
        """
        self._num_resets += 1
        if self._max_resets is not None and self._num_resets > self._max_resets:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are broken off")

    def tick(self, sent_bytes: int) -> None:
        """Called about once a second."""
        self._num_idle = 0
        self._sent_before = sent_bytes
        self._num_resets = max(0, self._num_resets - max(1, (self._max_resets or 0) // 20))
