"""A language model for V2 clients: metadata, outputs, cancellation and timeouts."""

import json
import queue
import socket
import struct
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.engines.paged.front.llm_process import NAME, LLMProcess
from tests.llm.clients import ASK
from tests.llm.clients.values import LeftError, TextRequest
from tests.support.waiting import eventually

PATH = f"/v2/models/{NAME}"
DATATYPES = {bool: ("BOOL", np.bool_), str: ("BYTES", np.object_), list: ("INT64", np.int64)}


def tensors(make: Any, **values: Any) -> list[Any]:
    """The inputs for a tritonclient."""
    made = []
    for name, value in values.items():
        datatype, dtype = DATATYPES[type(value)]
        array = np.array(value if isinstance(value, list) else [value], dtype)
        made.append(make(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


def events(llm: LLMProcess, **fields: Any) -> list[dict[str, Any]]:
    """The events of a generate_stream reply."""
    reply = llm.post(f"{PATH}/generate_stream", {"text_input": "the sea", "stream": True, **fields})
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line for line in reply.body.split(b"\n\n") if line]
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def test_the_model_describes_itself(llm: LLMProcess) -> None:
    """Metadata lists the tensors of a vLLM backend; the configuration says that the model is decoupled and where each
    instance runs."""
    metadata = json.loads(llm.get(PATH).body)
    assert metadata["platform"] == "paged"
    inputs = {each["name"]: each["datatype"] for each in metadata["inputs"]}
    assert {"text_input": "BYTES", "stream": "BOOL", "sampling_parameters": "BYTES"}.items() <= inputs.items()
    config = json.loads(llm.get(f"{PATH}/config").body)
    assert config["model_transaction_policy"] == {"decoupled": True}
    (placement,) = json.loads(config["parameters"]["PLACEMENT"]["string_value"]).values()
    assert placement["device"] == "cpu"
    assert placement["max_context"] == 256
    assert placement["memory"]["cache_tokens"] >= 256
    assert llm.get("/v2/health/ready").status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_all_outputs(llm: LLMProcess, stream: bool) -> None:
    """Each flag adds an output; counts and ids of a stream's event are those since the previous event."""
    names = ["finish_reason", "stop_reason", "cumulative_logprob", "logprobs"]
    names += ["num_input_tokens", "num_output_tokens", "num_cached_tokens", "token_ids"]
    flags = {f"return_{name}": True for name in names}
    request: dict[str, Any] = {"sampling_parameters": json.dumps({"max_tokens": 5, "logprobs": 1}), **flags}
    results = events(llm, **request) if stream else [llm.generate("the sea", **request)]
    assert len(results) == (5 if stream else 1)
    assert all(event.keys() == {"model_name", "model_version", "text_output", *names} for event in results)
    assert [event["finish_reason"] for event in results] == ["None"] * (len(results) - 1) + ["length"]
    assert sum(event["num_output_tokens"] for event in results) == 5
    assert results[-1]["num_input_tokens"] == len(llm_tokens(llm, "the sea"))
    ids = [token for event in results for token in json.loads(event["token_ids"])]
    logprobs = [token for event in results for token in json.loads(event["logprobs"])]
    assert [int(next(iter(token))) for token in logprobs] == ids
    total = sum(token[str(token_id)]["logprob"] for token, token_id in zip(logprobs, ids, strict=True))
    assert results[-1]["cumulative_logprob"] == pytest.approx(total, rel=1e-4)


def test_the_cumulative_logprob_needs_no_logprobs(llm: LLMProcess) -> None:
    """The cumulative log probability is returned without per-token log probabilities."""
    both = llm.generate("the sea", return_cumulative_logprob=True, return_logprobs=True)
    alone = llm.generate("the sea", return_cumulative_logprob=True)
    assert alone["cumulative_logprob"] == pytest.approx(both["cumulative_logprob"], rel=1e-4)
    assert alone["cumulative_logprob"] < 0 and "logprobs" not in alone


def llm_tokens(llm: LLMProcess, prompt: str) -> list[int]:
    """The tokens of a prompt: those with a score, and the first."""
    request = {"return_prompt_logprobs": True, "sampling_parameters": '{"max_tokens": 1}'}
    results = json.loads(llm.generate(prompt, **request)["prompt_logprobs"])
    return [int(next(iter(token))) for token in results]


def test_a_prompt_of_token_ids_is_that_of_its_text(llm: LLMProcess) -> None:
    """`input_ids` skips the tokenizer; without exclude_input_in_output a whole reply begins with the prompt."""
    ids = llm_tokens(llm, "the sea")
    text = llm.generate("the sea", max_tokens=4)["text_output"]
    assert llm.generate(input_ids=ids, max_tokens=4)["text_output"] == text
    assert llm.generate(input_ids=ids, max_tokens=4, exclude_input_in_output=False)["text_output"] == "the sea" + text


def test_a_shared_beginning_is_not_computed_again(llm: LLMProcess) -> None:
    """The second of two prompts reuses the first one's blocks, unless its salt differs."""
    prompt = "Of the ship that went to sea and never was seen again. " * 3
    results = [
        llm.generate(prompt + end, max_tokens=1, return_num_cached_tokens=True, **salt)["num_cached_tokens"]
        for end, salt in (("One", {}), ("Two", {}), ("Two", {"cache_salt": "mine"}))
    ]
    assert results[0] < 16
    assert results[1] >= 64
    assert results[2] == 0


def test_infer_by_http_and_by_grpc(llm: LLMProcess) -> None:
    """A request that does not stream has one reply, so infer accepts it."""
    request = {"text_input": "the sea", "exclude_input_in_output": True, "sampling_parameters": '{"max_tokens": 4}'}
    expected = llm.generate("the sea", max_tokens=4)["text_output"]
    with closing(http.InferenceServerClient(f"127.0.0.1:{llm.http_port}")) as client:
        by_http = client.infer(NAME, tensors(http.InferInput, **request), request_id="mine")
    with closing(grpc.InferenceServerClient(llm.grpc_url)) as client:
        by_grpc = client.infer(NAME, tensors(grpc.InferInput, **request), request_id="mine")
    assert by_http.as_numpy("text_output").tolist() == [expected.encode()]
    assert by_grpc.as_numpy("text_output").tolist() == [expected.encode()]
    assert by_grpc.get_response().id == "mine"


def test_infer_does_not_stream(llm: LLMProcess) -> None:
    """infer refuses a streaming request before anything is generated, since it returns one response."""
    message = (
        "input 'stream' of model 'tiny' is true, and infer has one answer: ask generate_stream or ModelStreamInfer"
    )
    request = {"text_input": "the sea", "stream": True}
    with closing(http.InferenceServerClient(f"127.0.0.1:{llm.http_port}")) as client:
        with pytest.raises(InferenceServerException, match=message) as failure:
            client.infer(NAME, tensors(http.InferInput, **request))
        assert failure.value.status() == "501"
    with closing(grpc.InferenceServerClient(llm.grpc_url)) as client:
        with pytest.raises(InferenceServerException, match=message) as failure:
            client.infer(NAME, tensors(grpc.InferInput, **request))
        assert failure.value.status() == "StatusCode.UNIMPLEMENTED"


def test_many_requests_of_one_grpc_stream(llm: LLMProcess) -> None:
    """Responses are sent as they are generated, with their request's id; the last one of each request is marked
    final."""
    prompts = {f"{number}": f"{number} ships and " for number in range(6)}
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with closing(grpc.InferenceServerClient(llm.grpc_url)) as client:
        client.start_stream(lambda result, error: came.put(result or error))
        for id, prompt in prompts.items():
            request = {"text_input": prompt, "stream": True, "sampling_parameters": '{"max_tokens": 6}'}
            client.async_stream_infer(
                NAME, tensors(grpc.InferInput, **request), request_id=id, enable_empty_final_response=True
            )
        texts, ended = dict.fromkeys(prompts, ""), set()
        while len(ended) < len(prompts):
            response = came.get(timeout=120).get_response()
            if response.raw_output_contents:
                texts[response.id] += response.raw_output_contents[0][4:].decode()
            if response.parameters["triton_final_response"].bool_param:
                ended.add(response.id)
        client.stop_stream()
    assert texts == {id: llm.generate(prompt, max_tokens=6)["text_output"] for id, prompt in prompts.items()}


# These choices take seconds on any machine, unless they are cancelled.
LONG = json.dumps({"max_tokens": 230, "ignore_eos": True, "n": 64, "temperature": 1.0})


def leave_grpc(llm: LLMProcess) -> None:
    with pytest.raises(LeftError):
        ASK["model_stream_infer"](
            llm, TextRequest(NAME, streams=True, options={"sampling": json.loads(LONG)}, leave_after=2)
        )


def leave_generate_stream(llm: LLMProcess) -> None:
    with pytest.raises(LeftError):
        ASK["generate_stream"](
            llm, TextRequest(NAME, streams=True, options={"sampling": json.loads(LONG)}, leave_after=2)
        )


def leave_generate(llm: LLMProcess) -> None:
    # Eight replies take long enough to be observed while active.
    body = json.dumps({"text_input": "the sea", "sampling_parameters": LONG}).encode()
    with socket.create_connection(("127.0.0.1", llm.http_port)) as connection:
        head = f"POST {PATH}/generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        eventually(lambda: llm.metrics()["vllm:num_requests_running"])
        # With a reset: a client that only ends its half may wait for the reply, for a while.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leave_infer(llm: LLMProcess) -> None:
    request = tensors(grpc.InferInput, text_input="the sea", sampling_parameters=LONG)
    client = grpc.InferenceServerClient(llm.grpc_url)
    with closing(client), pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.infer(NAME, request, client_timeout=0.2)


@pytest.mark.parametrize("leave", [leave_grpc, leave_generate_stream, leave_generate, leave_infer])
def test_a_client_that_leaves_frees_its_blocks(llm: LLMProcess, leave: Any) -> None:
    """In any protocol the request of a client that disconnects ends as cancelled, long before its text would end."""
    cancelled = 'pointsman_llm_requests_total{outcome="cancelled"}'
    before = llm.metrics()[cancelled]
    leave(llm)
    eventually(lambda: llm.metrics()[cancelled] == before + 1)
    eventually(llm.is_idle)


def test_a_request_that_takes_too_long_is_ended(llm: LLMProcess) -> None:
    """V2's timeout is in microseconds and ends a generation in any phase."""
    reply = llm.post(f"{PATH}/generate", {"text_input": "the sea", "sampling_parameters": LONG, "timeout": 60_000})
    assert reply.status == 400  # Triton's status for model errors of generate
    assert json.loads(reply.body)["error"].startswith("Request timeout expired after ")
    results = events(llm, sampling_parameters=LONG, timeout=60_000)
    assert all("text_output" in each for each in results[:-1])
    assert results[-1]["error"].startswith("Request timeout expired after ")


def test_statistics_and_metrics_count(llm: LLMProcess) -> None:
    """Triton's counters count requests when they end; vLLM's counters of tokens and times follow a moment later."""
    success, finished = "nv_inference_request_success", 'pointsman_llm_requests_total{outcome="finished"}'
    first, later = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    least = {"vllm:generation_tokens_total": 15, "vllm:prompt_tokens_total": 15, finished: 3}
    least |= {f"{first}_count": 3, f"{later}_count": 12, "pointsman_llm_steps_total": 5}
    before = llm.metrics()
    for _ in range(3):
        llm.generate("the sea", max_tokens=5)
    assert llm.metrics()[success] == before[success] + 3
    eventually(lambda: all(llm.metrics()[name] >= before[name] + number for name, number in least.items()))
    results = llm.metrics()
    for name in (first, later):
        assert results[f"{name}_sum"] > before[f"{name}_sum"]
        assert results[f'{name}_bucket{{le="+Inf"}}'] == results[f"{name}_count"]
    assert 0 < results["vllm:prefix_cache_hits_total"] < results["vllm:prefix_cache_queries_total"]
    statistics = json.loads(llm.get(f"{PATH}/stats").body)["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == results[success]
