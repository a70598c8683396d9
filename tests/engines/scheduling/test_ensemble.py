"""Ensembles: a graph of models, run as one."""

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, invalid
from engines.core.messages import InferResponse, SharedMemory, TensorData, WantedOutput
from engines.scheduling.ensemble import Ensemble
from tests.engines.scheduling.stage import CANCELLED, HandClock, SchedulerClient, config


def x(name: str = "IN", shape: tuple[int, ...] = (1, 2), data: bytes = b"data") -> TensorData:
    return TensorData(name, "INT8", shape, data)


class Models:
    """The models of an ensemble: they hold their requests until the test responds."""

    def __init__(self) -> None:
        self.requests: dict[str, list[InferenceCall]] = {}
        self.missing: set[str] = set()
        self.versions: list[str] = []
        self.configs: dict[str, str] = {}

    def submit_to(self, model: str, version: str):
        if model in self.missing:
            raise EngineError(ErrorCode.UNAVAILABLE, f"Request for unknown model: '{model}' is not found")
        self.versions.append(version)
        return lambda call: self.requests.setdefault(model, []).append(call)

    def config_of(self, model: str, version: str):
        return config(self.configs.get(model, "max_batch_size: 8 input { name: 'i' dims: [2] }"))

    def answer(
        self, model: str, *outputs: TensorData, number: int = 0, is_final: bool = True, **parameters
    ) -> InferenceCall:
        call = self.requests[model][number]
        assert not call.is_over
        call.compute_infer_ns = 10
        call.respond(InferResponse(outputs, parameters), is_final=is_final)
        return call


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    maps = "".join(f"input_map {{ key: '{k}' value: '{v}' }} " for k, v in inputs.items())
    maps += "".join(f"output_map {{ key: '{k}' value: '{v}' }} " for k, v in outputs.items())
    return f"step {{ model_name: '{model}' model_version: {version} {maps} }} "


class Stage:
    def __init__(self, steps: str, inputs: str = "IN", outputs: str = "OUT", more: str = "max_batch_size: 8") -> None:
        text = f"name: 'e' {more} ensemble_scheduling {{ {steps} }} "
        for name in inputs.split():
            optional = "optional: true" if name.endswith("?") else ""
            text += f"input {{ name: '{name.rstrip('?')}' data_type: TYPE_INT8 dims: [2] {optional} }} "
        text += "".join(f"output {{ name: '{name}' data_type: TYPE_INT8 dims: [2] }} " for name in outputs.split())
        self.models = Models()
        self.scheduler = Ensemble(config(text), self.models.submit_to, self.models.config_of)
        self.client = SchedulerClient(self.scheduler.submit, HandClock())

    def submit(
        self, id: str = "1", *inputs: TensorData, outputs: tuple[WantedOutput, ...] = (), **more
    ) -> InferenceCall:
        return self.client.submit(id, inputs=inputs or (x(),), outputs=outputs, **more)

    def outputs(self, id: str = "1") -> list[tuple[TensorData, ...]]:
        return [response.outputs for response in self.client.replies[id].responses]


CHAIN = step("a", {"i": "IN"}, {"o": "T"}) + step("b", {"i": "T"}, {"o": "OUT"})
FAN = (
    step("a", {"i": "IN"}, {"o": "T", "p": "U"})
    + step("b", {"i": "T"}, {"o": "B"})
    + step("c", {"i": "U"}, {"o": "C"})
    + step("d", {"i": "B", "j": "C"}, {"o": "OUT"})
)
NO_STANDING = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


def test_steps_follow_their_tensors():
    """Each step's request has the model's own tensor names and the data of the previous response."""
    stage = Stage(CHAIN)
    call = stage.submit()
    made = b"made by a"
    requests = stage.models.requests["a"][0].request
    assert (requests.inputs, requests.outputs) == ((x("i"),), (WantedOutput("o"),))
    assert "b" not in stage.models.requests

    stage.models.answer("a", TensorData("o", "FP32", (1, 9), made), TensorData("other", "FP32", (1,), b""))
    requests = stage.models.requests["b"][0].request
    assert requests.inputs == (TensorData("i", "FP32", (1, 9), made),)
    assert requests.inputs[0].data is made

    stage.models.answer("b", x("o"))
    assert stage.client.outcomes() == ["answered"]
    assert stage.client.replies["1"].responses == [InferResponse((x("OUT"),), NO_STANDING)]
    assert call.compute_infer_ns == 20


def test_steps_run_as_soon_as_they_can():
    """Independent steps run concurrently; a step with two inputs runs when it has both."""
    stage = Stage(FAN)
    stage.submit()
    stage.models.answer("a", x("o"), x("p"))
    assert set(stage.models.requests) == {"a", "b", "c"}
    stage.models.answer("c", x("o", data=b"c's"))
    assert "d" not in stage.models.requests
    stage.models.answer("b", x("o", data=b"b's"))
    assert stage.models.requests["d"][0].request.inputs == (x("i", data=b"b's"), x("j", data=b"c's"))
    stage.models.answer("d", x("o"))
    assert stage.client.outcomes() == ["answered"]


@pytest.mark.parametrize("wanted, models", [("B", {"a", "b"}), ("T", {"a"}), ("B OUT", {"a", "b", "c", "d"})])
def test_steps_that_no_wanted_output_needs_are_skipped(wanted, models):
    """Only steps that the requested outputs need are run, as in Triton."""
    stage = Stage(FAN, outputs="OUT B T")
    stage.submit(outputs=tuple(WantedOutput(name) for name in wanted.split()))
    for model in "abcd":
        if model in stage.models.requests:
            stage.models.answer(model, x("o"), x("p"))
    assert set(stage.models.requests) == models
    assert stage.client.outcomes() == ["answered"]
    assert {tensor.name for tensor in stage.outputs()[0]} == set(wanted.split())


def test_parameters_go_to_each_step():
    """Id, parameters, priority, timeout, sequence and trace context are passed to each step, with the step's
    version."""
    stage = Stage(step("a", {"i": "IN"}, {"o": "T"}, version=3) + step("b", {"i": "T"}, {"o": "OUT"}))
    text = {
        "parameters": {"k": 1},
        "priority": 2,
        "timeout_us": 30,
        "sequence_id": "chat",
        "sequence_start": True,
        "trace": {"traceparent": "00-1-2-01"},
    }
    stage.submit("7", **text)
    stage.models.answer("a", x("o"))
    for model in "ab":
        request = stage.models.requests[model][0].request
        assert {name: getattr(request, name) for name in text} == text
        assert (request.id, request.sequence_end) == ("7", False)
    assert [stage.models.requests[model][0].request.version for model in "ab"] == ["3", ""]
    assert stage.models.versions == ["3", ""]


def test_a_step_may_set_the_position_in_a_sequence():
    """Parameters of a response override the request's."""
    stage = Stage(CHAIN)
    stage.submit(sequence_id=5, sequence_start=True)
    stage.models.answer("a", x("o"), sequence_id=9, sequence_end=True)
    request = stage.models.requests["b"][0].request
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (9, False, True)
    stage.models.answer("b", x("o"))
    text = {"sequence_id": 9, "sequence_start": False, "sequence_end": True}
    assert stage.client.replies["1"].responses[0].parameters == text


@pytest.mark.parametrize(
    "parameters, text",
    [
        (
            {"sequence_id": 1.5},
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        ),
        ({"sequence_start": 1}, "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
        ({"sequence_end": "x"}, "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_such_parameters_have_types(parameters, text):
    """Parameters of other types fail the ensemble with Triton's text."""
    stage = Stage(CHAIN)
    stage.submit()
    stage.models.answer("a", x("o"), **parameters)
    assert stage.client.outcomes() == [f"INVALID_ARG: in ensemble 'e', {text}"]


def test_an_optional_input_may_be_missing():
    """A step runs without a missing optional input, also if an earlier model has omitted that output."""
    stage = Stage(
        step("a", {"i": "IN", "j": "MORE"}, {"o": "T", "p": "U"}) + step("b", {"i": "T", "j": "U"}, {"o": "OUT"}),
        inputs="IN MORE?",
    )
    stage.submit()
    assert stage.models.requests["a"][0].request.inputs == (x("i"),)
    stage.models.answer("a", x("o"))
    assert stage.models.requests["b"][0].request.inputs == (x("i"),)
    stage.models.answer("b")
    assert (stage.client.outcomes(), stage.outputs()) == (["answered"], [()])

    stage.submit("2", x(), x("MORE", data=b"more"))
    assert stage.models.requests["a"][1].request.inputs == (x("i"), x("j", data=b"more"))


def test_one_tensor_may_be_two_inputs():
    """One tensor can be several inputs, of one model or of several."""
    stage = Stage(step("a", {"i": "IN", "j": "IN"}, {"o": "T"}) + step("b", {"i": "T", "j": "IN"}, {"o": "OUT"}))
    stage.submit()
    assert stage.models.requests["a"][0].request.inputs == (x("i"), x("j"))
    stage.models.answer("a", x("o", data=b"a's"))
    assert stage.models.requests["b"][0].request.inputs == (x("i", data=b"a's"), x("j"))


@pytest.mark.parametrize(
    "text, rows, given, requests",
    [
        # From one that batches to one that does not.
        ("max_batch_size: 0 input { name: 'i' dims: [2] }", 1, (1, 2), (2,)),
        ("max_batch_size: 0 input { name: 'i' dims: [-1, 2] }", 3, (3, 2), (3, 2)),
        ("max_batch_size: 0 input { name: 'i' dims: [2] }", 3, (3, 2), (3, 2)),
        ("max_batch_size: 4 input { name: 'i' dims: [2] }", 3, (3, 2), (3, 2)),
    ],
)
def test_shapes_on_the_way_from_a_batch(text, rows, given, requests):
    """A batch axis of 1 is removed for a model without batching."""
    stage = Stage(step("a", {"i": "IN"}, {"o": "OUT"}))
    stage.models.configs["a"] = text
    stage.submit("1", x(shape=given), rows=rows)
    assert stage.models.requests["a"][0].request.inputs[0].shape == requests


def test_shapes_on_the_way_into_a_batch():
    """A batch axis of 1 is added for a batching model, and removed from the response."""
    stage = Stage(step("a", {"i": "IN"}, {"o": "OUT"}), more="max_batch_size: 0")
    stage.submit("1", x(shape=(2,)))
    assert stage.models.requests["a"][0].request.inputs[0].shape == (1, 2)
    assert stage.models.requests["a"][0].batch_size == 1
    stage.models.answer("a", x("o", shape=(1, 2)))
    assert stage.outputs()[0][0].shape == (2,)


def test_the_batch_size_goes_along():
    """Each step has the batch size of the request."""
    stage = Stage(CHAIN)
    stage.submit("1", x(shape=(5, 2)), rows=5)
    assert stage.models.requests["a"][0].batch_size == 5


@pytest.mark.parametrize(
    "error, outcomes",
    [
        (invalid("no"), "INVALID_ARG: in ensemble 'e', no"),
        (EngineError(ErrorCode.UNAVAILABLE, "later"), "UNAVAILABLE: in ensemble 'e', later"),
    ],
)
def test_an_error_of_a_step_fails_the_ensemble(error, outcomes):
    """The ensemble fails at once with the step's code. Running steps end without effect, and no step is started."""
    stage = Stage(FAN)
    stage.submit()
    stage.models.answer("a", x("o"), x("p"))
    stage.models.requests["b"][0].fail(error)
    assert stage.client.outcomes() == [outcomes]
    assert not stage.models.requests["c"][0].is_cancelled
    stage.models.answer("c", x("o"))
    assert "d" not in stage.models.requests


def test_a_model_that_is_not_there_fails_the_ensemble():
    """No step runs, and the error is the repository's."""
    stage = Stage(CHAIN)
    stage.models.missing.add("b")
    stage.submit()
    assert stage.models.requests == {}
    assert stage.client.outcomes() == ["UNAVAILABLE: in ensemble 'e', Request for unknown model: 'b' is not found"]


def test_an_ensemble_that_cannot_continue_fails():
    """A model that ends without a response fails the ensemble."""
    stage = Stage(CHAIN)
    stage.submit()
    stage.models.requests["a"][0].finish()
    assert stage.client.outcomes() == [
        "INVALID_ARG: in ensemble 'e', [request id: 1] unexpected deadlock, at least one output is not set while no "
        "more ensemble steps can be made"
    ]


def test_an_unknown_input_is_refused():
    """An unknown output fails the request with Triton's text."""
    stage = Stage(CHAIN)
    stage.submit("1", x(), x("WHAT"))
    assert stage.client.outcomes() == [
        "INVALID_ARG: in ensemble 'e', [request id: 1] unexpected input 'WHAT' in request header that does not map to "
        "any ensemble inputs"
    ]


def test_cancelling_reaches_the_steps_that_run():
    """The client gets its error at once, and running steps are cancelled."""
    stage = Stage(FAN)
    call = stage.submit()
    stage.models.answer("a", x("o"), x("p"))
    call.cancel()
    assert stage.client.outcomes() == [CANCELLED]
    assert [stage.models.requests[model][0].is_cancelled for model in "abc"] == [False, True, True]
    for model in "bc":
        stage.models.requests[model][0].fail_cancelled()
    assert "d" not in stage.models.requests


def test_a_call_that_was_cancelled_before_runs_no_step():
    """A call that is cancelled before it is submitted runs no step."""
    stage = Stage(CHAIN)
    client = SchedulerClient(lambda call: (call.cancel(), stage.scheduler.submit(call)), HandClock())
    client.submit("1", inputs=(x(),))
    assert (client.outcomes(), stage.models.requests) == ([CANCELLED], {})


DECOUPLED = "max_batch_size: 8 model_transaction_policy { decoupled: true }"


def test_a_decoupled_step_makes_several_answers():
    """Each response runs through the later steps separately. The ensemble ends when all steps have ended."""
    stage = Stage(CHAIN, more=DECOUPLED)
    stage.submit()
    for number in range(3):
        stage.models.answer("a", x("o", data=b"%d" % number), is_final=False)
    stage.models.answer("b", x("o", data=b"B1"), number=1)
    stage.models.requests["a"][0].finish()
    stage.models.answer("b", x("o", data=b"B0"), number=0)
    assert stage.client.outcomes() == ["waits"]
    stage.models.answer("b", x("o", data=b"B2"), number=2)
    assert stage.client.outcomes() == ["answered"]
    assert [outputs[0].data for outputs in stage.outputs()] == [b"B1", b"B0", b"B2"]
    assert [call.request.inputs[0].data for call in stage.models.requests["b"]] == [b"0", b"1", b"2"]


def test_tensors_of_one_answer_stay_together():
    """Two branches after a decoupled step are joined by response number, whatever the order of their responses."""
    stage = Stage(FAN, more=DECOUPLED)
    stage.submit()
    for n in range(2):
        stage.models.answer("a", x("o", data=b"T%d" % n), x("p", data=b"U%d" % n), is_final=n == 1)
    for n in range(2):
        stage.models.answer("b", x("o", data=b"B%d" % n), number=n)
        stage.models.answer("c", x("o", data=b"C%d" % n), number=n)
    met = [tuple(tensor.data for tensor in call.request.inputs) for call in stage.models.requests["d"]]
    assert met == [(b"B0", b"C0"), (b"B1", b"C1")]


def test_a_decoupled_ensemble_may_answer_nothing():
    """The call ends without a response."""
    stage = Stage(CHAIN, more=DECOUPLED)
    stage.submit()
    stage.models.requests["a"][0].finish()
    assert (stage.client.replies["1"].is_over, stage.outputs()) == (True, [])


def test_requests_in_flight_to_a_step_may_be_limited():
    """max_inflight_requests limits a step's requests over all calls of the ensemble; further ones wait."""
    stage = Stage(CHAIN, more=DECOUPLED)
    text = (
        "name: 'e' max_batch_size: 8 input { name: 'IN' dims: [2] } output { name: 'OUT' dims: [2] } "
        f"model_transaction_policy {{ decoupled: true }} ensemble_scheduling {{ {CHAIN} max_inflight_requests: 2 }}"
    )
    stage.scheduler = Ensemble(config(text), stage.models.submit_to, stage.models.config_of)
    stage.client = SchedulerClient(stage.scheduler.submit, HandClock())
    first = stage.submit()
    for number in range(4):
        stage.models.answer("a", x("o", data=b"%d" % number), is_final=number == 3)
    requests = stage.models.requests["b"]
    assert (len(requests), stage.scheduler.num_pending) == (2, 2)
    stage.models.answer("b", x("o"), number=0)
    assert (len(requests), stage.scheduler.num_pending) == (3, 1)
    first.cancel()
    requests[1].fail_cancelled()
    requests[2].fail_cancelled()
    assert (len(requests), stage.scheduler.num_pending) == (3, 0)

    stage.submit("2")
    stage.models.answer("a", x("o"), number=1)
    assert len(requests) == 4


def test_ensembles_may_be_nested():
    """The error names each ensemble on its path."""
    inner = Stage(CHAIN)
    outer = Ensemble(
        config(f"name: 'outer' input {{ name: 'IN' }} output {{ name: 'OUT' }} ensemble_scheduling {{ {CHAIN} }}"),
        lambda model, version: inner.scheduler.submit if model == "b" else inner.models.submit_to(model, version),
    )
    client = SchedulerClient(outer.submit, HandClock())
    client.submit("1", inputs=[x()])
    inner.models.answer("a", TensorData("o", "INT8", (1, 2), b"o"))
    assert client.outcomes() == [
        "INVALID_ARG: in ensemble 'outer', in ensemble 'e', [request id: 1] unexpected input 'i' in request header "
        "that does not map to any ensemble inputs"
    ]


def test_outputs_in_shared_memory_are_written_by_their_step():
    """The step that produces the output gets the client's region, unless its classes are requested."""
    stage = Stage(CHAIN, outputs="OUT T")
    region = SharedMemory("/region", 0, 8)
    stage.submit(outputs=(WantedOutput("OUT", shared_memory=region), WantedOutput("T", 2, region)))
    assert stage.models.requests["a"][0].request.outputs == (WantedOutput("o"),)
    stage.models.answer("a", x("o"))
    assert stage.models.requests["b"][0].request.outputs == (WantedOutput("o", shared_memory=region),)


def test_steps_that_are_answered_at_once():
    """Models may respond before `submit` returns: each tensor is still used once, and the ensemble responds once."""
    done = []

    def submit(call: InferenceCall) -> None:
        done.append(call.request.model)
        call.respond(InferResponse((x("o"), x("p"))), is_final=True)

    ensemble = Ensemble(
        config(f"name: 'e' input {{ name: 'IN' }} output {{ name: 'OUT' }} ensemble_scheduling {{ {FAN} }}"),
        lambda model, version: submit,
    )
    client = SchedulerClient(ensemble.submit, HandClock())
    client.submit("1", inputs=[x()])
    assert (client.outcomes(), done) == (["answered"], ["a", "b", "c", "d"])


def test_a_stopped_ensemble_takes_no_more():
    """A running call continues; new ones are refused."""
    stage = Stage(CHAIN)
    stage.submit()
    stage.scheduler.stop()
    stage.submit("2")
    stage.models.answer("a", x("o"))
    stage.models.answer("b", x("o"))
    assert stage.client.outcomes("1") == ["answered"]
    assert stage.client.outcomes("2")[0].startswith("UNAVAILABLE: [request id: 2] Server is stopping")
