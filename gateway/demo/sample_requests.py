"""Real requests through the demo's gateway, shown with their answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gateway.demo.chat_demo import STORYTELLER, hear_a_story
from gateway.demo.processes import DemoError

if TYPE_CHECKING:
    import httpx

# A sentence, and two others of which one is near it.
_SENTENCES = ("a locomotive pulls wagons", "a train carries goods", "soup is best served hot")


def ask_the_samples(console: Console, base: str, grpc: str, models: Collection[str]) -> None:
    """Ask those of the sample models that are there; `base` is the gateway's URL, `grpc` its address for gRPC.

    Raises: DemoError.
    """
    from tritonclient.utils import InferenceServerException

    try:
        _add_by_rest(console, base)
        _add_by_grpc(console, grpc)
        if "shapes" in models:
            _name_a_shape(console, base)
        if "embedding" in models:
            _compare_sentences(console, base)
    except (InferenceServerException, OSError) as error:
        raise DemoError(f"A sample request failed: {error}") from error
    text = "one url for every engine"
    reply = ask(base, "POST", "/v2/models/text/generate", {"text_input": text})
    if not reply.is_success:
        raise DemoError(f"A sample request failed: {reply.status_code} {reply.text}")
    console.print(f"\n[bold]generate text[/]  {text!r}")
    console.print(f"  {reply.json()['text_output']!r}, by route {reply.headers['x-pointsman-route']!r}", markup=False)
    if STORYTELLER in models:
        hear_a_story(console, base)


def ask_about_the_engine(console: Console, base: str) -> None:
    """What can be asked without knowing a model: the metadata, which the gateway tells of itself, and the models,
    which the engine tells; one that does not list them may say so.

    Raises: DemoError.
    """
    for title, method, path in (
        ("server metadata", "GET", "/v2"),
        ("models behind the gateway", "POST", "/v2/repository/index"),
    ):
        reply = ask(base, method, path)
        console.print(f"\n[bold]{title}[/]  {method} {path} ({reply.status_code})")
        console.print(f"  {reply.text}", soft_wrap=True, markup=False)


def ask(base: str, method: str, path: str, body: object = None) -> httpx.Response:
    """The engine's reply, whatever it says.

    Raises: DemoError where no engine has answered.
    """
    import httpx

    try:
        reply = httpx.request(method, base + path, json=body, timeout=30, trust_env=False)
    except httpx.HTTPError as error:
        raise DemoError(f"{method} {path} is not answered: {error}") from error
    if "x-pointsman-reason" in reply.headers:
        raise DemoError(f"{method} {path} is answered {reply.status_code} by the gateway itself: {reply.text}")
    return reply


def _add_by_rest(console: Console, base: str) -> None:
    from tritonclient import http

    with http.InferenceServerClient(base.removeprefix("http://")) as client:
        result = client.infer("adder", _numbers(http))
    _show_sum(console, "infer adder", "tritonclient.http", result, result.get_response()["model_name"])


def _add_by_grpc(console: Console, grpc_address: str) -> None:
    from tritonclient import grpc

    with grpc.InferenceServerClient(grpc_address) as client:
        result = client.infer("sum-and-difference", _numbers(grpc))
    _show_sum(console, "infer sum-and-difference", "tritonclient.grpc", result, result.get_response().model_name)


def _numbers(client: Any) -> list[Any]:
    """The adder's inputs, as one of Triton's two clients has them."""
    import numpy

    made = []
    for name, values in (("a", [[1, 2, 3]]), ("b", [[10, 20, 30]])):
        data = numpy.array(values, numpy.int32)
        made.append(client.InferInput(name, list(data.shape), "INT32"))
        made[-1].set_data_from_numpy(data)
    return made


def _show_sum(console: Console, title: str, client: str, result: Any, model: str) -> None:
    console.print(f"\n[bold]{title}[/]  a=[1 2 3] b=[10 20 30]  ({client})")
    for name in ("sum", "diff"):
        console.print(f"  {name} = {result.as_numpy(name)[0]}  from '{model}'", markup=False)


def _name_a_shape(console: Console, base: str) -> None:
    """A drawn ring, which the vision agent names by its best three guesses."""
    import numpy
    from tritonclient import http

    across = numpy.arange(32) - 15.5
    far = numpy.hypot(*numpy.meshgrid(across, across))
    pixels = numpy.where(((far < 10) & (far > 6.5))[..., None], (240, 200, 170), (20, 50, 90)).astype(numpy.uint8)
    given = http.InferInput("pixels", [1, 32, 32, 3], "UINT8")
    given.set_data_from_numpy(pixels[None])
    wanted = http.InferRequestedOutput("scores", class_count=3)
    with http.InferenceServerClient(base.removeprefix("http://")) as client:
        result = client.infer("shapes", [given], outputs=[wanted])
    guesses = [guess.decode().split(":") for guess in result.as_numpy("scores").reshape(-1)]
    console.print("\n[bold]infer shapes[/]  pixels of a ring  (an ensemble: a python model, then a network)")
    console.print("  " + ", ".join(f"{label} {float(score):.1f}" for score, _, label in guesses), markup=False)


def _compare_sentences(console: Console, base: str) -> None:
    """Which of two sentences is nearer to a third, by the cosine of their embeddings."""
    import numpy
    from tritonclient import http

    given = http.InferInput("text", [len(_SENTENCES), 1], "BYTES")
    given.set_data_from_numpy(numpy.array([[text.encode()] for text in _SENTENCES], dtype=numpy.object_))
    with http.InferenceServerClient(base.removeprefix("http://")) as client:
        vectors = client.infer("embedding", [given]).as_numpy("embedding")
    console.print(f"\n[bold]infer embedding[/]  {_SENTENCES[0]!r}  (an ensemble: a tokenizer, then MiniLM)")
    for text, vector in zip(_SENTENCES[1:], vectors[1:], strict=True):
        console.print(f"  {float(vectors[0] @ vector):.2f}  {text}", markup=False)
