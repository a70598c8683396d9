"""A call, from its request to its end."""

import gc
import weakref

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import internal
from engines.core.messages import InferRequest, InferResponse


class Asker:
    """Holds its call, and is referenced by the call's sink."""

    def __init__(self) -> None:
        self.call = InferenceCall(InferRequest("m"), self.take)
        self.call.on_cancel = self.call.fail_cancelled
        self.call.when_over(lambda call: self.take(None, True))
        self.taken: list[bool] = []

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        self.taken.append(is_final)


@pytest.mark.parametrize(
    "end",
    [
        lambda call: call.respond(InferResponse(), is_final=True),
        lambda call: call.finish(),
        lambda call: call.fail(internal("no")),
        lambda call: call.cancel(),
    ],
)
def test_an_ended_call_holds_no_references(end) -> None:  # type: ignore[no-untyped-def]
    """The end of a call is reported once, and its tensors are freed at once, without the garbage collector."""
    asker = Asker()
    gc.collect()
    gc.disable()
    try:
        end(asker.call)
        end(asker.call)
        assert asker.taken == [True, True]  # the sink, and the counter
        gone = weakref.ref(asker)
        del asker
        assert gone() is None
    finally:
        gc.enable()
