"""Parts for tests of the host's service: configurations, tensors, and calls that store their responses."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from engines.core.calls import InferenceCall
from engines.core.messages import InferRequest, InferResponse, TensorData
from engines.repository.states import ModelSpec
from gateway.protocol.protobuf import message


def config_of(text: str) -> Any:
    """A model configuration, as config.pbtxt has it."""
    return text_format.Parse(text, message("inference.ModelConfig")())


def spec_of(config: Any, directory: Path = Path("/nowhere")) -> ModelSpec:
    return ModelSpec(config.name, 1, directory, directory / "1", config)


def ints(name: str, *values: int, shape: tuple[int, ...] | None = None) -> TensorData:
    """An INT32 tensor; without a shape, one row of the values."""
    return TensorData(
        name, "INT32", (1, len(values)) if shape is None else shape, struct.pack(f"<{len(values)}i", *values)
    )


class ObservedRequest:
    """A call that stores its responses."""

    def __init__(self, request: InferRequest) -> None:
        self.answers: list[InferResponse] = []
        self.is_over = False
        self.call = InferenceCall(request, self._answered)

    def _answered(self, response: InferResponse | None, is_final: bool) -> None:
        assert not self.is_over
        if response is not None:
            self.answers.append(response)
        self.is_over = is_final

    @property
    def error(self) -> str:
        """The message of the error that it ended with."""
        assert self.is_over and self.answers and self.answers[-1].error is not None, self.answers
        return self.answers[-1].error.message


class FakeInstance:
    """An instance that runs a batch on the test's command, and responds to each call by `answer`.

    It follows the interface: each call ends, and `done` is called once.
    """

    def __init__(self, answer: Callable[[InferenceCall], Sequence[InferResponse]], name: str = "model_0_0") -> None:
        self.name = name
        self.is_available = True
        self.batches: list[list[InferenceCall]] = []
        self._answer = answer
        self._done: list[Callable[[], None]] = []

    def execute(self, calls: Sequence[InferenceCall], done: Callable[[], None]) -> None:
        self.is_available = False
        self.batches.append(list(calls))
        self._done.append(done)

    def run(self) -> None:
        """Respond to the calls of the current batch."""
        for call in self.batches[-1]:
            call.compute_input_ns, call.compute_infer_ns, call.compute_output_ns = 10, 20, 30
            answers = self._answer(call)
            for response in answers:
                call.respond(response, is_final=response is answers[-1])
            if not answers:
                call.finish()
        self.is_available = True
        self._done.pop()()
