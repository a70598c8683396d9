"""Calls that somebody looks at on their way: for a trace, for other shapes, for counts of responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.core.calls import InferenceCall, Sink
from engines.core.messages import InferResponse

# Sees an answer, and gives the one that goes on.
Watcher = Callable[[InferResponse], InferResponse]


def watch(call: InferenceCall, watchers: Sequence[Watcher]) -> None:
    """Have a call's answers pass the watchers, in their order."""

    def wrap(sink: Sink) -> Sink:
        def answered(response: InferResponse | None, is_final: bool) -> None:
            if response is not None:
                for watcher in watchers:
                    response = watcher(response)
            sink(response, is_final)

        return answered

    call.through(wrap)
