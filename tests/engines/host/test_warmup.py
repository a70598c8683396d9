"""Warm-up: the samples of a configuration, run on each instance."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, internal
from engines.core.messages import InferResponse, TensorData
from engines.host.warmup import samples, warm_up
from tests.engines.host.parts import FakeInstance, config_of

WARM = config_of("""
    name: "warm" max_batch_size: 8
    input [
        { name: "x" data_type: TYPE_FP32 dims: [ 2 ] },
        { name: "t" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "f" data_type: TYPE_INT32 dims: [ 1 ] }
    ]
    model_warmup [
        { name: "none" batch_size: 0 },
        {
            name: "first" batch_size: 2 count: 3
            inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2 ] random_data: true } }
            inputs { key: "t" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } }
            inputs { key: "f" value { data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "f.bin" } }
            inputs { key: "START" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }
        }
    ]
""")


class Immediate(FakeInstance):
    """An instance that responds at once."""

    def execute(self, calls: Sequence[InferenceCall], done: object) -> None:
        super().execute(calls, done)  # type: ignore[arg-type]
        self.run()


def test_samples_are_made_and_run(tmp_path: Path) -> None:
    """A batch runs the given number of times on each instance; other names than inputs are controls."""
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "f.bin").write_bytes(b"\7\0\0\0 and more")
    instances = [Immediate(lambda call: [InferResponse()], name) for name in ("a", "b")]
    asyncio.run(warm_up(instances, samples(WARM, tmp_path)))
    for instance in instances:
        assert [len(batch) for batch in instance.batches] == [2, 2, 2]
        call = instance.batches[0][0]
        inputs = {tensor.name: tensor for tensor in call.request.inputs}
        assert inputs["f"] == TensorData("f", "INT32", (1, 1), b"\7\0\0\0")
        assert inputs["t"] == TensorData("t", "BYTES", (1, 1), bytes(4))
        assert (inputs["x"].shape, len(inputs["x"].data)) == ((1, 2), 8)  # type: ignore[arg-type]
        assert call.controls == (TensorData("START", "INT32", (1,), bytes(4)),)


def test_a_sample_that_fails_fails_the_load(tmp_path: Path) -> None:
    """A failing sample fails the load with Triton's text."""
    config = config_of('name: "m" model_warmup [ { name: "s" batch_size: 1 } ]')
    instance = Immediate(lambda call: [InferResponse(error=internal("cold"))])
    with pytest.raises(EngineError, match="failed to run warmup sample 's': cold; "):
        asyncio.run(warm_up([instance], samples(config, tmp_path)))


WRONG = [
    ("dims: [ -1 ] zero_data: true", "warmup setting expects all variable-size dimensions are specified for input 'x'"),
    ("dims: [ 1 ]", "warmup setting expects input 'x' to have input_data_type set"),
    ('dims: [ 1 ] input_data_file: "gone"', "failed to read warmup data file 'gone'"),
    ('dims: [ 9 ] input_data_file: "short"', "warmup setting expects 36 bytes, but the data provided from short"),
]


@pytest.mark.parametrize("wanted, text", WRONG)
def test_wrong_samples_are_reported(tmp_path: Path, wanted: str, text: str) -> None:
    """A wrong sample fails the load."""
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"1234")
    config = config_of(f"""
        name: "m" input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
        model_warmup [
            {{ name: "s" batch_size: 1 inputs {{ key: "x" value {{ data_type: TYPE_FP32 {wanted} }} }} }}
        ]
    """)
    with pytest.raises(EngineError, match=text):
        samples(config, tmp_path)
