"""One inference, sent through each of Triton's clients: REST in binary and in JSON, gRPC, gRPC streams."""

import asyncio
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.utils import InferenceServerException

TIMEOUT_SECONDS = 120.0

DTYPES = {
    "BOOL": np.bool_,
    **{f"{kind}{bits}": f"{kind[0].lower()}{bits // 8}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    "FP16": "f2",
    "FP32": "f4",
    "FP64": "f8",
    "BF16": ml_dtypes.bfloat16,
    "BYTES": np.object_,
}


class Server(Protocol):
    """The server under test: a Triton, or the host."""

    http_port: int
    grpc_port: int
    metrics_port: int


@dataclass(frozen=True)
class Ask:
    """An inference. `inputs` are (datatype, values) by name; `outputs` with a number are requested as that number of
    classes. `is_refused` is Triton's expected outcome, so that two servers that fail alike do not pass as two that
    work."""

    model: str
    inputs: Mapping[str, tuple[str, Any]]
    outputs: Mapping[str, int] | None = None
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # sequence_id, priority, timeout and the like
    is_refused: bool = False
    has_begun: bool = False  # on a stream: the next request is sent once the model has started this one


# The responses to one Ask: each a dict of the response's fields, or the status and message of an error.
Answers = list[Any]
Client = Callable[[Server, Sequence[Ask], bool], Answers]
CLIENTS: dict[str, Client] = {}
# On a busy machine it takes a while until a thread of Triton takes a request from the queue.
_BEGUN_SECONDS = 0.4


def client(function: Client) -> Client:
    """Register a client: it sends the requests one after another or all together, and returns the responses in
    order."""
    CLIENTS[function.__name__] = function
    return function


# Requests


def inputs_of(ask: Ask, library: Any, **how: Any) -> list[Any]:
    made = []
    for name, (datatype, values) in ask.inputs.items():
        array = np.array(values, dtype=DTYPES[datatype])
        made.append(library.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array, **how)
    return made


def outputs_of(ask: Ask, library: Any, **how: Any) -> list[Any] | None:
    if ask.outputs is None:
        return None
    return [library.InferRequestedOutput(name, class_count=count, **how) for name, count in ask.outputs.items()]


def arguments_of(ask: Ask, library: Any) -> dict[str, Any]:
    """The arguments of `infer`, the same for all clients."""
    return {
        "model_name": ask.model,
        "inputs": inputs_of(ask, library),
        "outputs": outputs_of(ask, library),
        "model_version": ask.version,
        "request_id": ask.id,
        "parameters": dict(ask.parameters) if ask.parameters is not None else None,
        **({} if ask.headers is None else {"headers": dict(ask.headers)}),
        **ask.options,
    }


def in_json(ask: Ask) -> dict[str, Any]:
    """The same arguments for REST, with all tensors in JSON."""
    arguments = arguments_of(ask, http_client)
    arguments["inputs"] = inputs_of(ask, http_client, binary_data=False)
    if ask.outputs is None:
        return arguments
    return {**arguments, "outputs": outputs_of(ask, http_client, binary_data=False)}


def answer_of(ask: Callable[[], Any], reply: Callable[[Any], Any]) -> Any:
    try:
        return reply(ask())
    except InferenceServerException as error:
        return refusal(error)
    except TimeoutError as error:
        return {"refused": "no answer", "message": str(error)}


def outcome(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of a client's call, or its refusal."""
    try:
        return call(*arguments, **options)
    except InferenceServerException as error:
        return refusal(error)


def refusal(error: InferenceServerException) -> dict[str, Any]:
    return {"refused": error.status(), "message": error.message()}


# Responses


def told_by_rest(result: http_client.InferResult) -> Any:
    response = dict(result.get_response())
    outputs = response.pop("outputs", [])
    return {**response, "outputs": [{**output, "data": values_of(result, output["name"])} for output in outputs]}


def told_by_grpc(result: grpc_client.InferResult) -> Any:
    response = result.get_response()
    outputs = [
        {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)} for output in response.outputs
    ]
    return {
        "model": (response.model_name, response.model_version, response.id),
        "parameters": {name: str(value) for name, value in sorted(response.parameters.items())},
        "outputs": [{**output, "data": values_of(result, output["name"])} for output in outputs],
    }


def values_of(result: Any, name: str) -> Any:
    array = result.as_numpy(name)
    # As text, so that NaN is equal to itself.
    return None if array is None else [str(array.dtype), list(array.shape), str(array.tolist())]


# Clients


@client
def rest(server: Server, asks: Sequence[Ask], together: bool) -> Answers:
    with http_client.InferenceServerClient(
        f"127.0.0.1:{server.http_port}", concurrency=len(asks), network_timeout=TIMEOUT_SECONDS
    ) as made:
        if not together:
            return [
                answer_of(lambda ask=ask: made.infer(**arguments_of(ask, http_client)), told_by_rest) for ask in asks
            ]
        handles = [made.async_infer(**arguments_of(ask, http_client)) for ask in asks]
        return [answer_of(handle.get_result, told_by_rest) for handle in handles]


@client
def rest_json(server: Server, asks: Sequence[Ask], together: bool) -> Answers:
    with http_client.InferenceServerClient(
        f"127.0.0.1:{server.http_port}", concurrency=len(asks), network_timeout=TIMEOUT_SECONDS
    ) as made:
        if not together:
            return [answer_of(lambda ask=ask: made.infer(**in_json(ask)), told_by_rest) for ask in asks]
        handles = [made.async_infer(**in_json(ask)) for ask in asks]
        return [answer_of(handle.get_result, told_by_rest) for handle in handles]


@client
def rest_aio(server: Server, asks: Sequence[Ask], together: bool) -> Answers:
    async def run() -> Answers:
        async with http_aio_client.InferenceServerClient(f"127.0.0.1:{server.http_port}") as made:

            async def put(ask: Ask) -> Any:
                try:
                    return told_by_rest(await made.infer(**arguments_of(ask, http_client)))
                except InferenceServerException as error:
                    return refusal(error)

            return await (asyncio.gather(*map(put, asks)) if together else one_by_one(map(put, asks)))

    return list(asyncio.run(run()))


@client
def grpc(server: Server, asks: Sequence[Ask], together: bool) -> Answers:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as made:
        if not together:
            return [
                answer_of(lambda ask=ask: made.infer(**arguments_of(ask, grpc_client)), told_by_grpc) for ask in asks
            ]
        answers: dict[int, Any] = {}
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def take(index: int, result: Any, error: InferenceServerException | None) -> None:
            answers[index] = told_by_grpc(result) if error is None else refusal(error)
            done.put(None)

        for index, ask in enumerate(asks):
            callback = lambda result, error, index=index: take(index, result, error)  # noqa: E731
            made.async_infer(callback=callback, **arguments_of(ask, grpc_client))
        for _ in asks:
            done.get(timeout=TIMEOUT_SECONDS)
        return [answers[index] for index in range(len(asks))]


@client
def grpc_aio(server: Server, asks: Sequence[Ask], together: bool) -> Answers:
    async def run() -> Answers:
        async with grpc_aio_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as made:

            async def put(ask: Ask) -> Any:
                try:
                    return told_by_grpc(await made.infer(**arguments_of(ask, grpc_client)))
                except InferenceServerException as error:
                    return refusal(error)

            return await (asyncio.gather(*map(put, asks)) if together else one_by_one(map(put, asks)))

    return list(asyncio.run(run()))


@client
def stream(server: Server, asks: Sequence[Ask], together: bool) -> Answers:
    """On streams a result is the list of all responses. Responses to requests that are sent together are one sorted
    list."""
    if together:
        return [sorted(responses(server, asks), key=str)]
    return [list(responses(server, [ask])) for ask in asks]


def responses(server: Server, asks: Sequence[Ask]) -> Iterator[Any]:
    """All responses on one stream, which ends when every request is answered."""
    answers: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
    headers = {name: value for ask in asks for name, value in (ask.headers or {}).items()}
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as made:
        made.start_stream(
            lambda result, error: answers.put((result, error)),
            stream_timeout=TIMEOUT_SECONDS,
            headers=headers or None,
        )
        for ask in asks:
            arguments = arguments_of(ask, grpc_client)
            arguments.pop("headers", None)
            made.async_stream_infer(**arguments)
            if ask.has_begun:
                time.sleep(_BEGUN_SECONDS)
        made.stop_stream()
    while not answers.empty():
        result, error = answers.get()
        yield told_by_grpc(result) if error is None else refusal(error)


async def one_by_one(coroutines: Any) -> Answers:
    return [await each for each in coroutines]


def is_refusal(answer: Any) -> bool:
    return isinstance(answer, dict) and "refused" in answer


UNARY = ("rest", "rest_json", "rest_aio", "grpc", "grpc_aio")
ALL = (*UNARY, "stream")
