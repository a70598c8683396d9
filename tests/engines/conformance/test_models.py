"""What clients see of models: configuration, metadata, statistics, metrics; loading and unloading."""

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.engines.conformance.asking import CLIENTS, Ask, Server, refusal
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import BROKEN_MODELS, ENGINE_MODELS, Pair, rest_client
from tests.engines.conformance.scenarios import numbers, text
from tests.support.waiting import eventually

pytestmark = pytest.mark.triton

# Models that an ensemble does not load itself: those of its steps that are in another repository.
STEPS = {"newest": ["versions"], "cached_chain": ["cached"]}
MODELS = sorted(path.name for path in ENGINE_MODELS.iterdir())


@pytest.mark.parametrize("model", MODELS)
def test_description(model: str, pair: Pair) -> None:
    """A model's configuration, completed, and its metadata are the same by REST and by gRPC."""
    pair.load([*STEPS.get(model, []), model])

    def ask(server: Server) -> dict[str, Any]:
        with rest_client(server) as rest, grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
            return {
                "config": rest.get_model_config(model),
                "metadata": rest.get_model_metadata(model),
                "config by gRPC": str(grpc.get_model_config(model)),
                "metadata by gRPC": str(grpc.get_model_metadata(model)),
                "ready": (rest.is_model_ready(model), grpc.is_model_ready(model, "7")),
            }

    assert_alike(f"description: {model}", *pair.ask(ask))


# A warm-up that fails sometimes crashes Triton: test_faults.py tests it on the host alone.
@pytest.mark.parametrize("model", sorted({path.name for path in BROKEN_MODELS.iterdir()} - {"bad_warmup"}))
def test_loading_what_is_broken(model: str, pair: Pair) -> None:
    """A load that fails has Triton's reason, in the reply and in the index."""

    def ask(server: Server) -> dict[str, Any]:
        with rest_client(server) as rest:
            try:
                rest.load_model(model)
                answer: Any = "loaded"
            except InferenceServerException as error:
                answer = refusal(error)
            ready = rest.is_model_ready(model)
            return {"load": answer, "ready": ready, "index": index_of(rest, model)}

    assert_alike(f"broken: {model}", *pair.ask(ask))


def index_of(rest: Any, model: str) -> list[Any]:
    return [entry for entry in rest.get_model_repository_index() if entry["name"] == model]


def loaded_anew(server: Server, *models: str) -> None:
    """Unload and load the models, so that their counters start at 0."""
    with rest_client(server) as rest:
        for model in models:
            rest.unload_model(model)
            eventually(
                lambda model=model: not any(entry.get("state") == "UNLOADING" for entry in index_of(rest, model))
            )
        for model in models:
            rest.load_model(model)


COUNTED: dict[str, tuple[list[str], list[Ask], bool]] = {
    "plain": (["wanderer"], [Ask("wanderer", numbers("INPUT0", 1))] * 3, False),
    "failing": (
        ["wanderer"],
        [
            Ask("wanderer", numbers("INPUT0", 1), parameters={"how": how})
            for how in ("right", "answers_error", "raises_value_error")
        ],
        False,
    ),
    "batched": (["batch_preferred"], [Ask("batch_preferred", {"value": ("INT32", [[1], [2]])})] * 2, True),
    "refused": (
        ["mixed"],
        [Ask("mixed", {"needed": ("FP32", [[1.0, 2.0]])}), Ask("mixed", {"needed": ("FP32", [[1.0]])})],
        False,
    ),
    "expired": (["queue_impatient"], [Ask("queue_impatient", {"value": ("INT32", [[1]])})] * 3, True),
    "ensemble": (["chain", "adder"], [Ask("chain", {"left": ("INT32", [[1]]), "right": ("INT32", [[2]])})] * 2, False),
    "cached": (["cached"], [Ask("cached", {"x": ("FP32", [[value]])}) for value in (1.0, 1.0, 2.0)], False),
    "warmed": (["warm"], [Ask("warm", {"x": ("FP32", [[1.0, 2.0, 3.0]]), "words": ("BYTES", [[b"x"]])})], False),
    "decoupled": (["streamer"], [Ask("streamer", numbers("count", count)) for count in (3, 0, 1)], False),
    "decoupled, failing": (["streamer"], [Ask("streamer", numbers("count", 2), parameters={"how": "error"})], False),
    "calling": (
        ["caller", "adder"],
        [Ask("caller", {**text("model", "adder"), **text("how", "sync"), "value": ("INT32", [[1]])})],
        False,
    ),
}


@pytest.mark.parametrize("case", COUNTED)
def test_statistics_and_metrics(case: str, pair: Pair) -> None:
    """After the same requests both servers have equal counts: in the statistics of both fronts, and in the metrics."""
    models, asks, together = COUNTED[case]
    pair.load(models)

    def ask(server: Server) -> dict[str, Any]:
        loaded_anew(server, *models)
        CLIENTS["stream"](server, asks, together)
        with rest_client(server) as rest, grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
            # Counters change shortly after the response is sent.
            seen = [
                settled(lambda model=model: rest.get_inference_statistics(model)["model_stats"]) for model in models
            ]
            by_grpc = [grpc.get_inference_statistics(model, as_json=True)["model_stats"] for model in models]
        return {"rest": counts(seen), "grpc": counts(by_grpc), "metrics": metrics_of(server, models)}

    assert_alike(f"counted: {case}", *pair.ask(ask))


def settled(ask: Callable[[], Any]) -> Any:
    """The first reply that has come ten times in a row."""
    seen: list[Any] = []

    def is_steady() -> bool:
        seen.append(ask())
        return len(seen) >= 10 and all(answer == seen[-1] for answer in seen[-10:])

    eventually(is_steady)
    return seen[-1]


def counts(value: Any) -> Any:
    """Statistics without times."""
    match value:
        case dict():
            return {key: counts(member) for key, member in value.items() if key not in ("ns", "last_inference")}
        case list():
            return [counts(member) for member in value]
        case _:
            return value


METRIC = re.compile(r"^(nv_\w+)\{(.*?)\} (\S+)$", re.MULTILINE)


def metrics_of(server: Server, models: list[str]) -> dict[str, str]:
    """The names and labels of these models' metrics, without their values: counters outlive a model in Triton."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=120) as reply:
        found = METRIC.findall(reply.read().decode())
    return {
        f"{name}{{{','.join(sorted(labels.split(',')))}}}": "some"
        for name, labels, _ in found
        if any(f'model="{model}"' in labels for model in models)
    }


def test_metric_families(pair: Pair) -> None:
    """The names and types of the metric families; those of the GPU and of the machine are left out."""
    pair.load(["wanderer"])

    def ask(server: Server) -> dict[str, str]:
        CLIENTS["grpc"](server, [Ask("wanderer", numbers("INPUT0", 1))], False)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=120) as reply:
            lines = reply.read().decode().splitlines()
        types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE nv_"))
        return {name: kind for name, kind in sorted(types.items()) if not re.match("nv_(gpu|cpu|pinned|energy)_", name)}

    assert_alike("metric families", *pair.ask(ask))


def test_a_models_own_log_and_metrics(pair: Pair, tmp_path: Path) -> None:
    """A model's own metrics are exported with the server's."""
    pair.load(["teller"])

    def ask(server: Server) -> Any:
        answer = CLIENTS["rest"](server, [Ask("teller", text("text_input", "hello"))], False)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=120) as reply:
            lines = [line for line in reply.read().decode().splitlines() if "teller_" in line]
        return answer, sorted(lines)

    assert_alike("a model's own metrics", *pair.ask(ask))


def test_index_and_unload(pair: Pair) -> None:
    """The index lists every model of the repositories, and the state of each version."""
    pair.load(["versions", "versions_all", "chain", "adder"])

    def ask(server: Server) -> list[Any]:
        with rest_client(server) as rest:
            seen = [index_of(rest, "versions"), index_of(rest, "versions_all")]
            rest.unload_model("versions_all")
            eventually(lambda: all(entry["state"] == "UNAVAILABLE" for entry in index_of(rest, "versions_all")))
            seen += [index_of(rest, "versions_all"), rest.is_model_ready("versions_all", "1")]
            rest.load_model("versions_all")
            rest.unload_model("chain", unload_dependents=True)
            eventually(lambda: all(entry["state"] == "UNAVAILABLE" for entry in index_of(rest, "chain")))
            seen += [index_of(rest, "chain"), rest.is_model_ready("adder")]
            rest.load_model("chain")
            seen += [index_of(rest, "chain"), index_of(rest, "adder")]
            names = sorted(entry["name"] for entry in rest.get_model_repository_index())
            return [*seen, sorted(set(names))]

    assert_alike("index and unload", *pair.ask(ask))


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_finalize_that_fails(how: str, pair: Pair) -> None:
    """A model that fails while it is unloaded is gone nevertheless, and can be loaded again."""
    pair.load(["bad_loser"])

    def ask(server: Server) -> list[Any]:
        with rest_client(server) as rest:
            full = rest.get_model_config("bad_loser")
            full["parameters"]["how"]["string_value"] = how
            rest.load_model("bad_loser", config=json.dumps(full))
            rest.unload_model("bad_loser")
            eventually(lambda: all(entry["state"] == "UNAVAILABLE" for entry in index_of(rest, "bad_loser")))
            seen = index_of(rest, "bad_loser")
            rest.load_model("bad_loser")
            return [seen, CLIENTS["rest"](server, [Ask("bad_loser", {"x": ("FP32", [2.0])})], False)]

    assert_alike(f"finalize: {how}", *pair.ask(ask))


def test_cancelled_on_a_stream(pair: Pair) -> None:
    """A decoupled model is notified when its client cancels the stream."""
    pair.load(["patient"])

    def ask(server: Server) -> Any:
        with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
            seen: list[Any] = []
            grpc.start_stream(
                lambda result, error: seen.append(error if result is None else result.as_numpy("told")[0])
            )
            waiting = grpc_client.InferInput("ask", [1], "BYTES")
            waiting.set_data_from_numpy(np.array([b"wait"], dtype=np.object_))
            grpc.async_stream_infer("patient", [waiting])
            eventually(lambda: seen == [b"waiting"])
            grpc.stop_stream(cancel_requests=True)

        def heard() -> str:
            (answers,) = CLIENTS["stream"](server, [Ask("patient", text("ask", "tell"))], False)
            return str(answers[0]["outputs"][0]["data"][2])

        eventually(lambda: heard() != "[b'waiting']")
        return heard()

    triton, host = pair.ask(ask)
    assert triton == "[b'cancelled']"
    assert_alike("cancelled on a stream", triton, host)


def test_the_server_is_triton(pair: Pair) -> None:
    """Both fronts report Triton's name, version and extensions, by which clients know it."""

    def ask(server: Server) -> list[Any]:
        with rest_client(server) as rest, grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
            return [rest.get_server_metadata(), grpc.get_server_metadata(as_json=True)]

    triton, host = pair.ask(ask)
    assert triton[0]["name"] == "triton"
    assert_alike("server metadata", triton, host)
