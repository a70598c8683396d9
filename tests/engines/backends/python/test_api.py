"""`triton_python_backend_utils` as models use it: requests, responses, tensors, other models, the host."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import SharedMemory, TensorData, WantedOutput
from engines.host.custom_metrics import CustomMetrics
from engines.instances import InstanceSet
from tests.engines.instances.stage import (
    TEST_MODELS,
    TEXT_CONFIG,
    Stage,
    array_of,
    host_of,
    model,
    read,
    request,
    tensor,
    texts,
)

# Runs the received text as the body of a function of `request`; the result is returned as JSON.
RUNNER = """
def initialize(self, args):
    self.args = args
    self.kept = []

def run(self, request):
    code = pb.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
    names = {"request": request, "self": self, **globals()}
    exec("def body():\\n" + "".join("    " + line + "\\n" for line in code.splitlines()), names)
    return names["body"]()

def tell(self, value):
    return pb.InferenceResponse([pb.Tensor("text", np.array([json.dumps(value).encode()], object))])

def execute(self, requests):
    return [self.tell(self.run(request)) for request in requests]
"""
MORE_INPUTS = (
    '{ name: "text", data_type: TYPE_STRING, dims: [ -1 ] }, '
    '{ name: "x", data_type: TYPE_FP32, dims: [ -1 ], optional: true }, '
    '{ name: "h", data_type: TYPE_BF16, dims: [ -1 ], optional: true }'
)


class Control:
    """A host with the models of `infer`."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def is_ready(self, name: str, version: str) -> bool:
        return name in ("adder", "repeater", "awaits", "gone") and version in ("", "1")

    def is_decoupled(self, name: str, version: str) -> bool:
        return name in ("repeater", "awaits")

    async def load(self, name: str, config: str | None, files: Any) -> None:
        if name == "bad":
            raise EngineError(ErrorCode.INVALID_ARG, "failed to load 'bad'")
        self.loaded.append((name, config, dict(files)))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        self.loaded.append((name, unload_dependents))


control, metrics = Control(), CustomMetrics()


@pytest.fixture(scope="module")
def runner(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceSet]:
    others = {name: stage.start(read(TEST_MODELS / name)) for name in ("adder", "repeater")}
    config = TEXT_CONFIG.replace('{ name: "text", data_type: TYPE_STRING, dims: [ -1 ] }', MORE_INPUTS, 1)
    spec = model(tmp_path_factory.mktemp("models") / "runner", RUNNER, config)
    yield stage.start(spec, infer=host_of(stage, **others), control=control, metrics=metrics)


def run(stage: Stage, running: InstanceSet, code: str, *inputs: TensorData, **fields: Any) -> Any:
    (text,) = texts(stage.ask(running, tensor("text", [code]), *inputs, **fields))
    return json.loads(text)


FACTS = [
    ("[request.request_id(), request.correlation_id(), request.flags(), request.timeout()]", ["r", "s", 3, 7]),
    ("json.loads(request.parameters())", {"a": 1, "b": "x", "c": True}),
    ("sorted(request.requested_output_names())", ["text"]),
    ("json.loads(request.trace().get_context())", {"traceparent": "00-1"}),
    ("request.is_cancelled()", False),
    ("sys.argv", [""]),
    ("[each.name() for each in request.inputs()]", ["text"]),
    ("pb.get_input_tensor_by_name(request, 'nothing')", None),
    ("pb.get_input_tensor_by_name(request, 'text').shape()", [1]),
    ("pb.get_input_tensor_by_name(request, 'text').triton_dtype()", 13),
    ("pb.get_input_tensor_by_name(request, 'text').is_cpu()", True),
    ("str(pb.get_input_tensor_by_name(request, 'text').as_numpy().dtype)", "object"),
    ("[pb.triton_string_to_numpy(each).__name__ for each in ('TYPE_FP16', 'TYPE_STRING')]", ["float16", "object_"]),
    ("[pb.numpy_to_triton_type(each) for each in (np.int64, np.float32, np.object_, np.bytes_)]", [9, 11, 13, 13]),
    ("pb.serialize_byte_tensor(np.array([b'a', 'bc', 1], object)).decode()", "\1\0\0\0a\2\0\0\0bc\1\0\0\0001"),
    ("pb.deserialize_bytes_tensor(b'\\2\\0\\0\\0bc').astype(str).tolist()", ["bc"]),
    ("list(pb.serialize_byte_tensor(np.array([], object)))", []),
    ("pb.get_model_dir() == os.path.dirname(os.path.abspath(sys.modules['1.model'].__file__))", True),
    ("{key: self.args[key] for key in self.args if key not in ('model_config', 'model_repository')}", {
        "model_instance_kind": "CPU", "model_instance_name": "runner_0_0", "model_instance_device_id": "0",
        "model_version": "1", "model_name": "runner",
    }),
    ("os.listdir(self.args['model_repository']).sort()", None),
    ("json.loads(self.args['model_config'])['input'][0]['dims']", [-1]),
    ("pb.get_output_config_by_name(json.loads(self.args['model_config']), 'text')['data_type']", "TYPE_STRING"),
    ("pb.get_input_config_by_name(json.loads(self.args['model_config']), 'z')", None),
    ("pb.using_decoupled_model_transaction_policy(json.loads(self.args['model_config']))", False),
    ("pb.TritonError('e', pb.TritonError.CANCELLED).code() == pb.TritonError.CANCELLED", True),
    ("pb.Tensor('y', np.ones(2, '<f4')).as_numpy().tolist()", [1.0, 1.0]),
    ("[pb.TritonError('e').code() == pb.TritonError.INTERNAL, pb.TritonError('e').message()]", [True, "e"]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), FACTS, ids=range(len(FACTS)))
def test_facts(stage: Stage, runner: InstanceSet, code: str, expected: Any) -> None:
    """The properties of requests and tensors, and the results of the utility functions."""
    fields: dict[str, Any] = {
        "id": "r", "sequence_id": "s", "sequence_start": True, "sequence_end": True, "timeout_us": 7,
        "parameters": {"a": 1, "b": "x", "c": True}, "trace": {"traceparent": "00-1"},
    }  # fmt: skip
    assert run(stage, runner, f"return {code}", **fields) == expected


def test_inputs_can_be_written_and_kept(stage: Stage, runner: InstanceSet) -> None:
    """A model may write into its input arrays and keep them: later requests do not change them."""
    for size in (4, 100_000):
        keep = "x = pb.get_input_tensor_by_name(request, 'x').as_numpy()\nx += 1\nself.kept.append(x)\nreturn 0"
        for number in range(4):
            run(stage, runner, keep, tensor("x", np.full(size, number, np.float32)))
        reply = run(
            stage, runner, "kept, self.kept = self.kept, []\nreturn [[float(k.min()), float(k.max())] for k in kept]"
        )
        assert reply == [[number + 1, number + 1] for number in range(4)]


def test_dlpack(stage: Stage, runner: InstanceSet) -> None:
    """DLPack converts in both directions without a copy, BF16 included. Tensors that DLPack cannot describe are
    refused."""
    code = """
x = pb.get_input_tensor_by_name(request, "x")
h = pb.get_input_tensor_by_name(request, "h")
def refusal(action):
    try:
        action()
    except pb.TritonModelException as error:
        return str(error)
seen = np.from_dlpack(x)
x.as_numpy()[0] = 7
half = pb.Tensor.from_dlpack("y", h.to_dlpack())
capsule = x.to_dlpack()
return [
    seen.tolist(),
    [half.triton_dtype(), half.shape()],
    pb.Tensor.from_dlpack("y", capsule).as_numpy().tolist(),
    refusal(lambda: pb.Tensor.from_dlpack("y", capsule)),
    refusal(lambda: pb.Tensor.from_dlpack("y", np.ones((2, 3)).T)),
    refusal(lambda: pb.Tensor.from_dlpack("y", 1)),
    refusal(h.as_numpy),
    refusal(pb.Tensor("y", np.array([b"a"], object)).to_dlpack),
]
"""
    no_tensor = (
        "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
        "`__dlpack_device__` attributes"
    )
    assert run(stage, runner, code, tensor("x", np.float32([1, 2])), tensor("h", np.uint16([1, 2]), "BF16")) == [
        [7, 2],
        [14, [2]],
        [7, 2],
        no_tensor,  # a capsule is good for once
        "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.",
        no_tensor,
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead.",
        "DLPack does not have support for string tensors.",
    ]


BLS = """
def ask(model="adder", names=("sum", "diff"), **fields):
    inputs = [pb.Tensor(name, np.array([[3, 4]], np.int32)) for name in ("a", "b")]
    return pb.InferenceRequest(model_name=model, requested_output_names=list(names), inputs=inputs, **fields)
def told(response):
    if response.has_error():
        return response.error().message()
    return {each.name(): each.as_numpy().tolist() for each in response.output_tensors()}
def texts(model="repeater"):
    inputs = [pb.Tensor("text_input", np.array([b"hi"], object)), pb.Tensor("count", np.array([3], np.int32))]
    return pb.InferenceRequest(model_name=model, requested_output_names=["text_output"], inputs=inputs)
"""


def test_other_models_answer(stage: Stage, runner: InstanceSet) -> None:
    """`exec` blocks until the other model's response or error, while the host serves other requests."""
    assert run(stage, runner, BLS + "return told(ask().exec())") == {"sum": [[6, 8]], "diff": [[0, 0]]}
    assert run(stage, runner, BLS + "return told(ask(names=['sum']).exec())") == {"sum": [[6, 8]]}
    assert run(stage, runner, BLS + "return told(ask('nope').exec())") == (
        "Model nope - Error when running inference: Failed for execute the inference request. Model 'nope' is not "
        "ready."
    )
    refused = run(stage, runner, BLS + "return told(ask('gone').exec())")
    assert refused == "Model gone - Error when running inference: no model gone"  # from the scheduler
    refused = run(stage, runner, BLS + "return told(texts().exec())")
    assert refused.startswith("Model repeater - Error when running inference: Model repeater is using the decoupled.")


def test_other_models_answer_with_large_tensors(stage: Stage, runner: InstanceSet) -> None:
    """Large tensors go through shared memory, whose blocks are used again."""
    code = BLS + (
        "big = np.arange(200_000, dtype=np.int32).reshape(1, -1)\n"
        "request = pb.InferenceRequest(model_name='adder', requested_output_names=['sum', 'diff'],"
        " inputs=[pb.Tensor('a', big), pb.Tensor('b', big)])\n"
        "responses = [request.exec() for _ in range(5)]\n"
        "return [bool((pb.get_output_tensor_by_name(each, 'sum').as_numpy() == 2 * big).all()) for each in responses]"
    )
    assert run(stage, runner, code) == [True] * 5


def test_streams_of_other_models(stage: Stage, runner: InstanceSet) -> None:
    """Responses of a decoupled model are an iterator, which can be cancelled early."""
    code = BLS + "return [told(each) for each in texts().exec(decoupled=True)]"
    assert run(stage, runner, code.replace("tolist()", "astype(str).tolist()"))[:3] == [{"text_output": ["hi"]}] * 3
    assert (
        run(
            stage,
            runner,
            BLS + "answers = texts().exec(decoupled=True)\nnext(answers)\nanswers.cancel()\nreturn list(answers)",
        )
        == []
    )


def test_inferences_at_the_same_time(stage: Stage, runner: InstanceSet) -> None:
    """Inferences run concurrently, awaited in an event loop or called from threads."""
    code = (
        BLS
        + """
import asyncio
from concurrent.futures import ThreadPoolExecutor
async def both():
    return await asyncio.gather(*(ask().async_exec() for _ in range(5)))
with ThreadPoolExecutor(4) as pool:
    responses = list(pool.map(lambda _: ask().exec(), range(8)))
return [told(each)["sum"] for each in [*asyncio.run(both()), *responses]]
"""
    )
    assert run(stage, runner, code) == [[[6, 8]]] * 13


# Responds once the file that its text names is there.
AWAITS = """
def execute(self, requests):
    path = pb.get_input_tensor_by_name(requests[0], "text").as_numpy()[0].decode()
    deadline = time.monotonic() + 20
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.005)
    sender = requests[0].get_response_sender()
    found = np.array([str(os.path.exists(path)).encode()], object)
    sender.send(pb.InferenceResponse([pb.Tensor("text", found)]), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_stream_that_is_awaited_lets_others_run(
    stage: Stage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """While a coroutine awaits the first response of a decoupled model, the model's other coroutines go on."""
    config = TEXT_CONFIG + "model_transaction_policy { decoupled: true }"
    awaits = stage.start(model(tmp_path_factory.mktemp("models") / "awaits", AWAITS, config))
    adder = stage.start(read(TEST_MODELS / "adder"))
    spec = model(tmp_path_factory.mktemp("models") / "runner", RUNNER, TEXT_CONFIG)
    caller = stage.start(spec, infer=host_of(stage, awaits=awaits, adder=adder), control=control)
    code = (
        BLS
        + f"""
import asyncio
async def reader():
    path = pb.Tensor("text", np.array([b{str(tmp_path / "now")!r}], object))
    request = pb.InferenceRequest(model_name="awaits", requested_output_names=["text"], inputs=[path])
    answers = [*await request.async_exec(decoupled=True)]
    return [told(each) if each.has_error() else told(each)["text"][0].decode() for each in answers]
async def writer():
    for _ in range(20):
        await ask().async_exec()
    open({str(tmp_path / "now")!r}, "w").close()
async def both():
    return (await asyncio.gather(reader(), writer()))[0]
return asyncio.run(both())
"""
    )
    assert run(stage, caller, code) == ["True"]


def test_control_of_models(stage: Stage, runner: InstanceSet) -> None:
    """Load, unload and readiness reach the host; its refusals come back."""
    code = """
pb.load_model("m", config="{}", files={"file:1/model.py": b"x"})
pb.unload_model("m", unload_dependents=True)
try:
    pb.load_model("bad")
except pb.TritonModelException as error:
    return [pb.is_model_ready("adder"), pb.is_model_ready("adder", "2"), str(error)]
"""
    assert run(stage, runner, code) == [True, False, "Failed to load model: failed to load 'bad'"]
    assert control.loaded == [("m", "{}", {"file:1/model.py": b"x"}), ("m", True)]


def test_metrics(stage: Stage, runner: InstanceSet) -> None:
    """The host exports the metrics of a model; an invalid operation raises TritonModelException."""
    code = """
self.family = pb.MetricFamily(name="made", description="d", kind=pb.MetricFamily.COUNTER)
self.metric = self.family.Metric(labels={"a": "b"})
self.metric.increment(2)
self.metric.increment(3)
try:
    self.metric.set(1)
except pb.TritonModelException as error:
    return [self.metric.value(), str(error)]
"""
    value, text = run(stage, runner, code)
    assert value == 5 and text == "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set"
    assert [family.name for family in metrics.families()] == ["made"]


def test_metrics_outlive_their_family(stage: Stage, runner: InstanceSet) -> None:
    """A metric works as long as the model has it, also where the family was a temporary; Triton's raises then."""
    code = """
metric = pb.MetricFamily("temporary", "", pb.MetricFamily.COUNTER).Metric()
metric.increment(2)
return metric.value()
"""
    assert run(stage, runner, code) == 2


def test_clients_shared_memory(stage: Stage, runner: InstanceSet) -> None:
    """An input is read from a client's region and an output is written into it. A region that is too small fails the
    request."""
    from multiprocessing.shared_memory import SharedMemory as Region

    region = Region(create=True, size=4096)
    try:
        code = b"return float(pb.get_input_tensor_by_name(request, 'x').as_numpy().sum())"
        region.buf[64:72] = np.float32([1, 2]).tobytes()
        place = SharedMemory(f"/{region.name.lstrip('/')}", 64, 8)
        for size in (64, 2):
            requested = request(tensor("text", [code.decode()]), TensorData("x", "FP32", (2,), place))
            there = WantedOutput("text", shared_memory=SharedMemory(place.key, 128, size))
            requested = type(requested)("runner", inputs=requested.inputs, outputs=(there,))
            response = stage.execute(runner, requested)[0].one()
            if size == 64:
                (output,) = response.outputs
                assert output.data == SharedMemory(place.key, 128, 7)
                assert bytes(region.buf[128:135]) == b"\3\0\0\0" + b"3.0"
            else:
                assert response.error is not None
                assert "(2 bytes) should be at least 7 bytes to hold the results" in response.error.message
    finally:
        region.close()
        region.unlink()


DECOUPLED = """
def execute(self, requests):
    for request in requests:
        act = pb.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
        getattr(self, act)(request, request.get_response_sender())

def text(self, value):
    return pb.InferenceResponse([pb.Tensor("text", np.array([value.encode()], object))], parameters={"n": 1})

def late(self, request, sender):
    def send():
        sender.send(self.text("one"))
        sender.send(self.text("two"), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    threading.Timer(0.05, send).start()

def fails(self, request, sender):
    sender.send(self.text("one"))
    sender.send(pb.InferenceResponse(error=pb.TritonError("no more")))
    sender.send(flags=1)

def drops(self, request, sender):
    sender.send(self.text("one"))

def nothing(self, request, sender):
    sender.send(flags=1)

def after(self, request, sender):
    sender.send(flags=1)
    sender.send(flags=1)

def raises(self, request, sender):
    sender.send(self.text("one"))
    raise ValueError("boom")
"""
STREAMS = [
    ("late", ["one", "two"]),
    ("fails", ["one", "error: no more"]),
    ("drops", ["one"]),
    ("nothing", []),
    ("after", []),
    ("raises", ["one", "error: Failed to process the request(s) for model 'streamer_0_0', message: ValueError: boom"]),
]


@pytest.fixture(scope="module")
def streamer(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    config = TEXT_CONFIG + "model_transaction_policy { decoupled: true }"
    return stage.start(model(tmp_path_factory.mktemp("models") / "streamer", DECOUPLED, config))


@pytest.mark.parametrize(("act", "expected"), STREAMS, ids=[act for act, _ in STREAMS])
def test_decoupled_models(stage: Stage, streamer: InstanceSet, act: str, expected: list[str]) -> None:
    """Responses arrive when they are sent, and the end always arrives, even if no sender is left."""
    (answers,) = stage.execute(streamer, request(tensor("text", [act])))
    reply = [
        f"error: {each.error.message.partition(chr(10))[0]}" if each.error else texts(each)[0]
        for each in answers.wait()
    ]
    assert reply == expected


def test_rescheduled_requests_come_again(stage: Stage, tmp_path: Path) -> None:
    """The scheduler runs a rescheduled request again."""
    code = """
    def execute(self, requests):
        self.count = getattr(self, "count", 0) + 1
        if self.count < 3:
            requests[0].set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [None]
        return [pb.InferenceResponse([pb.Tensor("text", np.array([str(self.count).encode()], object))])]
    """
    running = stage.start(model(tmp_path / "again", code))
    again = host_of(stage, model=running)
    (answers,) = stage.execute(running, request(tensor("text", ["x"])), reschedule=again)
    assert texts(answers.one()) == ["3"]


def test_a_model_without_iterative_sequences_cannot_reschedule(stage: Stage, tmp_path: Path) -> None:
    """Only the scheduler of iterative sequences has a way back into its queue; elsewhere the request fails."""
    code = """
    def execute(self, requests):
        requests[0].set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None]
    """
    running = stage.start(model(tmp_path / "never", code))
    (answers,) = stage.execute(running, request(tensor("text", ["x"])))
    assert "cannot reschedule its requests" in answers.error().message


STATEFUL = """
    backend: "python"
    input [ { name: "x", data_type: TYPE_INT32, dims: [ 1 ] } ]
    output [ { name: "y", data_type: TYPE_INT32, dims: [ 1 ] } ]
    sequence_batching { state [ { input_name: "in" output_name: "out" data_type: TYPE_INT32 dims: [ 1 ]
        initial_state: { name: "i" data_type: TYPE_INT32 dims: [ 1 ] data_file: "first" } } ] }
"""


def test_implicit_state(stage: Stage, tmp_path: Path) -> None:
    """The state of a sequence is kept from its first step to its last."""
    code = """
    def execute(self, requests):
        out = []
        for request in requests:
            x, state = (pb.get_input_tensor_by_name(request, each).as_numpy() for each in ("x", "in"))
            out.append(pb.InferenceResponse([pb.Tensor("y", state + x), pb.Tensor("out", state + x)]))
        return out
    """
    directory = tmp_path / "stateful"
    (directory / "initial_state").mkdir(parents=True)
    (directory / "initial_state" / "first").write_bytes(np.int32([100]).tobytes())
    running = stage.start(model(directory, code, STATEFUL))

    def step(key: str, value: int, **fields: Any) -> int:
        (answers,) = stage.execute(running, request(tensor("x", np.int32([value])), **fields), state_key=key)
        (output,) = answers.one().outputs
        return int(array_of(output)[0])

    assert step("a", 1, sequence_start=True) == 101
    assert step("b", 5, sequence_start=True) == 105
    assert step("a", 1) == 102
    assert step("a", 1, sequence_end=True) == 103
    assert step("a", 1) == 101
    assert step("b", 1) == 106
    stage.do(lambda: running.forget("b"))
    assert step("b", 1) == 101
    assert [step("", 1), step("", 1)] == [101, 101]  # the state of a step without a sequence is not stored


def test_configurations_are_completed(stage: Stage, tmp_path: Path) -> None:
    """`auto_complete_config` completes the configuration, and `initialize` gets the completed one."""
    code = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "text", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        assert config["max_batch_size"] == 4 and config["input"][0]["name"] == "text", config

    async def execute(self, requests):
        return [pb.InferenceResponse([pb.get_input_tensor_by_name(each, "text")]) for each in requests]
    """
    running = stage.start(model(tmp_path / "open", code, 'backend: "python"'))
    assert running.config.max_batch_size == 4 and list(running.config.dynamic_batching.preferred_batch_size) == [4]
    assert running.config.instance_group[0].name == "open"
    x = TensorData("text", "BYTES", (1, 1), b"\1\0\0\0x")
    assert texts(stage.ask(running, x)) == ["x"]


def test_nothing_runs_here_that_is_a_model_s() -> None:
    """The host's own process has no thread of the model runtime."""
    assert not [each.name for each in threading.enumerate() if each.name in ("lifeline", "model's loop")]
