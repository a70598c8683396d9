"""A fleet under load of gRPC calls while one of its engines is killed, the rules change, and the gateway stops."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.support import plain_http
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
NUM_CLIENTS = 4
CALLS_EACH = 100


class Answers(grpc.GenericRpcHandler):
    """An engine that identifies itself: its name is the model version in its answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def service(self, details: Any) -> Any:
        if details.method.endswith("/ServerReady"):
            return grpc.unary_unary_rpc_method_handler(lambda message, context: b"\x08\x01")
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.stream)
        return grpc.unary_unary_rpc_method_handler(lambda message, context: self.answer(message).SerializeToString())

    def answer(self, message: bytes) -> service_pb2.ModelInferResponse:
        requested = service_pb2.ModelInferRequest.FromString(message)
        time.sleep(requested.parameters["sleep"].double_param)
        held = requested.parameters["until"].string_param
        while held and not Path(held).exists():
            time.sleep(0.01)
        return service_pb2.ModelInferResponse(model_name=requested.model_name, model_version=self.name, id=requested.id)

    def stream(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for message in messages:
            yield service_pb2.ModelStreamInferResponse(infer_response=self.answer(message)).SerializeToString()


class EngineProcess:
    """The engine as a process of its own, which can be killed."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.e2e.test_grpc_failover", name]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"grpc://127.0.0.1:{int(self.process.stdout.readline())}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def survivor() -> Iterator[EngineProcess]:
    with EngineProcess("b") as engine:
        yield engine


def rules(urls: list[str], idempotent: str = "safe") -> str:
    listed = ", ".join(f"'{url}'" for url in urls)
    options = f"endpoints: [{listed}], retry: {{idempotent: {idempotent}}}, health: {{interval: 200ms, timeout: 60s}}"
    return f"version: 1\nengines: {{it: {{{options}}}}}\nroutes: [{{name: all, engine: it}}]\n"


def request(number: int = 0, until: Path | None = None) -> bytes:
    """`until`: it is answered once this file exists."""
    made = service_pb2.ModelInferRequest(model_name="m", id=str(number))
    made.parameters["sleep"].double_param = 0.002
    made.parameters["until"].string_param = str(until or "")
    return bytes(made.SerializeToString())


def load(gateway: GatewayProcess, after_some: Callable[[], None]) -> list[str]:
    """Send many calls from several clients at once and call `after_some` in the middle. Returns for each call the
    engine that answered, or the error."""
    done = threading.Semaphore(0)

    def ask_many() -> list[str]:
        reply = []
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(gateway.grpc_url, options) as channel:
            ask = channel.unary_unary(UNARY)
            for number in range(CALLS_EACH):
                try:
                    answer = service_pb2.ModelInferResponse.FromString(ask(request(number), timeout=120))
                    reply.append(answer.model_version if answer.id == str(number) else "somebody else's")
                except grpc.RpcError as error:
                    reply.append(f"{error.code().name}: {error.details()}")
                done.release()
        return reply

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        asking = [clients.submit(ask_many) for _ in range(NUM_CLIENTS)]
        for _ in range(NUM_CLIENTS * CALLS_EACH // 4):
            done.acquire()
        after_some()
        return [reply for client in asking for reply in client.result()]


def in_flight(gateway: GatewayProcess) -> float:
    lines = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("pointsman_in_flight"))


@pytest.mark.parametrize("idempotent", ["infer", "safe"])
def test_an_engine_that_is_killed(
    start_gateway: Callable[..., GatewayProcess], survivor: EngineProcess, idempotent: str
) -> None:
    """Where inferences may run twice no call fails; otherwise only calls in flight at the killed engine do."""
    with EngineProcess("a") as killed:
        gateway = start_gateway(rules([killed.url, survivor.url], idempotent))
        reply = load(gateway, killed.kill)
    failed = [text for text in reply if text not in ("a", "b")]
    assert len(failed) <= (0 if idempotent == "infer" else NUM_CLIENTS), failed
    assert all(text.startswith("UNAVAILABLE: the engine broke the call off") for text in failed)
    assert {"a", "b"} <= set(reply) and reply[-1] == "b"
    eventually(lambda: in_flight(gateway) == 0)


def test_rules_that_change_under_load(start_gateway: Callable[..., GatewayProcess], survivor: EngineProcess) -> None:
    """An endpoint that is removed answers its calls in flight and gets no new ones."""
    with EngineProcess("a") as leaving:
        gateway = start_gateway(rules([leaving.url]))

        def change() -> None:
            gateway.rules_path.write_text(rules([survivor.url]))
            gateway.process.send_signal(1)

        reply = load(gateway, change)
    assert Counter(reply).keys() == {"a", "b"} and reply[-1] == "b"
    eventually(lambda: in_flight(gateway) == 0)


def test_a_stream_goes_on_while_the_gateway_stops(
    start_gateway: Callable[..., GatewayProcess], survivor: EngineProcess, tmp_path: Path
) -> None:
    """After SIGTERM calls in flight finish; then new calls get UNAVAILABLE."""
    gateway = start_gateway(rules([survivor.url]), workers=2)
    go_on = threading.Event()

    def messages() -> Iterator[bytes]:
        yield request(1)
        go_on.wait(120)
        yield request(2)

    with grpc.insecure_channel(gateway.grpc_url) as channel:
        call = channel.stream_stream(STREAM)(messages(), timeout=120)
        first = service_pb2.ModelStreamInferResponse.FromString(next(call))
        slow = channel.unary_unary(UNARY).future(request(3, until=tmp_path / "go-on"), timeout=120)
        eventually(lambda: in_flight(gateway) == 2)
        gateway.process.terminate()
        (tmp_path / "go-on").touch()
        assert service_pb2.ModelInferResponse.FromString(slow.result()).id == "3"
        go_on.set()
        second = service_pb2.ModelStreamInferResponse.FromString(next(call))
        assert [reply.infer_response.id for reply in (first, second)] == ["1", "2"]
        assert next(call, None) is None and call.code() is grpc.StatusCode.OK
        eventually(lambda: gateway.process.poll() is not None)
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(UNARY)(request(4), timeout=120)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


if __name__ == "__main__":
    server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Answers(sys.argv[1]),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()
