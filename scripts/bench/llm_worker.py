"""An engine without a server: loaded in a process of its own, called over a socket with lines of JSON.

    python -m bench.llm_worker ours --model DIR --dtype bfloat16 --port PORT

A line is a list of requests; the reply is a line with every token and its time, or the word `error`. Times are taken
where tokens leave the engine, in its process.
"""

import argparse
import dataclasses
import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from bench.llm_work import Answer, Arrivals, Request

# Room for the largest case of all, in tokens: 4,000 and eight conversations.
CACHE_TOKENS = 16_384
MEMORY_GB = 3.0


class Engine(Protocol):
    """An engine that answers requests; the answers have the order of the requests."""

    def ask(self, requests: Sequence[Request]) -> list[Answer]: ...

    def about(self) -> str:
        """The setup in a few words."""
        ...


class Ours:
    """PagedEngine with its defaults, except for the dtype."""

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        from engines.paged.base.options import EngineOptions
        from engines.paged.engine import PagedEngine

        options = EngineOptions(device="cpu", dtype=dtype, threads=threads, memory_gb=MEMORY_GB)
        self._engine = PagedEngine.load(model, options)
        self._engine.start()
        self._asked = 0

    def about(self) -> str:
        told = self._engine.describe()
        return f"{told['ops']} ops, blocks of {told['memory']['block_size']}, {told['dtype']}"

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        from engines.paged.base.types import GenerateRequest, Output, SamplingParams

        heard: SimpleQueue[tuple[int, float, Output]] = SimpleQueue()
        self._asked += 1

        def submit(place: int) -> None:
            def listen(output: Output) -> None:
                heard.put((place, time.perf_counter(), output))

            request = requests[place]
            params = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
            self._engine.submit(GenerateRequest(f"{self._asked}-{place}", request.prompt, params), listen)

        def hear() -> tuple[int, float, Sequence[int], bool]:
            place, now, output = heard.get()
            if output.error:
                raise RuntimeError(output.error)
            return place, now, output.token_ids, output.is_final

        return _ask(requests, submit, hear)


class Transformers:
    """transformers' continuous batching: the manager that `generate_batch` itself uses. `generate_batch` takes one
    length for all answers of a call; requests of the manager have their own, and it keeps running between calls."""

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        from bench.llm_engines import TRANSFORMERS

        torch.set_num_threads(threads)
        loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation=TRANSFORMERS.attention
        )
        config = ContinuousBatchingConfig(
            page_size=TRANSFORMERS.page_size,
            num_blocks=CACHE_TOKENS // TRANSFORMERS.page_size,
            max_batch_tokens=TRANSFORMERS.max_batch_tokens,
        )
        generation = GenerationConfig(max_new_tokens=1, do_sample=False, eos_token_id=-1)
        self._manager = loaded.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
        self._manager.warmup()
        self._manager.start()

    def about(self) -> str:
        from bench.llm_engines import TRANSFORMERS

        return str(TRANSFORMERS)

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        # Streaming each token costs time, so it is on only if a request waits for tokens.
        streams = any(request.after_tokens for request in requests)
        places: dict[str, int] = {}
        told = [0] * len(requests)

        def submit(place: int) -> None:
            request = requests[place]
            name = self._manager.add_request(
                list(request.prompt), max_new_tokens=request.max_tokens, streaming=streams, record_timestamps=True
            )
            if name is None:
                raise RuntimeError("the generation thread takes no request")
            places[name] = place

        def hear() -> tuple[int, list[float], Sequence[int], bool]:
            while (output := self._manager.get_result(timeout=1)) is None:
                if not self._manager.is_running():
                    raise RuntimeError("the generation thread has ended")
            if output.error is not None:
                raise RuntimeError(output.error)
            place = places[output.request_id]
            before, told[place] = told[place], len(output.generated_tokens)
            return place, output.timestamps[before:], output.generated_tokens[before:], output.is_finished()

        return _ask(requests, submit, hear)


def _ask(
    requests: Sequence[Request],
    submit: Callable[[int], None],
    hear: Callable[[], tuple[int, float | Sequence[float], Sequence[int], bool]],
) -> list[Answer]:
    """Submit requests when they are due, and receive until all have ended. `hear` returns a request's place, the times
    of its tokens, the tokens, and whether they were the last."""
    arrivals = Arrivals(requests)
    answers = [Answer(0.0, [], []) for _ in requests]
    while not arrivals.all_ended:
        for place in arrivals.due():
            answers[place].submitted = time.perf_counter()
            submit(place)
        place, when, ids, has_ended = hear()
        answer = answers[place]
        answer.times.extend([when] * len(ids) if isinstance(when, float) else when)
        assert answer.ids is not None
        answer.ids.extend(ids)
        arrivals.told(place, len(ids), has_ended)
    return answers


ENGINES: dict[str, Callable[[Path, str, int], Engine]] = {"ours": Ours, "transformers": Transformers}


def serve(engine: Engine, port: int) -> None:
    """Answer one connection after another, until the process is ended."""
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(_answered(engine, line)) + "\n")
                    lines.flush()


def _answered(engine: Engine, line: str) -> dict[str, Any]:
    try:
        if (asked := json.loads(line)) == "about":
            return {"about": engine.about()}
        requests = [Request(tuple(each["prompt"]), each["max_tokens"], each["after_tokens"]) for each in asked]
        return {"answers": [dataclasses.asdict(answer) for answer in engine.ask(requests)]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine without a server.")
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    told = parser.parse_args()
    serve(ENGINES[told.engine](told.model, told.dtype, told.threads), told.port)


if __name__ == "__main__":
    main()
