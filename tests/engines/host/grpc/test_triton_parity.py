"""The gRPC front answers requests and refuses them as a real Triton does: same messages, same status, same text."""

import grpc
import pytest
from tritonclient.grpc import service_pb2

from gateway.demo.triton import TritonProcess
from tests.conftest import TEST_MODELS
from tests.engines.host.grpc.messages import adder, repeater, request, set_parameter, text
from tests.engines.host.stage import fronts

SERVICE = "/inference.GRPCInferenceService/"


def changed(change, **fields):
    result = adder(**fields)
    change(result)
    return result


def with_parameter(choose, name, value):
    return changed(lambda result: set_parameter(choose(result).parameters[name], value))


def first_input(result):
    return result.inputs[0]


def an_output(result):
    return result.outputs.add(name="sum")


def typed(result):
    del result.raw_input_contents[:]
    for tensor, values in zip(result.inputs, ([1, 2], [3, 4]), strict=True):
        tensor.contents.int_contents.extend(values)


UNARY = {
    "plain": adder(),
    "an id and a version": adder(id="é", model_version="1"),
    "a version with a blank": adder(model_version=" 1"),
    "no version": adder(model_version="x"),
    "a negative version": adder(model_version="-1"),
    "another version": adder(model_version="9"),
    "an unknown model": request("nope"),
    "no model": request(""),
    "a decoupled model": text("repeater", "x"),
    "a reserved parameter": adder(parameters={"triton_x": True}),
    "a sequence_id of another type": adder(parameters={"sequence_id": True}),
    "a sequence_start of another type": adder(parameters={"sequence_start": 1}),
    "a negative priority": adder(parameters={"priority": -1}),
    "a priority of another type": adder(parameters={"priority": "1"}),
    "a timeout of another type": adder(parameters={"timeout": 1.5}),
    "a parameter of another type": adder(parameters={"x": ("uint64_param", 1)}),
    "a parameter without a value": changed(lambda result: result.parameters["x"].SetInParent()),
    "parameters": text("text", "x", parameters={"n": 5, "f": 0.5, "s": "é", "b": True}),
    "typed contents": changed(typed),
    "typed and raw contents": changed(lambda result: result.inputs[0].contents.int_contents.append(1)),
    "typed contents of another type": changed(
        lambda result: (result.ClearField("raw_input_contents"), result.inputs[0].contents.fp32_contents.append(1))
    ),
    "an input without data": changed(lambda result: result.raw_input_contents.pop()),
    "data without an input": changed(lambda result: result.raw_input_contents.append(b"1234")),
    "an output twice": changed(lambda result: (an_output(result), an_output(result))),
    "classes": with_parameter(an_output, "classification", 2),
    "more classes than values": with_parameter(an_output, "classification", 9),
    "no classes": with_parameter(an_output, "classification", 0),
    "classes of another type": with_parameter(an_output, "classification", "1"),
    "a region without a size": with_parameter(first_input, "shared_memory_region", "nope"),
    "an offset without a region": with_parameter(first_input, "shared_memory_offset", 8),
    "an unknown region": changed(
        lambda result: (
            set_parameter(result.inputs[0].parameters["shared_memory_region"], "nope"),
            set_parameter(result.inputs[0].parameters["shared_memory_byte_size"], 8),
        )
    ),
}

FINAL = {"triton_enable_empty_final_response": True}
STREAMS = {
    "no request": [],
    "in order": [adder(id="1"), text("text", "hi", id="2"), adder(id="3")],
    "refused ones among others": [
        adder(id="1"),
        request("nope", id="2"),
        text("text", "x", id="3", parameters={"triton_x": True}),
        adder(id="4", model_version="x"),
        adder(id="5"),
    ],
    "decoupled": [repeater("x", 2, id="1")],
    "decoupled, the end told": [repeater("x", 2, id="1", parameters=FINAL)],
    "decoupled, no answer": [repeater("x", 0, id="1")],
    "decoupled, no answer, the end told": [repeater("x", 0, id="1", parameters=FINAL)],
    "classes": [with_parameter(an_output, "classification", 1)],
}


@pytest.fixture(scope="module")
def stage():
    with fronts() as result:
        yield result


def status(error):
    return error.code(), error.details()


def unary(url, result):
    """The response, or the status."""
    with grpc.insecure_channel(url) as channel:
        try:
            data = channel.unary_unary(SERVICE + "ModelInfer")(result.SerializeToString(), timeout=120)
        except grpc.RpcError as error:
            return status(error)
    return service_pb2.ModelInferResponse.FromString(data)


def stream(url, requests, metadata):
    """The responses, and the status behind them."""
    responses = []
    with grpc.insecure_channel(url) as channel:
        data = [result.SerializeToString() for result in requests]
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(data), timeout=120, metadata=metadata)
        try:
            responses.extend(map(service_pb2.ModelStreamInferResponse.FromString, call))
        except grpc.RpcError as error:
            return responses, status(error)
    return responses, None


@pytest.mark.triton
@pytest.mark.parametrize("name", UNARY)
def test_model_infer(name, triton, stage):
    """Functions stand in for the models of tests/models."""
    assert unary(stage.grpc_url, UNARY[name]) == unary(triton.grpc_url, UNARY[name])


@pytest.mark.triton
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("metadata", [(), (("triton_grpc_error", "true"),)], ids=["", "grpc_error"])
def test_model_stream_infer(name, metadata, triton, stage):
    """Responses in order, refusals in `error_message`."""
    ours, theirs = (stream(url, STREAMS[name], metadata) for url in (stage.grpc_url, triton.grpc_url))
    assert ours == theirs


@pytest.fixture(scope="module")
def doomed():
    """A Triton of its own: 2.51 crashes some time after a decoupled model has failed on a stream with the header
    `triton_grpc_error`."""
    only = ["--model-control-mode=explicit", "--load-model=repeater"]
    server = TritonProcess.start(TEST_MODELS, extra_args=only).wait_ready()
    yield server
    server.kill()


@pytest.mark.triton
@pytest.mark.parametrize("metadata", [(), (("triton_grpc_error", "true"),)], ids=["", "grpc_error"])
def test_failures_on_a_stream(metadata, doomed, stage):
    """A failure is a response in the stream, or the status that ends it. The models' own texts are not compared."""
    requests = [repeater("x", 3, fail_after=1, id="1")]
    seen = []
    for url in (stage.grpc_url, doomed.grpc_url):
        responses, ended = stream(url, requests, metadata)
        for each in responses:
            each.error_message = "failed" if each.error_message else ""
        seen.append((responses, ended and ended[0]))
    assert seen[0] == seen[1]
    assert (seen[0][1] is grpc.StatusCode.INTERNAL) is bool(metadata)
