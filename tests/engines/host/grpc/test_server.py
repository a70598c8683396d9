"""The gRPC front between real clients and a fake service."""

import asyncio
import queue
import socket
import struct
import threading
from functools import partial

import grpc
import h2.connection
import h2.events
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from engines.host.client_limits import ClientLimits
from tests.engines.host.grpc.messages import adder, repeater, text
from tests.engines.host.stage import fronts
from tests.support.waiting import eventually

SERVICE = "/inference.GRPCInferenceService/"
HEAD = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), ("content-type", "application/grpc")]


@pytest.fixture(scope="module")
def stage():
    with fronts() as built:
        yield built


@pytest.fixture(scope="module")
def channel(stage):
    with grpc.insecure_channel(stage.grpc_url) as built:
        yield built


def unary(channel, method, data, **options):
    return channel.unary_unary(SERVICE + method)(data, timeout=120, **options)


def infer(channel, built, **options):
    return service_pb2.ModelInferResponse.FromString(unary(channel, "ModelInfer", built.SerializeToString(), **options))


def stream(channel, requests, metadata=()):
    """The responses, and the status at the end."""
    call = channel.stream_stream(SERVICE + "ModelStreamInfer")(
        iter([built.SerializeToString() for built in requests]), timeout=120, metadata=metadata
    )
    responses = []
    try:
        responses.extend(map(service_pb2.ModelStreamInferResponse.FromString, call))
    except grpc.RpcError as error:
        return responses, (error.code(), error.details())
    return responses, (grpc.StatusCode.OK, "")


def numbers(channel_or_client, values):
    inputs = [triton_grpc.InferInput(name, [1, len(values)], "INT32") for name in "ab"]
    for each in inputs:
        each.set_data_from_numpy(np.array([values], dtype=np.int32))
    return inputs


def test_tritonclient_infers(stage):
    """The synchronous client, with an id and one requested output."""
    with triton_grpc.InferenceServerClient(stage.grpc_url) as client:
        for number in range(12):  # by protobuf first, then by a remembered layout
            outputs = [triton_grpc.InferRequestedOutput("sum")]
            result = client.infer("adder", numbers(client, [number, 2]), request_id=str(number), outputs=outputs)
            assert result.as_numpy("sum").tolist() == [[2 * number, 4]]
            assert result.as_numpy("diff") is None
            assert result.get_response().id == str(number)


def test_tritonclient_sends_everything_else(stage):
    """Health, metadata, configuration, the repository's index, settings."""
    with triton_grpc.InferenceServerClient(stage.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("adder")
        assert client.get_server_metadata().name == "fake"
        assert client.get_model_metadata("adder").versions == ["1"]
        assert client.get_model_config("adder").config.max_batch_size == 8
        assert "adder" in [model.name for model in client.get_model_repository_index().models]
        assert client.get_log_settings().settings["log_info"].bool_param
        client.load_model("adder")
        with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
            client.load_model("nope")


def test_tritonclient_classifies_and_names_sequences(stage):
    """The service gets the client's options."""
    with triton_grpc.InferenceServerClient(stage.grpc_url) as client:
        scores = triton_grpc.InferInput("scores", [1, 4], "FP32")
        scores.set_data_from_numpy(np.array([[0.1, 0.2, 0.3, 0.9]], dtype=np.float32))
        wanted = triton_grpc.InferRequestedOutput("probabilities", class_count=2)
        result = client.infer("classifier", [scores], outputs=[wanted], sequence_id=9, sequence_start=True, priority=3)
        assert result.as_numpy("probabilities").tolist() == [[b"0.900000:3:locomotive", b"0.300000:2:horse"]]
    sent = stage.service.requests[-1]
    assert (sent.sequence_id, sent.sequence_start, sent.priority) == (9, True, 3)


@pytest.mark.parametrize("num_bytes", [0, 5_000, 70_000, 3_000_000])
def test_tensors_of_any_size(channel, num_bytes):
    """Tensors of any size pass through flow-control windows and frames in both directions."""
    built = text("identity_uint8", "x")
    built.inputs[0].name, built.inputs[0].datatype = "input", "UINT8"
    built.inputs[0].shape[:] = [num_bytes]
    built.raw_input_contents[0] = bytes(range(250)) * (num_bytes // 250)
    assert infer(channel, built).raw_output_contents[0] == built.raw_input_contents[0]


@pytest.mark.parametrize("encoding", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages(encoding):
    """Requests are decompressed; replies are compressed by the host's setting."""
    with (
        fronts(ClientLimits(compression_level=1)) as stage,
        grpc.insecure_channel(stage.grpc_url, compression=encoding) as channel,
    ):
        response = infer(channel, adder(a=(1,) * 500, b=(2,) * 500))
        assert response.raw_output_contents[0] == struct.pack("<500i", *[3] * 500)


def test_the_asyncio_client_infers_and_streams(stage):
    """tritonclient.grpc.aio, many calls at once."""

    async def run():
        async with triton_aio.InferenceServerClient(stage.grpc_url) as client:
            results = await asyncio.gather(*(client.infer("adder", numbers(client, [n])) for n in range(20)))
            assert [result.as_numpy("sum").tolist() for result in results] == [[[2 * n]] for n in range(20)]

            async def requests():
                for number in range(3):
                    yield {"model_name": "adder", "inputs": numbers(client, [number]), "request_id": str(number)}

            seen = [result async for result, error in client.stream_infer(requests())]
            assert [each.get_response().id for each in seen] == ["0", "1", "2"]

    asyncio.run(run())


def test_tritonclient_streams_decoupled_answers(stage):
    """Several responses, and the final one where requested."""
    answers = queue.SimpleQueue()
    with triton_grpc.InferenceServerClient(stage.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        words = triton_grpc.InferInput("text_input", [1], "BYTES")
        words.set_data_from_numpy(np.array(["hi"], dtype=object))
        count = triton_grpc.InferInput("count", [1], "INT32")
        count.set_data_from_numpy(np.array([2], dtype=np.int32))
        client.async_stream_infer("repeater", [words, count], enable_empty_final_response=True, request_id="r")
        seen = [answers.get(timeout=120) for _ in range(3)]
        client.stop_stream()
    assert [error for _, error in seen] == [None] * 3
    assert [result.get_response().parameters["triton_final_response"].bool_param for result, _ in seen] == [
        False,
        False,
        True,
    ]
    assert [len(result.get_response().outputs) for result, _ in seen] == [1, 1, 0]


def test_answers_of_a_stream_come_in_the_order_of_their_requests(stage, channel):
    """Responses of models that are not decoupled keep their order; decoupled ones do not wait."""
    requests = queue.SimpleQueue()
    call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(requests.get, None), timeout=120)
    for built in (text("sleeper", "z", id="1"), adder(id="2"), repeater("x", 1, id="3")):
        requests.put(built.SerializeToString())
    first = service_pb2.ModelStreamInferResponse.FromString(next(call))
    assert first.infer_response.id == "3"
    sleeping = stage.service.sleeping.pop()
    stage.call(sleeping.fail_cancelled)
    later = [service_pb2.ModelStreamInferResponse.FromString(next(call)) for _ in range(2)]
    assert [each.infer_response.id for each in later] == ["1", "2"]
    assert [each.error_message for each in later] == ["inference request is cancelled", ""]
    requests.put(None)
    assert list(call) == []


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_a_client_that_leaves_cancels_its_calls(stage, channel, kind):
    """Calls are cancelled at once, both unary calls and streams."""
    data = text("sleeper", "z").SerializeToString()
    if kind == "unary":
        call = channel.unary_unary(SERVICE + "ModelInfer").future(data, timeout=120)
    else:
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([data, data]), timeout=120)
    number = 1 if kind == "unary" else 2
    eventually(lambda: len(stage.service.sleeping) == number)
    call.cancel()
    eventually(lambda: all(each.is_cancelled for each in stage.service.sleeping))
    while stage.service.sleeping:
        stage.call(stage.service.sleeping.pop().fail_cancelled)


def test_a_deadline_ends_a_call(stage, channel):
    """The client ends its call by its own clock; the host cancels its call by the deadline."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + "ModelInfer")(text("sleeper", "z").SerializeToString(), timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: stage.service.sleeping and stage.service.sleeping[-1].is_cancelled)
    stage.call(stage.service.sleeping.pop().fail_cancelled)


def test_statuses_of_the_protocol(channel):
    """An unknown method, and an invalid message."""
    refusals = {}
    for method, data in (("Nope", b""), ("ModelInfer", b"\xff\xff"), ("ModelConfig", b"\xff\xff")):
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, method, data)
        refusals[method] = (caught.value.code(), caught.value.details())
    assert refusals == {
        "Nope": (grpc.StatusCode.UNIMPLEMENTED, ""),
        "ModelInfer": (grpc.StatusCode.INTERNAL, "Unable to parse request"),
        "ModelConfig": (grpc.StatusCode.INTERNAL, "Unable to parse request"),
    }


def test_a_stream_with_a_message_that_is_none_ends(channel):
    """Triton 2.51 crashes on such a message; here the stream ends with gRPC's error."""
    call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([b"\xff\xff"]), timeout=120)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


def test_messages_have_a_limit():
    """Unary and on a stream, with grpc-core's status; the connection stays open."""
    with fronts(ClientLimits(max_message_bytes=1000)) as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        large = adder(a=(1,) * 500, b=(2,) * 500)
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel, large)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "Received message larger than max" in caught.value.details()
        assert stream(channel, [large])[1][0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert infer(channel, adder()).model_name == "adder"


def test_headers_and_trace_context_reach_the_service(stage, channel):
    """Matching headers become parameters, with blanks around their values, as in Triton; W3C trace context is passed
    on."""
    metadata = [("x-forward-a", "1 "), ("other", " "), ("traceparent", "00-aa-bb-01"), ("tracestate", "v=1")]
    infer(channel, adder(parameters={"n": 5}), metadata=metadata)
    sent = stage.service.requests[-1]
    assert sent.parameters == {"n": 5, "x-forward-a": "1 "}
    assert sent.trace == {"traceparent": "00-aa-bb-01", "tracestate": "v=1"}
    for number in range(3):  # fields of one call are not cached
        infer(channel, adder(), metadata=[("traceparent", f"00-{number}")])
        assert stage.service.requests[-1].trace == {"traceparent": f"00-{number}"}


def test_restricted_protocols():
    """A category requires its header."""
    restriction = ("triton-grpc-protocol-admin", "secret")
    with fronts(grpc_inference=restriction) as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        for call in (partial(infer, channel, adder()), partial(unary, channel, "ModelInfer", b"")):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            expected = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
            assert caught.value.details() == expected
        assert stream(channel, [adder()])[1] == (grpc.StatusCode.UNAVAILABLE, expected)
        assert infer(channel, adder(), metadata=[restriction]).model_name == "adder"
        assert unary(channel, "ServerLive", b"") == b"\x08\x01"


def test_health(stage, channel):
    """grpc.health.v1 reports readiness; Watch reports changes."""
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="nope"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=120)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    stage.service.is_ready = False
    try:
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    finally:
        stage.service.is_ready = True
        watch.cancel()


def test_reflection(channel):
    """A client finds the services, and the schema of one."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    sent = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    services, schema = stub.ServerReflectionInfo(iter(sent), timeout=120)
    assert "inference.GRPCInferenceService" in [each.name for each in services.list_services_response.service]
    assert schema.file_descriptor_response.file_descriptor_proto


def test_a_stream_is_not_read_while_its_client_does_not_read():
    """Unsent responses stop reading: the service does not get all requests."""
    built = text("identity_uint8", "x")
    built.inputs[0].name, built.inputs[0].datatype = "input", "UINT8"
    built.inputs[0].shape[:] = [1 << 20]
    built.raw_input_contents[0] = bytes(1 << 20)
    number = 48

    def is_stuck(stage):
        streams = [stream for connection in stage.grpc.connections for stream in connection.http2.streams.values()]
        return streams and all(stream.is_waiting and stream.receive_window == 0 for stream in streams)

    with fronts() as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        data = [built.SerializeToString()] * number
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(data), timeout=120)
        eventually(lambda: stage.call(lambda: is_stuck(stage)))
        assert len(stage.service.requests) < number
        assert sum(1 for _ in call) == number


def test_stopping_lets_calls_end():
    """A call in flight ends normally while the server drains, then connections close."""
    with fronts() as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer").future(text("sleeper", "z").SerializeToString(), timeout=120)
        eventually(lambda: stage.service.sleeping)
        stopping = threading.Thread(target=lambda: stage.do(lambda: stage.grpc.stop(10)))
        stopping.start()
        eventually(lambda: stage.grpc.is_draining)
        sleeping = stage.service.sleeping.pop()
        stage.call(sleeping.fail_cancelled)
        assert call.exception().code() is grpc.StatusCode.CANCELLED
        stopping.join(120)
        assert not stopping.is_alive()
        assert not stage.grpc.connections


def test_silent_clients_are_pinged():
    """The connection of a client that answers the PING stays open."""
    with fronts(ClientLimits(keepalive_seconds=0.1)) as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        infer(channel, adder())
        (connection,) = stage.grpc.connections
        eventually(lambda: connection._pinged_at)
        eventually(lambda: not connection._pinged_at)  # it has answered
        infer(channel, adder())
        assert set(stage.grpc.connections) == {connection}


def test_old_connections_are_left():
    """After its maximum age a connection gets GOAWAY; its calls go on."""
    with fronts(ClientLimits(max_connection_seconds=0.5)) as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        infer(channel, adder())
        (connection,) = stage.grpc.connections
        eventually(lambda: connection not in stage.grpc.connections)
        assert infer(channel, adder()).model_name == "adder"


def test_stub_of_the_schema(channel):
    """The generated stub reads what a control RPC answers."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="nope"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "Request for unknown model: 'nope' is not found"


def test_a_client_that_does_not_read_loses_its_stream():
    """A decoupled model continues while its client does not read. When the unsent bytes exceed their limit, the call is
    cancelled."""
    with fronts(ClientLimits(max_unsent_bytes=1 << 20)) as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        built = repeater("x" * 200_000, 1000)
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([built.SerializeToString()]), timeout=120)
        eventually(lambda: stage.service.calls and stage.service.calls[-1].is_over)
        assert stage.service.calls[-1].is_cancelled
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_message_that_does_not_come_is_not_waited_for(method):
    """An incomplete message ends the call; a stream between messages has no limit."""
    stream_path = SERVICE + "ModelStreamInfer"
    with (
        fronts(ClientLimits(receive_seconds=0.5)) as stage,
        socket.create_connection(("127.0.0.1", stage.grpc_port)) as raw,
    ):
        client = h2.connection.H2Connection()
        client.initiate_connection()
        for number, path, data in ((1, stream_path, b""), (3, SERVICE + method, b"\0\0\0\0\xffab")):
            client.send_headers(number, [(":path", path), *HEAD])
            if data:
                client.send_data(number, data)
        raw.sendall(client.data_to_send())
        events = []
        while not any(isinstance(event, h2.events.StreamEnded) for event in events):
            events += client.receive_data(raw.recv(65536))
            raw.sendall(client.data_to_send())
    (ended,) = [event for event in events if isinstance(event, h2.events.ResponseReceived)]
    assert (ended.stream_id, dict(ended.headers)[b"grpc-status"]) == (3, b"4")
    assert dict(ended.headers)[b"grpc-message"] == b"the request is not whole after 0.5 seconds"


def test_a_stream_that_waits_for_requests_does_not_hold_stopping_up():
    """Calls in flight are answered, then the connection gets GOAWAY."""
    sent = queue.SimpleQueue()
    with fronts() as stage, grpc.insecure_channel(stage.grpc_url) as channel:
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(sent.get, None), timeout=120)
        sent.put(adder().SerializeToString())
        next(call)
        stage.do(lambda: stage.grpc.stop(15))
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAVAILABLE, "the host is stopping")
        sent.put(None)
