"""Calls another model (BLS) in the way that `how` names, and returns its responses, one line for each."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        model, how, value = read("model")[0].decode(), read("how")[0].decode(), read("value")
        lines = WAYS[how](model, value)
        reply = np.array([json.dumps(line, sort_keys=True).encode() for line in lines], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("told", reply)])


def sync(model, value):
    return [tell(adding(model, value).exec())]


def twice(model, value):
    first = adding(model, value).exec()
    tensors = [pb_utils.Tensor("a", pb_utils.get_output_tensor_by_name(first, "sum").as_numpy())]
    tensors.append(pb_utils.Tensor("b", value))
    return [tell(asking(model, ["diff"], tensors, request_id="second").exec())]


def parallel(model, value):
    async def ask():
        return await asyncio.gather(*[adding(model, value * factor).async_exec() for factor in range(4)])

    return [tell(response) for response in asyncio.run(ask())]


def versioned(model, value):
    return [tell(adding(model, value, model_version=1).exec()), tell(adding(model, value, model_version=9).exec())]


def renamed(model, value):
    tensors = [pb_utils.Tensor("left", value), pb_utils.Tensor("right", value)]
    return [tell(asking(model, ["total"], tensors).exec())]


def parameters(model, value):
    tensors = [pb_utils.Tensor("text_input", np.array([b"bls"], dtype=np.object_))]
    request = asking(model, ["text_output"], tensors, parameters={"n": 1, "s": "x", "b": True})
    return [tell(request.exec())]


def unknown_output(model, value):
    tensors = [pb_utils.Tensor(name, value) for name in "ab"]
    return [tell(asking(model, ["nothing"], tensors).exec())]


def missing_input(model, value):
    return [tell(asking(model, ["sum"], [pb_utils.Tensor("a", value)]).exec())]


def decoupled(model, value):
    return [tell(response) for response in repeating(model, int(value[0, 0])).exec(decoupled=True)]


def decoupled_parallel(model, value):
    async def ask():
        responses = await asyncio.gather(*[repeating(model, count).async_exec(decoupled=True) for count in (1, 2)])
        return [tell(response) for each in responses for response in each]

    return asyncio.run(ask())


def decoupled_failing(model, value):
    return [tell(response) for response in repeating(model, 3, fail_after=1).exec(decoupled=True)]


def decoupled_as_plain(model, value):
    return [tell(repeating(model, 1).exec())]


def sequence(model, value):
    lines = []
    for index, number in enumerate(value[0]):
        flags = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START * (index == 0)
        flags |= pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END * (index == value.shape[1] - 1)
        tensors = [pb_utils.Tensor("value", np.array([[number]], dtype=np.int32))]
        lines.append(tell(asking(model, ["total"], tensors, correlation_id=4711, flags=flags).exec()))
    return lines


def adding(model, value, **options):
    tensors = [pb_utils.Tensor("a", value), pb_utils.Tensor("b", value * 10)]
    return asking(model, ["sum", "diff"], tensors, request_id="inner", **options)


def repeating(model, count, **numbers):
    tensors = [pb_utils.Tensor("text_input", np.array([b"again"], dtype=np.object_))]
    for name, number in {"count": count, **numbers}.items():
        tensors.append(pb_utils.Tensor(name, np.array([number], dtype=np.int32)))
    return asking(model, ["text_output"], tensors)


def asking(model, outputs, tensors, **options):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=outputs, inputs=tensors, **options)


def tell(response):
    if response.has_error():
        return {"error": response.error().message()}
    tensors = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    return {name: np.array(array, dtype=str).tolist() for name, array in tensors.items()}


WAYS = {way.__name__: way for way in (sync, twice, parallel, versioned, renamed, parameters, unknown_output)}
WAYS |= {way.__name__: way for way in (missing_input, decoupled, decoupled_parallel, decoupled_failing)}
WAYS |= {way.__name__: way for way in (decoupled_as_plain, sequence)}
