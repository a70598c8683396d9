"""Scenarios of requests to the models: several clients send each scenario to both servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engines.conformance.asking import ALL, UNARY, Answers, Ask

# Clients whose requests cannot overtake each other: one stream, read in order.
ORDERED = ("stream",)
BINARY = ("rest", "rest_aio", "grpc", "grpc_aio", "stream")


@dataclass(frozen=True)
class Scenario:
    """Requests of one client, one after another or together. `needs` are further models that must be loaded; `summary`
    selects what is compared where responses contain times or names of instances."""

    asks: Sequence[Ask]
    clients: Sequence[str] = ALL
    together: bool = False
    needs: Sequence[str] = ()
    summary: Callable[[Answers], Any] | None = None

    @property
    def models(self) -> list[str]:
        return sorted({ask.model for ask in self.asks} | set(self.needs))


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, *asks: Ask, **options: Any) -> None:
    assert name not in SCENARIOS, name
    SCENARIOS[name] = Scenario(asks, **options)


def numbers(name: str, *values: int) -> dict[str, tuple[str, Any]]:
    return {name: ("INT32", list(values))}


def text(name: str, value: str) -> dict[str, tuple[str, Any]]:
    return {name: ("BYTES", [value.encode()])}


# Datatypes

VALUES = {
    "bool": ("BOOL", [True, False]),
    "uint8": ("UINT8", [0, 255]),
    "uint16": ("UINT16", [0, 65535]),
    "uint32": ("UINT32", [0, 4294967295]),
    "uint64": ("UINT64", [0, 18446744073709551615]),
    "int8": ("INT8", [-128, 127]),
    "int16": ("INT16", [-32768, 32767]),
    "int32": ("INT32", [-2147483648, 2147483647]),
    "int64": ("INT64", [-9223372036854775808, 9223372036854775807]),
    "fp16": ("FP16", [0.5, -65504.0, float("inf")]),
    "fp32": ("FP32", [0.1, -3.4e38, 1e-45]),
    "fp64": ("FP64", [0.1, -1.7e308, 5e-324]),
    "string": ("BYTES", [b"", "zürich".encode(), b"x" * 3000]),
}
AS_JSON = {name: value for name, value in VALUES.items() if name != "fp16"}

for name, value in VALUES.items():
    refused = () if name != "fp16" else ("rest_json",)
    clients = [each for each in ALL if each not in refused]
    scenario(f"datatype {name}", Ask("types", {name: value}), clients=clients)
scenario("all datatypes", Ask("types", VALUES), clients=BINARY)
scenario("all datatypes in JSON", Ask("types", AS_JSON, outputs=dict.fromkeys(AS_JSON, 0)), clients=("rest_json",))
scenario(
    "no element of each datatype",
    Ask("types", {name: (kind, []) for name, (kind, _) in VALUES.items()}),
    clients=BINARY,
)
scenario("not finite", Ask("types", {"fp64": ("FP64", [float("nan"), float("inf"), float("-inf")])}), clients=BINARY)
scenario("bytes that are no text", Ask("types", {"string": ("BYTES", [b"\x00\xff", b"\xc3"])}), clients=BINARY)
scenario("brain floats", Ask("bfloat", {"INPUT0": ("BF16", [1.0, -2.5, 3e38])}), clients=BINARY)
scenario(
    "brain floats by NumPy",
    Ask("bfloat", {"INPUT0": ("BF16", [1.0])}, parameters={"numpy": True}, is_refused=True),
    clients=BINARY,
)
scenario("a megabyte of text", Ask("types", {"string": ("BYTES", [b"y" * 1_000_000])}))
scenario("a megabyte of numbers", Ask("types", {"fp64": ("FP64", list(range(131_072)))}), clients=BINARY)
scenario("no input where all are optional", Ask("types", {}), clients=("grpc", "rest"))
scenario("an input that is not there", Ask("types", {"nothing": ("INT32", [1])}, is_refused=True))
scenario("an output that was not computed", Ask("types", {"int8": ("INT8", [1])}, outputs={"int16": 0}))

# Optional inputs, named outputs, batches

NEEDED = {"needed": ("FP32", [[1.0, 2.0], [3.0, 4.0]])}
SCALE = {"scale": ("FP32", [[2.0], [3.0]])}
scenario("optional input left out", Ask("mixed", NEEDED))
scenario("optional input given", Ask("mixed", {**NEEDED, **SCALE}))
scenario("inputs in another order", Ask("mixed", {**SCALE, **NEEDED}))
scenario("one output", Ask("mixed", NEEDED, outputs={"seen": 0}))
scenario("outputs in another order", Ask("mixed", NEEDED, outputs={"seen": 0, "scaled": 0}))
scenario("needed input left out", Ask("mixed", SCALE, is_refused=True))
scenario("batches that differ", Ask("mixed", {**NEEDED, "scale": ("FP32", [[2.0]])}, is_refused=True))
scenario("batch too large", Ask("mixed", {"needed": ("FP32", [[1.0, 2.0]] * 5)}, is_refused=True))
scenario("batch axis left out", Ask("mixed", {"needed": ("FP32", [1.0, 2.0])}, is_refused=True))
scenario("batch of none", Ask("mixed", {"needed": ("FP32", [[]])}, is_refused=True), clients=BINARY)
scenario("other datatype", Ask("mixed", {"needed": ("FP64", [[1.0, 2.0]])}, is_refused=True))
scenario("other shape", Ask("mixed", {"needed": ("FP32", [[1.0, 2.0, 3.0]])}, is_refused=True))
scenario("an output that is not there", Ask("mixed", NEEDED, outputs={"nothing": 0}, is_refused=True))
scenario("a version that is not there", Ask("mixed", NEEDED, version="9", is_refused=True))

# Configurations that the model completes

scenario("completed by the model", Ask("completed", {"x": ("FP32", [[1.5, 2.5]])}))
scenario("completed, with its optional input", Ask("completed", {"x": ("FP32", [[1.0]]), "y": ("FP32", [[1.0]])}))
scenario("half completed, with a parameter", Ask("half_completed", {"x": ("FP32", [[1.0, 2.0]])}))

# Parameters and headers of requests

scenario(
    "what a model is told",
    Ask("arguments", text("text_input", "x")),
    Ask("arguments", text("text_input", "x"), id="request 7/ü", parameters={"n": 3, "s": "é", "b": True}),
    Ask("arguments", text("text_input", "x"), options={"priority": 1, "timeout": 5_000_000}),
    Ask("arguments", text("text_input", "x"), outputs={"text_output": 0}),
    Ask("arguments", text("text_input", "x"), headers={"x-forward-tenant": "acme", "x-unrelated": "1"}),
)
# The fronts' pattern has RE2's syntax (pair.FORWARDED).
scenario(
    "headers by a pattern of RE2",
    Ask(
        "arguments",
        text("text_input", "x"),
        headers={"x-a1": "kind", "x-11": "no", "x-a12": "no", "x-case-a": "no", "xay": "no", "x-x.y": "quoted"},
    ),
)
scenario(
    "headers as the client wrote them",
    Ask("arguments", text("text_input", "x"), headers={"X-Forward-A": "1 ", "X-Case-a": " 2", "x-CASE-b": "3"}),
    clients=("rest",),
)
scenario(
    "a sequence that the model does not know of",
    Ask("arguments", text("text_input", "x"), options={"sequence_id": 7, "sequence_start": True}),
    Ask("arguments", text("text_input", "x"), options={"sequence_id": "seven", "sequence_end": True}),
)
scenario(
    "a parameter of fractions",
    Ask("arguments", text("text_input", "x"), parameters={"d": 0.5}),
    clients=("rest", "rest_aio"),
)

# Classification, labels, reshape, warm-up, versions

COUNTS = {"counts": ("INT32", [[5, 1, 3], [2, 9, 4]])}
scenario("classes without batching", Ask("labelled", COUNTS, outputs={"echo": 3}))
scenario("more classes than there are", Ask("labelled", COUNTS, outputs={"echo": 100}))
scenario(
    "labels of an ensemble",
    Ask("ranked", {"marks": ("FP32", [[0.1, 0.9, 0.5, 0.2]])}, outputs={"ranks": 2}),
    needs=("classifier",),
)
FLAT = {"INPUT0": ("INT32", [[1, 2, 3, 4], [5, 6, 7, 8]])}
scenario("reshaped", Ask("reshaped", FLAT))
scenario(
    "reshaped, in the model's own shape", Ask("reshaped", {"INPUT0": ("INT32", [[[1, 2], [3, 4]]])}, is_refused=True)
)
scenario("reshaped, in an ensemble", Ask("reshaped_chain", {"flat": ("INT32", [[1, 2, 3, 4]])}), needs=("reshaped",))
X = {"x": ("FP32", [1.0])}
scenario("the latest two versions", *(Ask("versions", X, version=version) for version in ("", "3", "10")))
scenario("a version that the policy leaves out", Ask("versions", X, version="2", is_refused=True))
scenario("all versions", *(Ask("versions_all", X, version=version) for version in ("", "1", "3")))
scenario("named versions", *(Ask("versions_specific", X, version=version) for version in ("", "1", "4")))
scenario("a version that is not among the named", Ask("versions_specific", X, version="2", is_refused=True))
scenario("the latest version", *(Ask("versions_default", X, version=version) for version in ("", "5")))
scenario("an earlier version", Ask("versions_default", X, version="2", is_refused=True))

# Ensembles

LEFT, RIGHT = [[1, 2, 3]], [[10, 20, 30]]
SIDES = {"left": ("INT32", LEFT), "right": ("INT32", RIGHT)}
scenario("ensemble", Ask("chain", SIDES, id="one"), needs=("adder",))
scenario("ensemble, one output of three", Ask("fan", SIDES, outputs={"gap": 0}), needs=("adder",))
scenario("ensemble, fan out and in", Ask("fan", SIDES), needs=("adder",))
scenario("ensemble in an ensemble", Ask("nested", SIDES), needs=("adder",))
scenario("ensemble of versions", Ask("newest", X), needs=("versions",))
scenario(
    "ensemble that leaves an optional input open", Ask("partial", {"needed": ("FP32", [[1.0, 2.0]])}), needs=("mixed",)
)
scenario(
    "ensemble without batching", Ask("rows", {"left": ("INT32", [1, 2]), "right": ("INT32", [3, 4])}), needs=("plus",)
)
scenario("ensemble, input missing", Ask("chain", {"left": ("INT32", LEFT)}, is_refused=True), needs=("adder",))
scenario(
    "ensemble, wrong datatype", Ask("chain", {**SIDES, "left": ("INT64", LEFT)}, is_refused=True), needs=("adder",)
)
scenario(
    "ensemble, a step is refused",
    Ask("chain", {**SIDES, "left": ("INT32", [[1, 2]])}, is_refused=True),
    needs=("adder",),
)
scenario("ensemble, a step fails", Ask("doomed", text("said", "no"), is_refused=True), needs=("text", "failer"))
scenario(
    "ensemble, only the other step is wanted",
    Ask("doomed", text("said", "no"), outputs={"loud": 0}, is_refused=True),
    needs=("text", "failer"),
)
scenario(
    "ensemble, a step without batching fails",
    Ask("rows", {"left": ("INT32", [1, 2]), "right": ("INT32", [3, 4, 5])}, is_refused=True),
    needs=("plus",),
)
scenario(
    "ensemble with parameters",
    Ask(
        "echoes",
        {**text("said", "hey"), **numbers("times", 1)},
        parameters={"n": 3, "s": "x"},
        options={"enable_empty_final_response": True},
    ),
    clients=("stream",),
    needs=("repeater", "text"),
)
scenario(
    "ensemble with a decoupled step",
    *(Ask("echoes", {**text("said", "hey"), **numbers("times", count)}) for count in (1, 3, 0)),
    clients=("stream",),
    needs=("repeater", "text"),
)
scenario(
    "ensemble with a decoupled step, unary",
    Ask("echoes", {**text("said", "hey"), **numbers("times", 1)}, is_refused=True),
    clients=UNARY,
    needs=("repeater", "text"),
)
