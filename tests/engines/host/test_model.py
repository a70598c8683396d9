"""A loaded version of a model, from the request to the response."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import internal
from engines.core.messages import InferRequest, InferResponse, TensorData
from engines.host.model import HostedModel
from engines.host.model_loader import LoopClock
from engines.host.statistics import CountedInstance, Statistics
from engines.host.trace_settings import TraceSettings
from engines.host.tracing import Tracer
from engines.scheduling.ensemble import Ensemble
from engines.scheduling.factory import scheduler_for
from tests.engines.host.parts import FakeInstance, ObservedRequest, config_of, ints, spec_of

ECHO = """
    name: "echo" max_batch_size: 4
    input [ { name: "x" data_type: TYPE_INT32 dims: [ -1 ] } ]
    output [ { name: "y" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


def echo(call: InferenceCall) -> Sequence[InferResponse]:
    """Return the first input as `y`."""
    return (InferResponse((replace(call.request.inputs[0], name="y"),)),)


class Stage:
    """A model over one instance that the test runs by hand."""

    def __init__(
        self,
        config: Any,
        answer: Callable[[InferenceCall], Sequence[InferResponse]] = echo,
        trace: TraceSettings | None = None,
    ) -> None:
        clock = LoopClock(asyncio.get_running_loop())
        self.instance = FakeInstance(answer)
        self.tracer = Tracer(trace or TraceSettings())
        self.statistics = Statistics(clock.now_ns, lambda: 5, is_decoupled=config.model_transaction_policy.decoupled)
        self.is_finished = False
        counted = CountedInstance(self.instance, self.statistics)
        self.model = HostedModel(
            spec_of(config),
            config,
            scheduler_for(config, [counted], clock),
            statistics=self.statistics,
            tracer=self.tracer,
            now_ns=clock.now_ns,
            finish=self._finish,
        )

    async def _finish(self) -> None:
        self.is_finished = True

    def send_request(self, *inputs: TensorData, id: str = "") -> ObservedRequest:
        sent = ObservedRequest(InferRequest(self.model.name, id=id, inputs=inputs))
        self.model.submit(sent.call)
        return sent


def test_a_request_is_answered_and_counted() -> None:
    """A request runs on an instance, its response is returned, and the statistics count it."""

    async def scenario() -> None:
        stage = Stage(config_of(ECHO))
        sent = stage.send_request(ints("x", 1, 2, shape=(2, 1)))
        assert (stage.model.num_in_flight, sent.call.batch_size) == (1, 2)
        stage.instance.run()
        assert sent.answers == [InferResponse((ints("y", 1, 2, shape=(2, 1)),))]
        assert stage.model.num_in_flight == 0
        counted = stage.statistics
        assert (counted.success.count, counted.inference_count, counted.execution_count) == (1, 2, 1)
        assert (counted.compute_infer.ns, list(counted.batches)) == (20, [2])

    asyncio.run(scenario())


def test_a_wrong_request_never_counts() -> None:
    """A request that fails its checks is not counted, as in Triton."""

    async def scenario() -> None:
        stage = Stage(config_of(ECHO))
        assert "unexpected inference input 'z'" in stage.send_request(ints("z", 1)).error
        assert (stage.model.num_in_flight, stage.statistics.fail.count) == (0, 0)

    asyncio.run(scenario())


def test_unloading_waits_for_what_is_under_way() -> None:
    """Unloading refuses new requests, and ends after the request in flight."""

    async def scenario() -> None:
        stage = Stage(config_of(ECHO))
        sent = stage.send_request(ints("x", 1))
        unloading = asyncio.ensure_future(stage.model.unload())
        await asyncio.sleep(0)
        assert not stage.is_finished
        assert "is being unloaded" in stage.send_request(ints("x", 1)).error
        stage.instance.run()
        await unloading
        assert stage.is_finished
        assert len(sent.answers) == 1

    asyncio.run(scenario())


def test_giving_up_fails_what_waits() -> None:
    """On abort queued requests fail; the running one is left to its instance."""

    async def scenario() -> None:
        stage = Stage(config_of(ECHO))
        running, waiting = stage.send_request(ints("x", 1)), stage.send_request(ints("x", 2))
        unloading = asyncio.ensure_future(stage.model.unload())
        await asyncio.sleep(0)
        stage.model.abort()
        await unloading
        assert waiting.is_over
        assert not running.is_over  # its instance ends it when it stops

    asyncio.run(scenario())


def test_shapes_are_the_model_s_own_inside() -> None:
    """`reshape` is undone in the responses."""

    async def scenario() -> None:
        stage = Stage(
            config_of("""
                name: "flat" max_batch_size: 2
                input [ { name: "x" data_type: TYPE_INT32 dims: [ 2, -1 ] reshape { shape: [ -1, 2, 1 ] } } ]
                output [ { name: "y" data_type: TYPE_INT32 dims: [ 6 ] reshape { shape: [ 3, 2, 1 ] } } ]
            """)
        )
        sent = stage.send_request(ints("x", *range(6), shape=(1, 2, 3)))
        assert stage.instance.batches[0][0].request.inputs[0].shape == (1, 3, 2, 1)
        stage.instance.run()
        assert sent.answers[0].outputs[0].shape == (1, 6)

    asyncio.run(scenario())


def test_streams_are_counted_by_their_answers() -> None:
    """A decoupled model has separate statistics of its responses."""

    async def scenario() -> None:
        config = config_of(ECHO + "model_transaction_policy { decoupled: true }")
        stage = Stage(config, lambda call: [*echo(call), InferResponse(error=internal("second"))])
        sent = stage.send_request(ints("x", 1))
        stage.instance.run()
        assert [answer.error is None for answer in sent.answers] == [True, False]
        assert {
            number: (reported["success"].count, reported["fail"].count)
            for number, reported in stage.statistics.responses.items()
        } == {
            0: (1, 0),
            1: (0, 1),
        }

    asyncio.run(scenario())


def test_every_second_request_is_traced(tmp_path: Path) -> None:
    """Traces are written in Triton's format, a fixed number of them in each file."""
    path = tmp_path / "trace"

    async def scenario() -> None:
        stage = Stage(
            config_of(ECHO),
            trace=TraceSettings(levels=("TIMESTAMPS", "TENSORS"), rate=2, log_frequency=1, file=str(path)),
        )
        for number in range(3):
            stage.send_request(ints("x", number), id=f"r{number}")
            stage.instance.run()

    asyncio.run(scenario())
    assert [each.name for each in tmp_path.iterdir()] == ["trace.0"]
    records = json.loads((tmp_path / "trace.0").read_text())
    assert records[0] == {"id": 1, "model_name": "echo", "model_version": 1, "request_id": "r1"}
    assert [record["timestamps"][0]["name"] for record in records if "timestamps" in record] == [
        *("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END"),
        *("COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END"),
    ]
    assert [(record["activity"], record["tensor"]) for record in records if "tensor" in record] == [
        ("TENSOR_QUEUE_INPUT", {"name": "x", "data": "1", "shape": "1,1", "dtype": "INT32"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "y", "data": "1", "shape": "1,1", "dtype": "INT32"}),
    ]


def test_tracing_follows_its_settings(tmp_path: Path) -> None:
    """Tracing can be changed between requests. When the settings change, pending traces are written first."""
    path = tmp_path / "trace"

    async def scenario() -> None:
        stage = Stage(config_of(ECHO), trace=TraceSettings(rate=1, file=str(path)))

        def send_request() -> None:
            stage.send_request(ints("x", 1))
            stage.instance.run()

        send_request()
        stage.tracer.settings.update("echo", {"trace_level": ["TIMESTAMPS"], "trace_count": ["2"]})
        for _ in range(3):
            send_request()
        assert len({record["id"] for record in json.loads((tmp_path / "trace.0").read_text())}) == 2
        stage.tracer.settings.update("echo", {"trace_count": []})
        send_request()
        stage.send_request(ints("x", 1))
        stage.tracer.settings.update("echo", {"trace_level": ["OFF"]})
        assert {record["id"] for record in json.loads(path.read_text())} == {3}
        stage.instance.run()  # it was sent before the change
        send_request()
        assert {record["id"] for record in json.loads(path.read_text())} == {3, 4}

    asyncio.run(scenario())


@pytest.mark.parametrize("is_first", [True, False])
def test_cancelling_reaches_the_scheduler(is_first: bool) -> None:
    """Cancelling ends a queued call at once, and leaves a running one to its instance."""

    async def scenario() -> None:
        stage = Stage(config_of(ECHO))
        first, second = stage.send_request(ints("x", 1)), stage.send_request(ints("x", 2))
        (first if is_first else second).call.cancel()
        assert (first.is_over, second.is_over) == (False, not is_first)
        assert stage.statistics.failures["CANCELED"] == int(not is_first)

    asyncio.run(scenario())


def test_the_steps_of_a_traced_ensemble_are_traced_with_it(tmp_path: Path) -> None:
    """Each step's trace has the ensemble's trace as its parent. Untraced steps still pass the W3C context on."""
    path = tmp_path / "trace"
    chain = config_of("""
        name: "chain" max_batch_size: 4 platform: "ensemble"
        input [ { name: "x" data_type: TYPE_INT32 dims: [ -1 ] } ]
        output [ { name: "z" data_type: TYPE_INT32 dims: [ -1 ] } ]
        ensemble_scheduling { step [
            {
                model_name: "echo" model_version: -1
                input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
            },
            {
                model_name: "echo" model_version: -1
                input_map { key: "x" value: "y" } output_map { key: "y" value: "z" }
            }
        ] }
    """)

    async def scenario() -> None:
        stage = Stage(config_of(ECHO), trace=TraceSettings(rate=1, file=str(path)))
        tracer = stage.tracer
        tracer.settings.update("chain", {"trace_level": ["TIMESTAMPS"], "log_frequency": ["1"]})
        ensemble = HostedModel(
            spec_of(chain),
            chain,
            Ensemble(chain, lambda name, version: stage.model.submit, lambda name, version: stage.model.config),
            statistics=Statistics(LoopClock(asyncio.get_running_loop()).now_ns, lambda: 5),
            tracer=tracer,
            now_ns=LoopClock(asyncio.get_running_loop()).now_ns,
            finish=stage._finish,
            is_ensemble=True,
        )
        sent = ObservedRequest(
            InferRequest("chain", id="r", inputs=(ints("x", 1),), trace={"traceparent": "00-a-b-01"})
        )
        ensemble.submit(sent.call)
        for _ in range(2):
            assert stage.instance.batches[-1][0].request.trace == {"traceparent": "00-a-b-01"}
            stage.instance.run()
        assert sent.answers[0].outputs == (ints("z", 1),)
        assert (ensemble.statistics.execution_count, stage.statistics.execution_count) == (1, 2)

    asyncio.run(scenario())
    heads = [record for record in json.loads((tmp_path / "trace.0").read_text()) if "model_name" in record]
    assert [(head["model_name"], head["id"], head.get("parent_id")) for head in heads] == [
        ("chain", 1, None),
        ("echo", 2, 1),
        ("echo", 3, 1),
    ]
