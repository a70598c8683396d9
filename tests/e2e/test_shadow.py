"""A route's requests mirrored to a second engine: the report, and the clients' independence of the candidate."""

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
import trustme
from typer.testing import CliRunner

from gateway.cli.app import make_app
from gateway.demo.triton import TritonProcess
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.host import HostProcess
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

app = make_app()

MODELS = Path(__file__).parents[1] / "shadow_models"
X = np.array([[1.25, 2.5, -3.0, 4.75]], np.float32)
# The candidate rounds half to even and adds an eighth: 1.125, 2.125, -2.875, 5.125.
LARGEST, MEAN, LARGEST_RELATIVE = 0.375, 0.25, 0.375 / 2.5


def report(gateway: GatewayProcess, route: str = "r") -> dict[str, Any]:
    answer = plain_http.get(f"{gateway.admin_url}/shadows/{route}")
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def when_mirrored(gateway: GatewayProcess, number: int, route: str = "r") -> dict[str, Any]:
    """The report, once this number of requests is compared or has failed."""

    def told() -> dict[str, Any] | None:
        found = report(gateway, route)
        outcomes = sum(found[name] for name in ("compared", "primary_failed", "candidate_failed", "both_failed"))
        return found if outcomes >= number else None

    try:
        found = eventually(told)
    except AssertionError:
        raise AssertionError(f"{number} requests were not compared: {report(gateway, route)}") from None
    assert found is not None
    return found


Mirror = Callable[[str], GatewayProcess]


@pytest.fixture
def mirror(use_gateway: Mirror) -> Mirror:
    """A function that puts rules in force, with no report yet."""

    def mirrored(rules: str) -> GatewayProcess:
        gateway = use_gateway(rules)
        for each in plain_http.get(f"{gateway.admin_url}/shadows").json()["shadows"]:
            plain_http.delete(f"{gateway.admin_url}/shadows/{each['route']}")
        return gateway

    return mirrored


# Numbers


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostProcess, HostProcess]]:
    folder = tmp_path_factory.mktemp("hosts")
    started = [HostProcess.start([MODELS / name], folder / name) for name in ("exact", "shifted")]
    yield started[0].wait_ready(), started[1].wait_ready()
    for host in started:
        host.stop()


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TritonProcess, TritonProcess]]:
    folder = tmp_path_factory.mktemp("tritons")
    with (
        TritonProcess.start(MODELS / "exact", log_path=folder / "exact.log") as exact,
        TritonProcess.start(MODELS / "shifted", log_path=folder / "shifted.log") as shifted,
    ):
        yield exact.wait_ready(), shifted.wait_ready()


def rules_between(primary: Any, candidate: Any, shadow: str = "", by: str = "url: '{0}', grpc: '{1}'") -> str:
    """Rules that send everything to one engine and mirror it to another; `by` is the candidate's address."""
    there = by.format(candidate.http_url, candidate.grpc_url)
    return f"""
version: 1
engines:
  old: {{endpoints: [{{url: '{primary.http_url}', grpc: '{primary.grpc_url}'}}]}}
  new: {{endpoints: [{{{there}}}]}}
routes:
  - {{name: r, engine: old, shadow: {{engine: new, sample: 100%, max_in_flight: 1000{shadow}}}}}
"""


def ask_each_way(gateway: GatewayProcess) -> None:
    """Send the same inference as JSON, as binary tensors and by gRPC; each client gets the primary's answer."""
    for module, address in ((over_http, gateway.http_url[7:]), (over_grpc, gateway.grpc_url)):
        given = module.InferInput("x", X.shape, "FP32")
        given.set_data_from_numpy(X)
        answer = module.InferenceServerClient(address).infer("scores", [given])
        assert answer.as_numpy("y").tolist() == X.tolist()
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X.ravel().tolist()}]}
    reply = plain_http.post(f"{gateway.http_url}/v2/models/scores/infer", json=body)
    assert reply.json()["outputs"][0]["data"] == X.ravel().tolist()


def check_the_difference(found: dict[str, Any]) -> None:
    """Check for three comparisons that show exactly the difference between the models."""
    assert (found["compared"], found["agreeing"], found["differing"], found["dropped"]) == (3, 0, 3, {})
    y = found["tensors"]["y"]
    for name, value in (("max_absolute", LARGEST), ("mean_absolute", MEAN), ("max_relative", LARGEST_RELATIVE)):
        reply = y[name]
        assert {reply["least"], reply["mean"], reply["most"], reply["p50"], reply["p99"]} == {value}, name
    assert y["argmax"]["least"] == y["top_k"]["least"] == 1.0
    assert (y["compared"], y["agreeing"], y["outside"]) == (3, 0, 12)
    count, label = found["tensors"]["count"], found["texts"]["label"]
    assert (count["compared"], count["agreeing"], count["max_absolute"]["most"]) == (3, 3, 0.0)
    assert (label["compared"], label["equal"]) == (3, 0)
    assert (label["first_token"]["most"], label["first_character"]["most"]) == (2, 8)
    for entry in found["worst"]:
        worst = next(each for each in entry["outputs"] if each["name"] == "y")
        assert worst["index"] == [0, 1]
        assert (worst["primary"], worst["candidate"]) == (2.5, 2.125)
        assert entry["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]
        assert entry["model"] == "scores"


@pytest.mark.triton
def test_two_tritons_differ_by_exactly_what_their_models_do(
    tritons: tuple[TritonProcess, TritonProcess], start_gateway: Callable[..., GatewayProcess]
) -> None:
    """The report shows the models' exact difference for REST with JSON, REST with binary tensors, and gRPC."""
    gateway = start_gateway(rules_between(*tritons), workers=2)
    ask_each_way(gateway)
    check_the_difference(when_mirrored(gateway, 3))


@pytest.mark.parametrize("by", ["url: '{0}', grpc: '{1}'", "url: '{0}'", "url: 'grpc://{1}'"])
def test_the_difference_is_the_same_however_the_candidate_is_reached(
    by: str, hosts: tuple[HostProcess, HostProcess], mirror: Mirror
) -> None:
    """Requests to a candidate with REST alone or gRPC alone are converted as on a route."""
    gateway = mirror(rules_between(*hosts, by=by))
    ask_each_way(gateway)
    check_the_difference(when_mirrored(gateway, 3))


def test_streams_are_counted_and_not_mirrored(hosts: tuple[HostProcess, HostProcess], mirror: Mirror) -> None:
    """A ModelStreamInfer call is answered by the primary and not mirrored."""
    gateway = mirror(rules_between(*hosts))
    answers: list[Any] = []
    given = over_grpc.InferInput("x", X.shape, "FP32")
    given.set_data_from_numpy(X)
    with over_grpc.InferenceServerClient(gateway.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result.as_numpy("y").tolist()))
        client.async_stream_infer("scores", [given])
        client.stop_stream()
    assert answers == [X.tolist()]
    assert eventually(lambda: report(gateway)["dropped"])
    found = report(gateway)
    assert (found["captured"], found["mirrored"], found["dropped"]) == (0, 0, {"stream": 1})


def test_a_tolerance_lets_them_agree(hosts: tuple[HostProcess, HostProcess], mirror: Mirror) -> None:
    """A tolerance accepts the difference of the numbers, while the label still differs. A wider tolerance starts a new
    report."""
    gateway = mirror(rules_between(*hosts, shadow=", tolerance: {absolute: 0.3, relative: 0}"))
    ask_each_way(gateway)
    found = when_mirrored(gateway, 3)
    assert found["tensors"]["y"]["outside"] == 6
    wider = rules_between(*hosts, shadow=", tolerance: {absolute: 0.5, relative: 0}")
    gateway.rules_path.write_text(wider)
    eventually(lambda: report(gateway)["compared"] == 0)
    ask_each_way(gateway)
    found = when_mirrored(gateway, 3)
    assert (found["tensors"]["y"]["agreeing"], found["texts"]["label"]["agreeing"]) == (3, 0)


def test_the_report_is_told_as_a_page_and_on_the_command_line(
    hosts: tuple[HostProcess, HostProcess], start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """The report page has no external resources and shows the largest difference; the command line shows it too and can
    reset the report."""
    gateway = start_gateway(rules_between(*hosts))
    ask_each_way(gateway)
    when_mirrored(gateway, 3)
    page = plain_http.get(f"{gateway.admin_url}/shadows/r/report")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "at [0, 1] 2.5 became 2.125" in page.text
    assert page.text.count("<svg") >= 4
    assert not [mark for mark in ("<script", "<link", "src=", "href=", "url(", "@import") if mark in page.text]
    admin = ["--admin", gateway.admin_url]
    shown = CliRunner().invoke(app, ["shadow", "report", "r", *admin])
    assert shown.exit_code == 0, shown.output
    assert "0.00% of 3 agree; 3 mirrored" in shown.output
    assert "[0, 1]: 2.5 became 2.125" in shown.output
    file = tmp_path / "report.html"
    reply = CliRunner().invoke(app, ["shadow", "report", "r", "--json", "--html", str(file), *admin])
    assert json.loads(reply.stdout)["differing"] == 3
    assert file.read_text().startswith("<!doctype html>")
    assert "r " in CliRunner().invoke(app, ["shadow", "list", *admin]).output
    unknown = CliRunner().invoke(app, ["shadow", "report", "nobody", *admin])
    assert unknown.exit_code == 1
    assert "there is no report of route 'nobody'; there are reports of r" in unknown.output
    metrics = plain_http.get(f"{gateway.admin_url}/metrics").text
    assert 'pointsman_shadow_captured_total{route="r"} 3.0' in metrics
    assert 'pointsman_shadow_mirrored_total{route="r"} 3.0' in metrics
    assert 'pointsman_shadow_outcomes_total{outcome="differing",route="r"} 3.0' in metrics
    assert 'pointsman_requests_total{arm="shadow"' in metrics
    assert CliRunner().invoke(app, ["shadow", "reset", "r", *admin]).exit_code == 0
    again = report(gateway)
    assert (again["compared"], again["captured"], again["dropped"]) == (0, 0, {})


# Texts


@pytest.fixture(scope="module")
def talkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CannedLLM, CannedLLM, CannedLLM]]:
    """Three counting engines: a correct one, and two that replace `seven`, one with OpenAI's API and one with V2."""
    folder = tmp_path_factory.mktemp("talkers")
    swap = ["--swap", "seven=heaven"]
    with (
        CannedLLM.start(folder / "old").running() as old,
        CannedLLM.start(folder / "new", extra_args=swap).running() as new,
        CannedLLM.start(folder / "v2", v2=True, extra_args=swap).running() as v2,
    ):
        yield old, new, v2


TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
HI = [{"role": "user", "content": "hi"}]
TEN = {"model": MODEL, "max_tokens": 10}
SEVENTH = len("one two three four five six ")


def talk_each_way(gateway: GatewayProcess) -> int:
    """Request ten words in each dialect, streamed and whole. Returns the number of requests."""
    requests = [
        ("/v1/chat/completions", TEN | {"messages": HI}),
        ("/v1/chat/completions", TEN | {"messages": HI, "stream": True}),
        ("/v1/messages", TEN | {"messages": HI}),
        ("/v1/messages", TEN | {"messages": HI, "stream": True}),
        ("/v1/responses", {"model": MODEL, "input": "hi", "max_output_tokens": 10}),
    ]
    for path, body in requests:
        answer = plain_http.post(f"{gateway.http_url}{path}", json=body)
        assert answer.status_code == 200, answer.text
        assert "heaven" not in answer.text
    return len(requests)


@pytest.mark.parametrize("candidate", ["openai", "v2"])
def test_texts_part_at_the_word_that_differs(
    candidate: str,
    talkers: tuple[CannedLLM, CannedLLM, CannedLLM],
    mirror: Mirror,
) -> None:
    """The texts differ at the seventh word, in each dialect, streamed or not, with an OpenAI or a V2 candidate."""
    old, new, v2 = talkers
    mirror(simple_rules(old.http_url, new.http_url, "timeout: 2s")).rules_path.with_name("chat.jinja").write_text(
        TEMPLATE
    )
    there = {
        "openai": f"{{protocol: openai, endpoints: ['{new.http_url}']}}",
        "v2": f"{{endpoints: ['{v2.http_url}'], chat_template: chat.jinja}}",
    }[candidate]
    model = ", model: vllm_model" if candidate == "v2" else ""
    rules = f"""
version: 1
engines:
  old: {{protocol: openai, endpoints: ['{old.http_url}']}}
  new: {there}
routes:
  - {{name: r, engine: old, shadow: {{engine: new, sample: 1, max_in_flight: 1000{model}}}}}
"""
    gateway = mirror(rules)
    number = talk_each_way(gateway)
    found = when_mirrored(gateway, number)
    assert (found["differing"], found["dropped"]) == (number, {}), found["failures"]
    text = found["texts"]["choice 0"]
    assert (text["compared"], text["equal"]) == (number, 0)
    # The V2 engine continues a prompt, and its text begins with a space.
    for name, place in (("first_token", 6), ("first_character", 0 if candidate == "v2" else SEVENTH)):
        assert (text[name]["least"], text[name]["most"], text[name]["p50"]) == (place, place, place)
    assert text["primary_tokens"]["p50"] == text["candidate_tokens"]["p50"] == 10


def test_what_was_said_is_told_only_where_it_may_be(
    talkers: tuple[CannedLLM, CannedLLM, CannedLLM], mirror: Mirror
) -> None:
    """A report contains neither questions nor answers, unless the route sets the length of excerpts."""
    old, new, _ = talkers
    rules = f"""
version: 1
engines:
  old: {{protocol: openai, endpoints: ['{old.http_url}']}}
  new: {{protocol: openai, endpoints: ['{new.http_url}']}}
routes:
  - name: quiet
    match: {{header: {{x-way: quiet}}}}
    engine: old
    shadow: {{engine: new, sample: 1, max_in_flight: 1000}}
  - {{name: open, engine: old, shadow: {{engine: new, sample: 1, max_in_flight: 1000, excerpts: 150}}}}
"""
    gateway = mirror(rules)
    body = TEN | {"messages": [{"role": "user", "content": "my secret"}]}
    for way in ("quiet", "open"):
        plain_http.post(f"{gateway.http_url}/v1/chat/completions", json=body, headers={"x-way": way})
    quiet, open_ = json.dumps(when_mirrored(gateway, 1, "quiet")), when_mirrored(gateway, 1, "open")
    assert "secret" not in quiet
    assert "seven" not in quiet
    assert "heaven" not in quiet
    assert "my secret" in open_["worst"][0]["excerpt"]
    around = open_["worst"][0]["outputs"][0]["around"]
    assert [("seven" in text, "heaven" in text) for text in around] == [(True, False), (False, True)]


# Independence of clients from the candidate


class Holding:
    """A candidate that reports ready and never answers an inference."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self._at_once = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.most_at_once = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        while data := connection.recv(1 << 16):
            if b"/infer " not in data.partition(b"\r\n")[0]:  # a probe
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                continue
            self._count(1)
            with contextlib.suppress(ConnectionResetError):  # the gateway resets what it cancels
                while connection.recv(1 << 16):
                    pass
            self._count(-1)
            return

    def _count(self, more: int) -> None:
        with self._lock:
            self._at_once += more
            self.most_at_once = max(self.most_at_once, self._at_once)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def holding() -> Iterator[Holding]:
    candidate = Holding()
    yield candidate
    candidate.close()


@pytest.fixture
def primary() -> Iterator[CannedEngine]:
    with CannedEngine("old") as engine:
        yield engine


def simple_rules(primary: str, candidate: str, shadow: str) -> str:
    return f"""
version: 1
engines:
  old: {{endpoints: ['{primary}']}}
  new: {{endpoints: ['{candidate}'], health: {{path: /}}}}
routes:
  - {{name: r, engine: old, shadow: {{engine: new, sample: 1, {shadow}}}}}
"""


def ask_many(gateway: GatewayProcess, number: int, body: bytes = b'{"inputs": []}') -> Counter[int]:
    """Send requests from four clients at once. Returns the count of each status."""

    def some(_: int) -> list[int]:
        with httpx.Client(base_url=gateway.http_url, timeout=120) as client:
            return [client.post("/v2/models/m/infer", content=body).status_code for _ in range(number // 4)]

    with ThreadPoolExecutor(4) as clients:
        return Counter(status for each in clients.map(some, range(4)) for status in each)


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_dead_candidate_harms_nobody(primary: CannedEngine, mirror: Mirror) -> None:
    """With a dead candidate the primary answers all requests; each mirrored request fails or is dropped."""
    gateway = mirror(simple_rules(primary.url, unused_url(), "max_in_flight: 4"))
    assert ask_many(gateway, 200) == {200: 200}

    def told() -> dict[str, Any] | None:
        found = report(gateway)
        return found if found["candidate_failed"] + sum(found["dropped"].values()) == 200 else None

    found = eventually(told)
    assert found is not None
    assert found["candidate_failed"] > 0
    assert found["failures"][0]["reason"] == "HTTP status 503"


def test_a_candidate_that_never_answers_gets_only_so_many(
    primary: CannedEngine, holding: Holding, mirror: Mirror
) -> None:
    """A candidate that never answers gets at most `max_in_flight` requests at a time. The rest are counted as dropped,
    the mirrored ones fail after the timeout, and every client gets its answer."""
    gateway = mirror(simple_rules(primary.url, holding.url, "max_in_flight: 3, timeout: 2s"))
    assert ask_many(gateway, 400) == {200: 400}

    def told() -> dict[str, Any] | None:
        found = report(gateway)
        return found if found["candidate_failed"] + sum(found["dropped"].values()) == 400 else None

    found = eventually(told)
    assert found is not None
    assert holding.most_at_once == 3
    assert found["candidate_failed"] == found["mirrored"]
    assert found["dropped"] == {"max_in_flight": 400 - found["mirrored"]}
    assert found["failures"][0]["reason"] == "the candidate did not answer within 2 s"


def test_long_bodies_are_not_mirrored(primary: CannedEngine, mirror: Mirror) -> None:
    """Requests and answers beyond `max_bytes` are not mirrored, and are counted."""
    gateway = mirror(simple_rules(primary.url, primary.url, "max_in_flight: 1000, max_bytes: 2KiB"))
    long = b'{"inputs": [], "id": "%b"}' % (b"x" * 3000)
    assert ask_many(gateway, 8, long) == {200: 8}
    assert ask_many(gateway, 4) == {200: 4}
    found = when_mirrored(gateway, 4)
    assert (found["captured"], found["dropped"]) == (4, {"too_long": 8})


def shadow_processes(gateway: GatewayProcess) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(gateway.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "gateway.shadow" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_shadow_process_that_dies_is_started_anew(
    primary: CannedEngine, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """When the shadow process dies, clients still get their answers, the report keeps its counts, and mirroring
    continues."""
    gateway = start_gateway(simple_rules(primary.url, primary.url, "max_in_flight: 1000"))
    (first,) = shadow_processes(gateway)
    assert ask_many(gateway, 40) == {200: 40}
    before = when_mirrored(gateway, 40)
    first.kill()
    assert ask_many(gateway, 200) == {200: 200}
    (second,) = eventually(lambda: shadow_processes(gateway))
    assert second.pid != first.pid
    assert report(gateway)["compared"] >= 40

    def goes_on() -> bool:
        assert ask_many(gateway, 4) == {200: 4}
        return bool(report(gateway)["compared"] > 40)

    eventually(goes_on)
    after = report(gateway)
    assert after["since"] == before["since"]
    second.kill()
    eventually(lambda: [each for each in shadow_processes(gateway) if each.pid != second.pid])


def test_there_is_no_process_without_a_shadow(
    primary: CannedEngine, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """The process starts with the first route that has a shadow; a route whose shadow is removed keeps its report."""
    with_shadow = simple_rules(primary.url, primary.url, "max_in_flight: 1000")
    plain = with_shadow.replace(", shadow: {engine: new, sample: 1, max_in_flight: 1000}", "")
    gateway = start_gateway(plain)
    assert shadow_processes(gateway) == []
    assert plain_http.get(f"{gateway.admin_url}/shadows").json() == {"shadows": []}
    gateway.rules_path.write_text(with_shadow)
    eventually(lambda: shadow_processes(gateway))

    def is_mirrored() -> bool:
        assert ask_many(gateway, 4) == {200: 4}
        return bool(report(gateway)["compared"])

    eventually(is_mirrored)
    gateway.rules_path.write_text(plain)
    eventually(lambda: not report(gateway)["active"])
    assert report(gateway)["compared"] > 0


def test_what_is_not_mirrored(primary: CannedEngine, mirror: Mirror) -> None:
    """Parts of sequences, requests refused by limits, and metadata requests are not mirrored."""
    rules = simple_rules(primary.url, primary.url, "max_in_flight: 1000")
    gateway = mirror(rules + "limits: [{name: few, requests_per_second: 0.001, burst: 2}]\n")
    of_sequence = {"parameters": {"sequence_id": 5, "sequence_start": True}, "inputs": []}
    statuses = [
        plain_http.post(f"{gateway.http_url}/v2/models/m/infer", json=body).status_code
        for body in (of_sequence, {"inputs": []}, {"inputs": []}, {"inputs": []})
    ]
    assert statuses == [200, 200, 429, 429]
    plain_http.get(f"{gateway.http_url}/v2/models/m/config")
    found = when_mirrored(gateway, 1)
    eventually(lambda: report(gateway)["dropped"] == {"sequence": 1, "refused": 2})
    assert (found["mirrored"], found["captured"]) == (1, 2)


def test_a_sample_is_a_sample(primary: CannedEngine, mirror: Mirror) -> None:
    """A sample of 20 % captures about a fifth of 400 requests."""
    rules = simple_rules(primary.url, primary.url, "max_in_flight: 1000").replace("sample: 1,", "sample: 20%,")
    gateway = mirror(rules)
    assert ask_many(gateway, 400) == {200: 400}
    assert 40 <= report(gateway)["captured"] <= 130  # nine standard deviations of independent samples


class Recorder:
    """An engine that answers everything with an empty object and records the inferences that it receives."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")
        while head := stream.readline():
            lines = [line.decode().partition(": ") for line in iter(stream.readline, b"\r\n")]
            fields = {name.lower(): value.strip() for name, _, value in lines}
            body = stream.read(int(fields.get("content-length", 0)))
            if head.startswith(b"POST") and b"/v2/repository/index" not in head:  # which probes read
                self.seen.append((head.decode().split()[1], fields, body))
            stream.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            stream.flush()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def recorders() -> Iterator[tuple[Recorder, Recorder]]:
    one, other = Recorder(), Recorder()
    yield one, other
    one.close()
    other.close()


def test_a_candidate_gets_what_the_primary_got(recorders: tuple[Recorder, Recorder], mirror: Mirror) -> None:
    """The candidate gets the same body, path, id and headers, and the route's name in a header."""
    primary, candidate = recorders
    gateway = mirror(simple_rules(primary.url, candidate.url, "max_in_flight: 1000"))
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'
    body = head + struct.pack("<f", 1.5)
    given = {
        "inference-header-content-length": str(len(head)),
        "x-mine": "yes",
        "authorization": "Bearer me",
        "x-pointsman-shadow": "forged",
    }
    plain_http.post(f"{gateway.http_url}/v2/models/m/versions/3/infer?a=b", content=body, headers=given)
    eventually(lambda: candidate.seen)
    (path, of_primary, first), (again, of_candidate, second) = primary.seen[0], candidate.seen[0]
    assert path == again == "/v2/models/m/versions/3/infer?a=b"
    assert first == second == body
    for name in ("x-mine", "authorization", "x-request-id", "inference-header-content-length"):
        assert of_primary[name] == of_candidate[name]
    assert of_candidate["x-pointsman-shadow"] == "r"


def test_a_candidate_is_asked_for_the_model_that_has_answered(
    recorders: tuple[Recorder, Recorder], mirror: Mirror
) -> None:
    """The candidate gets the model name that the arm or the route set, unless the shadow names one. Routes without a
    shadow mirror nothing."""
    primary, candidate = recorders
    gateway = mirror(f"""
version: 1
engines:
  old: {{endpoints: ['{primary.url}']}}
  new: {{endpoints: ['{candidate.url}']}}
experiments:
  split:
    unit: header:x-unit
    arms: [{{name: a, engine: old, weight: 1}}, {{name: b, engine: old, weight: 1, model: of-b}}]
routes:
  - {{name: named, match: {{parameter: {{tier: gold}}}}, engine: old, shadow: {{engine: new, sample: 1, model: given}}}}
  - {{name: split, match: {{model: split}}, experiment: split, shadow: {{engine: new, sample: 1, max_in_flight: 1000}}}}
  - {{name: plain, engine: old}}
""")

    def ask(model: str, unit: str = "", **parameters: str) -> None:
        url, body = f"{gateway.http_url}/v2/models/{model}/infer", {"parameters": parameters, "inputs": []}
        assert plain_http.post(url, json=body, headers={"x-unit": unit}).status_code == 200

    ask("any", tier="gold")
    for number in range(20):
        ask("split", f"u{number}")
    ask("other")
    requested = Counter(path.split("/")[3] for path, _, _ in primary.seen)
    assert requested.keys() == {"any", "split", "of-b", "other"}

    def mirrored() -> bool:
        """Whether all mirrored requests have arrived."""
        return len(candidate.seen) == 1 + 20

    eventually(mirrored)
    models = Counter(path.split("/")[3] for path, _, _ in candidate.seen)
    assert models.pop("given") == 1
    assert models == {name: requested[name] for name in ("split", "of-b")}


def test_what_is_converted_is_mirrored_once(hosts: tuple[HostProcess, HostProcess], mirror: Mirror) -> None:
    """REST requests to a gRPC engine and gRPC requests to a REST engine are mirrored once."""
    exact, shifted = hosts
    for endpoint in (f"grpc://{exact.grpc_url}", exact.http_url):
        gateway = mirror(f"""
version: 1
engines:
  old: {{endpoints: ['{endpoint}']}}
  new: {{endpoints: [{{url: '{shifted.http_url}', grpc: '{shifted.grpc_url}'}}]}}
routes: [{{name: r, engine: old, shadow: {{engine: new, sample: 1, max_in_flight: 1000}}}}]
""")
        ask_each_way(gateway)
        check_the_difference(when_mirrored(gateway, 3))
        assert report(gateway)["captured"] == 3


def test_a_gateway_with_tls_mirrors_as_well(
    primary: CannedEngine, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """Mirroring works on a listener with TLS and client certificates, because the candidate's requests do not pass
    through it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    files = {name: str(tmp_path / "both.pem") for name in ("--tls-cert", "--tls-key")}
    options = [each for pair in (files | {"--tls-client-ca": str(tmp_path / "ca.pem")}).items() for each in pair]
    gateway = start_gateway(simple_rules(primary.url, primary.url, "max_in_flight: 1000"), extra_args=options)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    trusting.load_cert_chain(tmp_path / "both.pem")
    url = gateway.http_url.replace("http:", "https:")
    answer = httpx.post(f"{url}/v2/models/m/infer", content=b'{"inputs": []}', verify=trusting)
    assert answer.status_code == 200
    assert when_mirrored(gateway, 1)["agreeing"] == 1
