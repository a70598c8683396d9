"""Sample requests through the demo's gateway, printed with their replies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gateway.demo.processes import DemoError

if TYPE_CHECKING:
    import httpx

STORYTELLER = "storyteller"
_QUESTIONS = ("Tell me a story about a fox.", "What was the name of the fox?")
_LONGEST_TOKENS = 400  # its stories have about 250
_WAIT_SECONDS = 60.0  # for a token, on a machine that is busy
# A sentence, and two others, one of them similar.
_SENTENCES = ("a locomotive pulls wagons", "a train carries goods", "soup is best served hot")


def request_samples(console: Console, base: str, grpc: str, models: Collection[str]) -> None:
    """Call the sample models that are served; `base` is the gateway's URL, `grpc` its gRPC address.

    Raises: DemoError.
    """
    from tritonclient.utils import InferenceServerException

    try:
        _add(console, base, grpc)
        if "shapes" in models:
            _name_a_shape(console, base)
        if "embedding" in models:
            _compare_sentences(console, base)
    except (InferenceServerException, OSError) as error:
        raise DemoError(f"A sample request failed: {error}") from error
    text = "one url for every engine"
    reply = request(base, "POST", "/v2/models/text/generate", {"text_input": text})
    if not reply.is_success:
        raise DemoError(f"A sample request failed: {reply.status_code} {reply.text}")
    console.print(f"\n[bold]generate text[/]  {text!r}")
    console.print(f"  {reply.json()['text_output']!r}, by route {reply.headers['x-pointsman-route']!r}", markup=False)
    if STORYTELLER in models:
        chat(console, base)


def request_metadata(console: Console, base: str) -> None:
    """Call what needs no model name: the gateway's metadata, and the engine's models, which it may refuse to list.

    Raises: DemoError.
    """
    for title, method, path in (
        ("server metadata", "GET", "/v2"),
        ("models behind the gateway", "POST", "/v2/repository/index"),
    ):
        reply = request(base, method, path)
        console.print(f"\n[bold]{title}[/]  {method} {path} ({reply.status_code})")
        console.print(f"  {reply.text}", soft_wrap=True, markup=False)


def request(base: str, method: str, path: str, body: object = None) -> httpx.Response:
    """The engine's reply, whatever its status.

    Raises: DemoError where the gateway replies itself.
    """
    import httpx

    try:
        reply = httpx.request(method, base + path, json=body, timeout=30, trust_env=False)
    except httpx.HTTPError as error:
        raise DemoError(f"{method} {path} is not answered: {error}") from error
    if "x-pointsman-reason" in reply.headers:
        raise DemoError(f"{method} {path} is answered {reply.status_code} by the gateway itself: {reply.text}")
    return reply


def _add(console: Console, base: str, grpc_address: str) -> None:
    """Add numbers by REST, and by gRPC."""
    from tritonclient import grpc, http

    for client, address, model in (
        (http, base.removeprefix("http://"), "adder"),
        (grpc, grpc_address, "sum-and-difference"),
    ):
        with client.InferenceServerClient(address) as connection:
            result = connection.infer(model, _numbers(client))
        response = result.get_response()
        answered = response["model_name"] if client is http else response.model_name
        console.print(f"\n[bold]infer {model}[/]  a=[1 2 3] b=[10 20 30]  ({client.__name__})")
        for name in ("sum", "diff"):
            console.print(f"  {name} = {result.as_numpy(name)[0]}  from '{answered}'", markup=False)


def _numbers(client: Any) -> list[Any]:
    """The adder's inputs for one of Triton's two clients."""
    import numpy

    inputs = []
    for name, values in (("a", [[1, 2, 3]]), ("b", [[10, 20, 30]])):
        data = numpy.array(values, numpy.int32)
        inputs.append(client.InferInput(name, list(data.shape), "INT32"))
        inputs[-1].set_data_from_numpy(data)
    return inputs


def _name_a_shape(console: Console, base: str) -> None:
    """Send a drawn ring to the vision agent, and print its best three guesses."""
    import numpy
    from tritonclient import http

    across = numpy.arange(32) - 15.5
    far = numpy.hypot(*numpy.meshgrid(across, across))
    pixels = numpy.where(((far < 10) & (far > 6.5))[..., None], (240, 200, 170), (20, 50, 90)).astype(numpy.uint8)
    tensor = http.InferInput("pixels", [1, 32, 32, 3], "UINT8")
    tensor.set_data_from_numpy(pixels[None])
    scores = http.InferRequestedOutput("scores", class_count=3)
    with http.InferenceServerClient(base.removeprefix("http://")) as client:
        result = client.infer("shapes", [tensor], outputs=[scores])
    guesses = [guess.decode().split(":") for guess in result.as_numpy("scores").reshape(-1)]
    console.print("\n[bold]infer shapes[/]  pixels of a ring  (an ensemble: a python model, then a network)")
    console.print("  " + ", ".join(f"{label} {float(score):.1f}" for score, _, label in guesses), markup=False)


def _compare_sentences(console: Console, base: str) -> None:
    """Compare two sentences with a third by the cosine of their embeddings."""
    import numpy
    from tritonclient import http

    tensor = http.InferInput("text", [len(_SENTENCES), 1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([[text.encode()] for text in _SENTENCES], dtype=numpy.object_))
    with http.InferenceServerClient(base.removeprefix("http://")) as client:
        vectors = client.infer("embedding", [tensor]).as_numpy("embedding")
    console.print(f"\n[bold]infer embedding[/]  {_SENTENCES[0]!r}  (an ensemble: a tokenizer, then MiniLM)")
    for text, vector in zip(_SENTENCES[1:], vectors[1:], strict=True):
        console.print(f"  {float(vectors[0] @ vector):.2f}  {text}", markup=False)


def chat(console: Console, base: str) -> None:
    """Request a story, then ask about it; `base` is the gateway's URL.

    Raises: DemoError.
    """
    messages: list[dict[str, str]] = []
    for question in _QUESTIONS:
        messages.append({"role": "user", "content": question})
        console.print(f"\n[bold]chat with {STORYTELLER}[/]  {question!r}  (OpenAI's API, streamed)\n  ", end="")
        pieces = []
        for piece in _pieces(base, messages):
            pieces.append(piece)
            console.print(piece.replace("\n", "\n  "), end="", markup=False, soft_wrap=True)
        console.print()
        messages.append({"role": "assistant", "content": "".join(pieces)})


def _pieces(base: str, messages: list[dict[str, str]]) -> Iterator[str]:
    """The reply as it arrives, by greedy sampling, so that it is always the same."""
    import httpx

    body = {"model": STORYTELLER, "messages": messages, "stream": True, "temperature": 0, "max_tokens": _LONGEST_TOKENS}
    url = f"{base}/v1/chat/completions"
    try:
        with httpx.stream("POST", url, json=body, timeout=_WAIT_SECONDS, trust_env=False) as reply:
            if not reply.is_success:
                raise DemoError(f"The language model does not answer: {reply.status_code} {reply.read().decode()}")
            for line in reply.iter_lines():
                data = line.removeprefix("data: ")
                if data != line and data != "[DONE]":
                    yield _text(json.loads(data))
    except httpx.HTTPError as error:
        raise DemoError(f"The language model's answer broke off: {error}") from error


def _text(event: dict[str, Any]) -> str:
    """Raises: DemoError where the event is an error."""
    if "error" in event:
        raise DemoError(f"The language model's answer broke off: {event['error']}")
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
