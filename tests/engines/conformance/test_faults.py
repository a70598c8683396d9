"""Models that fail in each phase: the request gets a clear error, other requests continue, the instance restarts.

Only the host is tested: Triton leaves some of these requests without a reply, or crashes.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tritonclient.utils import InferenceServerException

from tests.engines.conformance.asking import CLIENTS, Answers, Ask, is_refusal
from tests.engines.conformance.pair import (
    BROKEN_MODELS,
    ENGINE_MODELS,
    EXPLICIT,
    SIMPLE_MODELS,
    rest_client,
    start_host,
)
from tests.engines.conformance.scenarios import numbers, text
from tests.support.host import HostProcess
from tests.support.waiting import eventually

MODELS = (
    "adder",
    "crasher",
    "crashing_streamer",
    "wanderer",
    "labelled",
    "sequence_text",
    "queue_short",
    "answered_parameters",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    repositories = [SIMPLE_MODELS, ENGINE_MODELS, BROKEN_MODELS]
    # One of them hangs in finalize until its timeout.
    flags = [*EXPLICIT, "--exit-timeout-secs=2", *(f"--load-model={model}" for model in MODELS)]
    process = start_host(repositories, tmp_path_factory.mktemp("host"), flags).wait_ready()
    yield process
    process.stop()


def ask(server: HostProcess, *asks: Ask, client: str = "grpc", together: bool = False) -> Answers:
    return CLIENTS[client](server, asks, together)


def crash(how: str) -> Ask:
    return Ask("crasher", text("how", how))


def adds(server: HostProcess) -> bool:
    """Whether another model works."""
    (answer,) = ask(server, Ask("adder", {name: ("INT32", [[1, 2]]) for name in "ab"}))
    return not is_refusal(answer) and answer["outputs"][0]["data"][2] == "[[2, 4]]"


def pid_of(server: HostProcess) -> int | None:
    """The process of the model `crasher`; None while it has none."""
    (answer,) = ask(server, crash("live"))
    return None if is_refusal(answer) else int(answer["outputs"][0]["data"][2].strip("[]"))


@pytest.mark.parametrize("client", ["rest", "grpc"])
@pytest.mark.parametrize("how", ["exit", "segfault", "abort", "kill", "crash in a thread"])
def test_a_process_that_ends(how: str, client: str, server: HostProcess) -> None:
    """Only the model's own request fails, with the cause, and a new process takes over."""
    before = eventually(lambda: pid_of(server))
    (answer,) = ask(server, crash(how), client=client)
    assert answer["refused"] in ("500", "503", "StatusCode.INTERNAL", "StatusCode.UNAVAILABLE"), answer
    assert "crasher" in answer["message"], answer
    assert adds(server)
    assert eventually(lambda: pid_of(server)) != before


def test_a_process_that_ends_while_idle(server: HostProcess) -> None:
    """A new process takes over."""
    before = eventually(lambda: pid_of(server))
    psutil.Process(before).kill()
    eventually(lambda: pid_of(server) not in (None, before))


def test_those_who_wait_are_answered(server: HostProcess) -> None:
    """Each request queued behind one that ends the process gets a reply: the new instance's, or an error."""
    eventually(lambda: pid_of(server))
    answers = ask(server, crash("exit"), *[crash("live")] * 5, together=True)
    assert len(answers) == 6
    assert is_refusal(answers[0])
    assert adds(server)
    eventually(lambda: pid_of(server))


def test_again_and_again(server: HostProcess) -> None:
    """A model that crashes on every request restarts each time, and leaves no zombie process."""
    for _ in range(3):
        assert eventually(lambda: pid_of(server))
        assert is_refusal(ask(server, crash("exit"))[0])
    eventually(lambda: pid_of(server))
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert not [child for child in children if child.status() == psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("how", ["raise", "exit", "thread segfault"])
def test_a_stream_that_breaks(how: str, server: HostProcess) -> None:
    """Responses before the failure arrive, then an error ends the request. The next request works."""
    (answers,) = ask(server, Ask("crashing_streamer", text("how", how)), client="stream")
    assert not is_refusal(answers[0]), answers
    assert is_refusal(answers[-1]) and answers[-1]["message"], answers

    def works() -> bool:
        (after,) = ask(server, Ask("crashing_streamer", text("how", "well")), client="stream")
        return not any(map(is_refusal, after))

    eventually(works)


def test_what_is_no_response(server: HostProcess) -> None:
    """A thread that sends an invalid response gets an exception, and can still end its request with an error."""
    (answers,) = ask(server, Ask("crashing_streamer", text("how", "thread wrong")), client="stream")
    assert [is_refusal(answer) for answer in answers] == [False, True]


@pytest.mark.parametrize("how", ["answers_nothing", "answers_none_in_a_list"])
def test_no_answer_is_an_error(how: str, server: HostProcess) -> None:
    """`execute` returned None, or a list with None, without a response: the request fails. Triton never replies."""
    wrong = Ask("wanderer", numbers("INPUT0", 1), parameters={"how": how})
    answer, after = ask(server, wrong, Ask("wanderer", numbers("INPUT0", 1)))
    assert answer["refused"] == "StatusCode.INTERNAL", answer
    assert "wanderer" in answer["message"], answer
    assert not is_refusal(after)


def test_an_exit_in_python(server: HostProcess) -> None:
    """SystemExit fails the request, whether or not it ends the process, and the next request works."""
    (answer,) = ask(server, Ask("wanderer", numbers("INPUT0", 1), parameters={"how": "exits"}))
    assert is_refusal(answer)
    eventually(lambda: not is_refusal(ask(server, Ask("wanderer", numbers("INPUT0", 1)))[0]))


def test_a_model_that_hangs(server: HostProcess) -> None:
    """Other models work while one hangs. When its process is killed, the request fails and the model can be
    reloaded."""
    before = eventually(lambda: pid_of(server))
    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(ask, server, crash("hang"))
        with rest_client(server) as rest:
            # The process sleeps while it hangs, and another model still works.
            eventually(lambda: psutil.Process(before).status() == psutil.STATUS_SLEEPING and adds(server))
            os.kill(before, 9)
            (answer,) = hanging.result(timeout=120)
            assert is_refusal(answer), answer
            rest.unload_model("crasher")
            eventually(lambda: not rest.is_model_ready("crasher"))
            rest.load_model("crasher")
    assert eventually(lambda: pid_of(server)) != before


def test_a_model_that_leaks(server: HostProcess) -> None:
    """A memory leak stays in the model's process: the host does not grow, and unloading frees the memory."""
    pid = eventually(lambda: pid_of(server))
    host_before = psutil.Process(server.process.pid).memory_info().rss
    for _ in range(12):
        assert not is_refusal(ask(server, crash("leak"))[0])
    eaten = psutil.Process(pid).memory_info().rss
    assert eaten > 90 << 20
    assert psutil.Process(server.process.pid).memory_info().rss - host_before < 30 << 20
    with rest_client(server) as rest:
        rest.unload_model("crasher")
        eventually(lambda: not psutil.pid_exists(pid))
        rest.load_model("crasher")


@pytest.mark.parametrize("how", ["raise", "exit", "hang"])
def test_finalize_that_fails(how: str, server: HostProcess) -> None:
    """A model that fails in finalize is unloaded, and its process ends."""
    with rest_client(server) as rest:
        rest.load_model("bad_loser")
        config = rest.get_model_config("bad_loser")
        config["parameters"]["how"]["string_value"] = how
        rest.load_model("bad_loser", config=json.dumps(config))
        family = set(psutil.Process(server.process.pid).children(recursive=True))
        rest.unload_model("bad_loser")
        eventually(lambda: not rest.is_model_ready("bad_loser"))
        gone = eventually(
            lambda: family - set(psutil.Process(server.process.pid).children(recursive=True)), timeout_seconds=120
        )
        assert gone
    assert adds(server)


@pytest.mark.parametrize(
    "model", ["exits_in_initialize", "segfaults_in_initialize", "raises_in_initialize", "bad_warmup"]
)
def test_initialize_that_fails(model: str, server: HostProcess) -> None:
    """The load fails with a reason and leaves no process; other models continue."""
    family = len(psutil.Process(server.process.pid).children(recursive=True))
    with rest_client(server) as rest:
        with pytest.raises(InferenceServerException, match=f"load failed for model '{model}'"):
            rest.load_model(model)
        eventually(lambda: len(psutil.Process(server.process.pid).children(recursive=True)) <= family)
    assert adds(server)


# Beyond Triton 2.51: requests on which its own checks fail or it crashes.


def test_classes_of_text(server: HostProcess) -> None:
    """Classification of a text output is an error; Triton divides by zero and crashes."""
    counts = {"counts": ("INT32", [[5, 1, 3], [2, 9, 4]])}
    for client in ("rest", "grpc"):
        (answer,) = ask(server, Ask("labelled", counts, outputs={"words": 1}), client=client)
        assert is_refusal(answer) and answer["message"]


def test_sequences_named_by_text(server: HostProcess) -> None:
    """A text sequence id is passed in CORRID."""
    step = Ask(
        "sequence_text",
        {"value": ("INT32", [[5]])},
        options={"sequence_id": "call-7", "sequence_start": True, "sequence_end": True},
    )
    (answer,) = ask(server, step)
    assert '"CORRID": ["object", [1, 1], [["call-7"]]]' in answer["outputs"][0]["data"][2]


def test_response_parameters(server: HostProcess) -> None:
    """A response's parameters reach the client, as in later Tritons."""
    (over_rest,) = ask(server, Ask("answered_parameters", numbers("INPUT0", 1)), client="rest")
    assert over_rest["parameters"] == {"text": "ü", "number": 7, "flag": True}
    (over_grpc,) = ask(server, Ask("answered_parameters", numbers("INPUT0", 1)))
    assert over_grpc["parameters"].keys() == {"text", "number", "flag"}
