"""The REST front between real clients and a fake service."""

import asyncio
import http.client
import socket
import ssl

import numpy as np
import pytest
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_aio
import trustme
from tritonclient.utils import InferenceServerException

from engines.host.grpc.server import GrpcServer
from engines.host.rest.app import RestApp
from engines.host.rest.server import RestServer
from tests.engines.host.fake_service import FakeService
from tests.engines.host.stage import fronts
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def stage():
    with fronts() as built:
        yield built


def numbers(module, values, *, binary=True):
    inputs = [module.InferInput(name, [1, len(values)], "INT32") for name in "ab"]
    for each in inputs:
        each.set_data_from_numpy(np.array([values], dtype=np.int32), binary_data=binary)
    return inputs


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_tritonclient_infers(stage, binary, algorithm):
    """In binary and in JSON, compressed and not."""
    with triton_http.InferenceServerClient(stage.rest_url) as client:
        outputs = [triton_http.InferRequestedOutput("sum", binary_data=binary)]
        result = client.infer(
            "adder",
            numbers(triton_http, [1, 2], binary=binary),
            outputs=outputs,
            request_id="7",
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        assert result.as_numpy("sum").tolist() == [[2, 4]]
        assert result.get_response()["id"] == "7"


def test_tritonclient_sends_everything_else(stage):
    """Health, metadata, configuration, the repository's index, settings; many calls at once."""
    with triton_http.InferenceServerClient(stage.rest_url, concurrency=4) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("adder")
        assert not client.is_model_ready("nope")
        assert client.get_server_metadata()["name"] == "fake"
        assert client.get_model_config("adder")["max_batch_size"] == 8
        assert "adder" in [model["name"] for model in client.get_model_repository_index()]
        client.load_model("adder")
        with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
            client.load_model("nope")
        waiting = [client.async_infer("adder", numbers(triton_http, [n])) for n in range(20)]
        assert [each.get_result().as_numpy("sum").tolist() for each in waiting] == [[[2 * n]] for n in range(20)]


def test_the_asyncio_client(stage):
    """tritonclient.http.aio, with classes and BYTES."""

    async def run():
        async with triton_aio.InferenceServerClient(stage.rest_url) as client:
            scores = triton_http.InferInput("scores", [1, 4], "FP32")
            scores.set_data_from_numpy(np.array([[0.1, 0.2, 0.3, 0.9]], dtype=np.float32))
            outputs = [triton_http.InferRequestedOutput("probabilities", class_count=1)]
            result = await client.infer("classifier", [scores], outputs=outputs)
            assert result.as_numpy("probabilities").tolist() == [[b"0.900000:3:locomotive"]]
            words = triton_http.InferInput("text_input", [1], "BYTES")
            words.set_data_from_numpy(np.array(["é"], dtype=object))
            result = await client.infer("text", [words])
            assert result.as_numpy("text_output").tolist() == ["É".encode()]

    asyncio.run(run())


@pytest.mark.parametrize("num_bytes", [100, 100_000, 5_000_000])
def test_tensors_of_any_size(stage, num_bytes):
    """Tensors of any size pass in binary in both directions."""
    with triton_http.InferenceServerClient(stage.rest_url) as client:
        tensor = triton_http.InferInput("input", [num_bytes], "UINT8")
        values = np.arange(num_bytes, dtype=np.uint8)
        tensor.set_data_from_numpy(values)
        assert (client.infer("identity_uint8", [tensor]).as_numpy("output") == values).all()


def test_a_client_that_hangs_up_cancels_its_call(stage):
    """Closing the connection during a request cancels its call."""
    body = b'{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["z"]}]}'
    with socket.create_connection(("127.0.0.1", stage.rest_port)) as connection:
        connection.sendall(
            b"POST /v2/models/sleeper/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        eventually(lambda: stage.service.sleeping)
    sleeping = stage.service.sleeping.pop()
    eventually(lambda: sleeping.is_cancelled)
    stage.call(sleeping.fail_cancelled)


def test_two_requests_on_one_connection(stage):
    """A refused request with an unread body, followed by a valid one."""
    connection = http.client.HTTPConnection("127.0.0.1", stage.rest_port, timeout=120)
    connection.request("POST", "/v2/models/nope/infer", b"x" * 300_000)
    response = connection.getresponse()
    assert (response.status, b"unknown model" in response.read()) == (404, True)
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()


def test_tls_on_both_fronts(tmp_path):
    """Both fronts serve TLS with the caller's context."""
    import grpc

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    plain = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())

    async def run():
        rest, server = RestServer(RestApp(FakeService())), GrpcServer(FakeService())
        rest_port = await rest.start("localhost", 0, tls=context)
        context.set_alpn_protocols(["h2"])
        grpc_port = await server.start("localhost", 0, tls=context)
        try:

            def send_request():
                connection = http.client.HTTPSConnection("localhost", rest_port, context=plain, timeout=120)
                connection.request("GET", "/v2/health/live")
                status = connection.getresponse().status
                connection.close()
                credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
                with grpc.secure_channel(f"localhost:{grpc_port}", credentials) as channel:
                    live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=120)
                return status, live

            assert await asyncio.to_thread(send_request) == (200, b"\x08\x01")
        finally:
            await rest.stop(0.1)
            await server.stop(0.1)

    asyncio.run(run())


def test_stopping_lets_requests_end():
    """The request in flight is answered; then the port is closed."""
    with fronts() as stage:
        connection = http.client.HTTPConnection("127.0.0.1", stage.rest_port, timeout=120)
        body = b'{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["z"]}]}'
        connection.request("POST", "/v2/models/sleeper/infer", body)
        eventually(lambda: stage.service.sleeping)
        sleeping = stage.service.sleeping.pop()

        async def stop():
            stopping = asyncio.create_task(stage.rest.stop(5))
            await asyncio.sleep(0)
            sleeping.fail_cancelled()
            await stopping

        stage.do(stop)
        assert connection.getresponse().status == 400
        connection.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", stage.rest_port))


def test_a_request_on_its_way_is_answered_though_the_server_stops():
    """A connection that is kept alive closes a moment later, so that what its client has just sent is not lost."""
    with fronts() as stage:
        connection = http.client.HTTPConnection("127.0.0.1", stage.rest_port, timeout=120)
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read() == b""

        async def stop():
            stopping = asyncio.create_task(stage.rest.stop(5))
            await asyncio.sleep(0)
            reply = await asyncio.to_thread(send_request)
            await stopping
            return reply

        def send_request():
            connection.request("GET", "/v2/health/live")
            reply = connection.getresponse()
            return reply.status, reply.getheader("connection")

        assert stage.do(stop) == (200, "close")


def test_an_idle_connection_does_not_hold_up_the_end():
    """The server closes an idle connection long before the grace period ends."""
    with fronts() as stage:
        connection = http.client.HTTPConnection("127.0.0.1", stage.rest_port, timeout=120)
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()

        stage.do(lambda: stage.rest.stop(3600))  # far longer than the test may run
        assert connection.sock.recv(1) == b""
