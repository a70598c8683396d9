"""The messages in the engine host's benchmark: each request byte for byte, and the values of its right answer.

Servers format their answers differently, so one answer is decoded and compared, and after that only lengths are
checked.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.grpc_messages import INFER_PATH
from bench.messages import TENSOR_BYTES
from bench.processes import BenchError
from gateway.protocol.protobuf import message

# NumPy data types of the outputs.
NUMPY = {"INT32": np.int32, "FP32": np.float32}

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of shared memory that takes a tensor's place in a message."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Inference:
    """One inference: its inputs as arrays, and the right outputs for them; empty if only their shape is known. With
    `regions`, the named tensors are in shared memory."""

    model: str
    datatype: str
    inputs: Values
    outputs: Values
    regions: Mapping[str, Region] | None = None

    @property
    def rest_path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def rest_body(self) -> bytes:
        """The request in plain JSON, as scripts and browsers send it."""
        inputs = []
        for name, array in self.inputs.items():
            tensor = {"name": name, "shape": list(array.shape), "datatype": self.datatype}
            region = (self.regions or {}).get(name)
            inputs.append(tensor | ({"parameters": _place(region)} if region else {"data": array.ravel().tolist()}))
        outputs = [
            {"name": name} | ({"parameters": _place(region)} if (region := (self.regions or {}).get(name)) else {})
            for name in self.outputs
        ]
        return json.dumps({"inputs": inputs, "outputs": outputs}, separators=(",", ":")).encode()

    def grpc_message(self) -> bytes:
        """Raw tensors, as all of Triton's clients write them."""
        request = message("inference.ModelInferRequest")(model_name=self.model)
        for name, array in self.inputs.items():
            made = request.inputs.add(name=name, datatype=self.datatype, shape=list(array.shape))
            region = (self.regions or {}).get(name)
            if region:
                _fill(made.parameters, region)
            else:
                request.raw_input_contents.append(array.tobytes())
        for name in self.outputs:
            made = request.outputs.add(name=name)
            if region := (self.regions or {}).get(name):
                _fill(made.parameters, region)
        return bytes(request.SerializeToString())

    def check_rest(self, body: bytes) -> None:
        """Raises: BenchError if the answer is not the right one."""
        outputs = {output["name"]: output for output in json.loads(body)["outputs"]}
        self._check({name: output.get("data") for name, output in outputs.items()})

    def check_grpc(self, reply: bytes) -> None:
        """Raises: BenchError if the answer is not the right one."""
        response = message("inference.ModelInferResponse").FromString(reply)
        found: dict[str, Any] = {}
        for index, output in enumerate(response.outputs):
            if output.name in (self.regions or {}):
                found[output.name] = None
            elif response.raw_output_contents:
                found[output.name] = np.frombuffer(response.raw_output_contents[index], NUMPY[self.datatype])
            else:  # MLServer's are protobuf's own numbers
                found[output.name] = list(output.contents.int_contents or output.contents.fp32_contents)
        self._check(found)

    def _check(self, found: Mapping[str, Any]) -> None:
        if found.keys() != self.outputs.keys():
            raise BenchError(f"{self.model} answered {sorted(found)} instead of {sorted(self.outputs)}")
        for name, right in self.outputs.items():
            if name not in (self.regions or {}) and right is not None:
                values = np.asarray(found[name]).ravel()
                if not np.array_equal(values, np.asarray(right).ravel()):
                    raise BenchError(f"{self.model} answered {name} = {values[:8]}...")


def _place(region: Region) -> dict[str, Any]:
    return {
        "shared_memory_region": region.name,
        "shared_memory_offset": region.offset,
        "shared_memory_byte_size": region.num_bytes,
    }


def _fill(parameters: Any, region: Region) -> None:
    for name, value in _place(region).items():
        if isinstance(value, str):
            parameters[name].string_param = value
        else:
            parameters[name].int64_param = value


_A, _B = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 100, dtype=np.int32)
ADDER = Inference("adder", "INT32", {"a": _A, "b": _B}, {"sum": _A + _B, "diff": _A - _B})

FEATURES = 1024
_FEATURES = np.linspace(-1, 1, FEATURES, dtype=np.float32).reshape(1, FEATURES)


def tower(model: str) -> Inference:
    """A row of features; the model's output is not known beforehand."""
    return Inference(model, "FP32", {"features": _FEATURES}, {"scores": None})


REGION = "bench"
LARGE, SMALL = TENSOR_BYTES, 64


def in_shared_memory(num_bytes: int) -> Inference:
    """One tensor in, the same out, both in a region of twice the large size; the request has only its name."""
    array = np.zeros((1, num_bytes // 4), dtype=np.float32)
    regions = {"INPUT0": Region(REGION, 0, num_bytes), "OUTPUT0": Region(REGION, LARGE, num_bytes)}
    return Inference("identity_fp32", "FP32", {"INPUT0": array}, {"OUTPUT0": None}, regions)


INFERENCES: Mapping[str, Inference] = {
    "adder": ADDER,
    **{name: tower(name) for name in ("onnx_alone", "onnx_batched", "torch_alone", "torch_batched")},
    "shm_large": in_shared_memory(LARGE),
    "shm_small": in_shared_memory(SMALL),
}
GRPC_PATH = INFER_PATH
PROTOCOLS: Sequence[str] = ("grpc", "rest")
