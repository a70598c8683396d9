"""V2 over gRPC, by tritonclient."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.llm.clients.of_v2 import inputs, outputs_of, told_by
from tests.llm.clients.values import (
    TIMEOUT_SECONDS,
    Inferred,
    LeftError,
    RefusedError,
    Tensor,
    TextRequest,
    TextResult,
    gathered,
)
from tests.support.child import Child


def ask_model_infer(gateway: Child, asked: TextRequest) -> TextResult:
    return _told([_infer(gateway, asked.model, inputs(asked, triton.InferInput), asked.id)])


def infer(gateway: Child, model: str, tensor: Tensor, id: str) -> Inferred:
    return _inferred(_infer(gateway, model, [_input(tensor)], id))


def ask_model_stream_infer(gateway: Child, asked: TextRequest) -> TextResult:
    """Send one request on a stream."""
    given = inputs(asked, triton.InferInput)
    return _told(_stream_infer(gateway, asked.model, given, asked.id, asked))


def stream_infer(gateway: Child, model: str, tensor: Tensor, id: str) -> Inferred:
    """All of the responses as one."""
    results = _stream_infer(gateway, model, [_input(tensor)], id, TextRequest(model))
    output = [_inferred(result) for result in results if result.get_response().outputs]
    return replace(output[0], array=np.concatenate([each.array for each in output]))


def _infer(gateway: Child, model: str, given: Sequence[Any], id: str) -> Any:
    with closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        try:
            return client.infer(model, given, request_id=id, client_timeout=TIMEOUT_SECONDS)
        except InferenceServerException as error:
            raise _refused(error) from error


def _stream_infer(gateway: Child, model: str, given: Sequence[Any], id: str, asked: TextRequest) -> list[Any]:
    """All responses to one request, up to the end of the stream, or until the client leaves."""
    came: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        client.start_stream(lambda result, error: came.put((result, error)), stream_timeout=TIMEOUT_SECONDS)
        client.async_stream_infer(model, given, request_id=id)
        if asked.leave_after is None:
            client.stop_stream()  # returns once all responses have come
            came.put((None, None))
        try:
            return gathered(_results(came), lambda result: outputs_of(result).get("text_output"), asked)
        except LeftError:
            client.stop_stream(cancel_requests=True)
            raise


def _results(came: queue.SimpleQueue[tuple[Any, Any]]) -> Iterator[Any]:
    """The responses as they come, until the stream ends.

    Raises: RefusedError.
    """
    while True:
        result, error = came.get(timeout=TIMEOUT_SECONDS)
        if error is not None:
            raise _refused(error) from error
        if result is None:
            return
        yield result


def _told(results: Sequence[Any]) -> TextResult:
    replies = []
    for result in results:
        response, outputs = result.get_response(), outputs_of(result)
        if outputs:
            replies.append({"model_name": response.model_name, "id": response.id} | outputs)
    return told_by(replies, {})


def _inferred(result: Any) -> Inferred:
    response = result.get_response()
    return Inferred(result.as_numpy(response.outputs[0].name), response.model_name, response.id)


def _input(tensor: Tensor) -> Any:
    given = triton.InferInput(tensor.name, list(tensor.array.shape), tensor.datatype)
    given.set_data_from_numpy(tensor.array)
    return given


def _refused(error: InferenceServerException) -> RefusedError:
    status = error.status()
    return RefusedError(None if status is None else str(status).removeprefix("StatusCode."), error.message())
