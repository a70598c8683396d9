"""Responses as ModelInferResponse and ModelStreamInferResponse messages: protobuf parses the hand-written encoding."""

import gzip
import struct
import zlib

import pytest

from engines.core.errors import EngineError
from engines.core.messages import InferResponse, SharedMemory, TensorData
from engines.host.grpc.responses import empty_final, framed, streamed, write_infer
from gateway.protocol.conversion.stream import stream_error
from gateway.protocol.protobuf import message, parse
from tests.engines.host.fake_service import FakeService

MODEL = FakeService().models["classifier"]


def parsed(pieces):
    return parse("inference.ModelInferResponse", b"".join(pieces))


def expected(**fields):
    return message("inference.ModelInferResponse")(model_name="classifier", model_version="1", **fields)


def test_outputs_and_their_data():
    """Each output has a raw content, empty in shared memory; views work like bytes."""
    outputs = (
        TensorData("x", "INT32", (1, 300), bytes(1200)),
        TensorData("s", "FP32", (2,), SharedMemory("/r", 0, 8)),
        TensorData("t", "BYTES", (), memoryview(b"\1\0\0\0z")),
    )
    wanted = expected(id="é", raw_output_contents=[bytes(1200), b"", b"\1\0\0\0z"])
    wanted.outputs.add(name="x", datatype="INT32", shape=[1, 300])
    wanted.outputs.add(name="s", datatype="FP32", shape=[2])
    wanted.outputs.add(name="t", datatype="BYTES")
    assert parsed(write_infer(MODEL, "é", InferResponse(outputs), {})) == wanted


def test_parameters_of_each_type():
    """Each type of value uses its InferParameter field."""
    written = write_infer(MODEL, "", InferResponse((), {"b": True, "i": -1, "d": 0.5, "s": "x"}), {})
    wanted = expected()
    wanted.parameters["b"].bool_param = True
    wanted.parameters["i"].int64_param = -1
    wanted.parameters["d"].double_param = 0.5
    wanted.parameters["s"].string_param = "x"
    assert parsed(written) == wanted


def test_classes_stand_in_for_values():
    """An output with classification has the highest classes of each batch element, with the model's labels."""
    scores = TensorData("probabilities", "FP32", (1, 4), struct.pack("<4f", 0.1, 0.2, 0.3, 0.9))
    result = parsed(write_infer(MODEL, "", InferResponse((scores,)), {"probabilities": 1}))
    assert result.outputs[0].datatype == "BYTES"
    assert list(result.outputs[0].shape) == [1, 1]
    assert result.raw_output_contents[0][4:] == b"0.900000:3:locomotive"
    with pytest.raises(EngineError, match="unsupported type 'BYTES'"):
        write_infer(MODEL, "", InferResponse((TensorData("probabilities", "BYTES", (1,), b""),)), {"probabilities": 1})


@pytest.mark.parametrize("is_final", [True, False])
def test_a_streamed_response_reports_whether_it_is_the_last(is_final):
    """`triton_final_response` is set, beside other parameters."""
    response = InferResponse((), {"own": 1})
    result = parse(
        "inference.ModelStreamInferResponse",
        b"".join(streamed(write_infer(MODEL, "7", response, {}), is_final=is_final)),
    )
    assert result.error_message == ""
    assert result.infer_response.parameters["triton_final_response"].bool_param is is_final
    assert result.infer_response.parameters["own"].int64_param == 1
    assert result.infer_response.id == "7"


def test_failures_on_a_stream():
    """The error of a request that was not submitted has only its id."""
    result = parse("inference.ModelStreamInferResponse", stream_error("no", "7"))
    assert (result.error_message, result.infer_response.id, result.infer_response.model_name) == ("no", "7", "")
    assert not result.infer_response.parameters
    result = parse("inference.ModelStreamInferResponse", stream_error("no", "7", "m", "", is_final=False))
    assert (result.error_message, result.infer_response.model_name) == ("no", "m")
    assert result.infer_response.parameters["triton_final_response"].bool_param is False
    result = parse("inference.ModelStreamInferResponse", b"".join(empty_final("7", "m", "")))
    assert (result.infer_response.id, result.infer_response.model_name) == ("7", "m")
    assert result.infer_response.parameters["triton_final_response"].bool_param is True


@pytest.mark.parametrize("sizes", [(), (1, 2), (40_000,), (1, 40_000, 2), (40_000, 40_000), (5, 70_000)])
def test_framing_joins_what_is_small(sizes):
    """Small pieces are joined and large ones sent unchanged. Together they are the message, prefixed by its length."""
    pieces = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    result = framed(pieces)
    assert b"".join(result) == b"\0" + sum(sizes).to_bytes(4, "big") + b"".join(pieces)
    assert len(result) <= 2 * sum(size > 32_768 for size in sizes) + 1


@pytest.mark.parametrize(("encoding", "read"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)])
def test_compressed_messages(encoding, read):
    """The compressed flag is set, and the length is that of the compressed message."""
    (result,) = framed([b"a" * 1000, b"b"], (encoding, 6))
    assert result[0] == 1
    assert int.from_bytes(result[1:5], "big") == len(result) - 5 < 100
    assert read(result[5:]) == b"a" * 1000 + b"b"
