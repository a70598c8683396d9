"""An instance of a language model: it submits each request to its engine, whose thread responds."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

from engines.backends.interfaces import BackendRequest, InstanceSpec
from engines.backends.model_files import library
from engines.backends.paged.load_progress import Loading
from engines.backends.paged.metrics import EngineMetrics
from engines.backends.paged.request_parser import read_request
from engines.backends.paged.response_stream import LogprobWriter, ResponseStream, counted
from engines.backends.paged.settings import LIBRARIES, read_settings
from engines.core.errors import EngineError, internal
from engines.ipc.host_connection import HostClient
from engines.paged.model.config_reader import read_config

if TYPE_CHECKING:
    from engines.backends.paged.prompt_builder import PromptBuilder

_log = logging.getLogger(__name__)


class PagedBackend:
    """One engine."""

    def __init__(self) -> None:
        self.placement: dict[str, Any] = {}
        self._host: HostClient | None = None
        self._engine: Any = None
        self._prompt_builder: PromptBuilder
        self._logprobs: LogprobWriter
        self._metrics: EngineMetrics | None = None
        self._ids = count(1)

    def attach(self, host: HostClient) -> None:
        """Give access to the host, for metrics."""
        self._host = host

    def initialize(self, spec: InstanceSpec) -> None:
        """Load the folder, and start the engine.

        Raises: EngineError.
        """
        if spec.kind == "KIND_GPU":
            _see_one_gpu(spec.device_id)
        folder, options = read_settings(spec)
        read_config(folder)  # before torch, whose import takes seconds: a folder of another kind fails at once
        for module in LIBRARIES:
            library(module, "llm")
        from engines.backends.paged.prompt_builder import PromptBuilder
        from engines.paged.engine import PagedEngine

        loading = Loading(spec.name, folder)
        engine = self._engine = PagedEngine.load(folder, options, loading)
        self._prompt_builder = PromptBuilder(engine.tokenizer, folder, engine.max_context)
        self._logprobs = LogprobWriter(engine.tokenizer.table.bytes_of)
        engine.start()
        self.placement = engine.describe() | {"folder": str(folder), "adapters": sorted(options.adapters)}
        self.placement["chats"] = engine.tokenizer.has_chat_template
        loading.end(self.placement)
        if self._host is not None:
            labels = {"model": spec.model, "version": str(spec.version), "model_name": spec.model, "engine": spec.name}
            self._metrics = EngineMetrics(self._host, engine, labels)
            self._metrics.start()

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Submit the requests; responses come later."""
        for request in requests:
            try:
                self._submit(request)
            except EngineError as error:
                request.fail(error)
            except Exception as error:
                _log.exception("request %r cannot be read", request.id)
                request.fail(internal(f"the request cannot be read: {type(error).__name__}: {error}"))

    def finalize(self) -> None:
        """Stop the engine. No request waits for it any more."""
        if self._engine is not None:
            self._engine.stop(0.0)
        if self._metrics is not None:
            self._metrics.stop()

    def _submit(self, request: BackendRequest) -> None:
        """Raises: EngineError for what is wrong with a request."""
        arrived = monotonic()
        parsed = read_request(request)
        id = str(next(self._ids))
        generation = self._prompt_builder.generate_request(id, parsed, arrived)
        if parsed.only_counts:
            request.respond(counted(generation.prompt, parsed.outputs))
            return
        stream = ResponseStream(
            request,
            parsed,
            num_choices=generation.params.n,
            prompt=self._prompt_builder.text_of(parsed, generation) if parsed.repeats_prompt else "",
            logprobs=self._logprobs,
            first_token=generation.prompt[0] if generation.prompt else 0,
        )
        self._engine.submit(generation, stream)
        request.when_cancelled(partial(self._engine.cancel, id))


def _see_one_gpu(device_id: int) -> None:
    """Each of torch's threads has a current GPU of its own; with one visible GPU all have that."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = visible.split(",") if visible else [str(number) for number in range(device_id + 1)]
    if device_id < len(there):
        os.environ["CUDA_VISIBLE_DEVICES"] = there[device_id]
