"""`pointsman llm`: a model repository for one folder, a host that serves it, and its progress on a terminal."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from engines.backends.paged.load_progress import LoadProgress, find_progress
from engines.backends.paged.settings import LIBRARIES
from engines.cli.options import refuse
from engines.core.errors import EngineError
from engines.host.logs import LogSettings
from engines.host.server.host import Host, LoadError, StartError
from engines.host.server.run import RunReporter, run, url_host
from engines.host.settings import Address, HostSettings
from engines.paged.model.config_reader import read_config
from gateway.protocol.protobuf import Message, message


class Display(RunReporter):
    """A progress bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._stage = ""

    @contextmanager
    def watching(self, logger: logging.Logger) -> Iterator[None]:
        """Show the load's progress from the log of the model's instance."""
        logger.addFilter(self._see)
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task(f"starting {self._name}", total=None)
        try:
            yield
        finally:
            logger.removeFilter(self._see)
            self.close()

    def _see(self, record: logging.LogRecord) -> bool:
        """Show the progress in a line of the log, if any; the line itself goes on."""
        if (progress := find_progress(record.getMessage())) is not None:
            self._show_progress(progress)
        return True

    def _show_progress(self, progress: LoadProgress) -> None:
        is_other, self._stage = progress.stage != self._stage, progress.stage
        if self._bar is None:
            if is_other and not self._console.is_terminal:
                self._print(f"loading {self._name}: {progress.stage}")
            return
        if is_other:
            self._end_stage()
            self._task = self._bar.add_task(progress.stage, total=progress.total)
        self._bar.update(self._task, completed=progress.done)

    def show_ready(
        self, placement: Mapping[str, Any], host: str, http_port: int, grpc_port: int, metrics_port: int
    ) -> None:
        """Show what is served where, and an example."""
        self._end_stage()
        self.close()
        where = f"on {placement['device']} ({placement['ops']}, {placement['dtype']})"
        self._print(f"{self._name} is served {where}, contexts of up to {placement['max_context']:,} tokens")
        lines = [("memory", placement["memory_text"])]
        if placement.get("kv_store"):
            lines.append(("kv store", placement["kv_store"]))
        if placement.get("quantization"):
            lines.append(("quantized", placement["quantization"]))
        if placement.get("adapters"):
            lines.append(("adapters", ", ".join(placement["adapters"])))
        url = f"http://{host}:{http_port}"
        lines += [
            ("OpenAI", f"{url}/v1"),
            ("V2", f"{url}/v2, gRPC {host}:{grpc_port}"),
            ("metrics", f"http://{host}:{metrics_port}/metrics"),
        ]
        for what, text in lines:
            self._print(f"  {what:<10}{text}")
        self._print(f"try:\n{_example(url, self._name, bool(placement.get('chats')))}")

    def failed(self, error: StartError) -> None:
        self.close()
        for reason in error.failures.values() if isinstance(error, LoadError) else [str(error)]:
            match = _LOAD_FAILURE.fullmatch(reason)
            refuse("llm", match[1] if match is not None else reason)

    def serving(self, host: Host, settings: HostSettings) -> None:
        config = host.service.model(self._name, "").config
        placement: dict[str, Any] = next(iter(json.loads(config.parameters[_PLACEMENT].string_value).values()))
        assert settings.http is not None
        ports = host.ports
        self.show_ready(placement, url_host(settings.http), ports.http, ports.grpc, ports.metrics)

    def stopping(self) -> None:
        self._print("stopping: answers under way may end; Ctrl-C once more stops at once")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _end_stage(self) -> None:
        """Complete the bar of the current stage."""
        if self._bar is not None:
            total = next(task.total for task in self._bar.tasks if task.id == self._task) or 1.0
            self._bar.update(self._task, completed=total, total=total)

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _example(url: str, name: str, chats: bool) -> str:
    request = '"messages": [{"role": "user", "content": "Hello!"}]' if chats else '"prompt": "Once upon a time"'
    path = "chat/completions" if chats else "completions"
    return (
        f"  curl -N {url}/v1/{path} -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{name}", {request}, "max_tokens": 64, "stream": true}}\''
    )


_VERSION = "1"
# The repository's text for a version that does not load; the group is the reason.
_LOAD_FAILURE = re.compile(
    rf"version {_VERSION} is at UNAVAILABLE state: (?:[A-Z][a-z]+(?: [a-z]+)?: )?(.*?);?", re.DOTALL
)
_PLACEMENT = "PLACEMENT"
_STORE_VARIABLE = "POINTSMAN_KV_STORE"


@dataclass(frozen=True, slots=True)
class Serving:
    """The command line: `options` of the engine by name, `ports` of REST, gRPC and metrics."""

    model: Path
    name: str
    options: Mapping[str, str]
    adapters: Mapping[str, Path]
    host: str
    ports: tuple[int, int, int]
    drain_delay_seconds: float
    exit_timeout_seconds: float
    ready_file: Path | None
    logs_info: bool
    log_file: str


def serve_folder(serving: Serving) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code."""
    logs = LogSettings(log_info=serving.logs_info, log_file=serving.log_file)
    try:
        logs.install()
    except OSError as error:
        return refuse("llm", f"cannot log to {serving.log_file}: {error.strerror}")
    if problem := _problem(serving):
        return refuse("llm", problem)
    name = serving.name or serving.model.resolve().name
    display = Display(Console(stderr=True, highlight=False), name)
    with TemporaryDirectory(prefix="pointsman-llm-") as directory:
        write_repository(Path(directory), name, serving)
        settings = HostSettings(
            repositories=(Path(directory),),
            http=Address(serving.host, serving.ports[0]),
            grpc=Address(serving.host, serving.ports[1]),
            metrics=Address(serving.host, serving.ports[2]),
            name="pointsman-llm",
            drain_delay_seconds=serving.drain_delay_seconds,
            exit_timeout_seconds=serving.exit_timeout_seconds,
        )
        with display.watching(logging.getLogger("engines.models")):
            return run(settings, logs, serving.ready_file, display)


def write_repository(directory: Path, name: str, serving: Serving) -> None:
    """A model repository with one entry, whose configuration names the folder."""
    from google.protobuf import text_format

    config: Message = message("inference.ModelConfig")(name=name, backend="paged")
    group = config.instance_group.add(count=1)
    group.kind = group.KIND_MODEL
    folder = serving.model.expanduser().resolve()
    adapters = {adapter: str(path.expanduser().resolve()) for adapter, path in serving.adapters.items()}
    texts = {"model": str(folder), **serving.options}
    if "kv_store" in texts:  # its URL may have a password, and clients can read a model's parameters
        os.environ[_STORE_VARIABLE] = texts["kv_store"]
        texts["kv_store"] = f"env:{_STORE_VARIABLE}"
    if adapters:
        texts["adapters"] = json.dumps(adapters)
    for option, text in texts.items():
        config.parameters[option.upper()].string_value = text
    (directory / name / _VERSION).mkdir(parents=True)
    (directory / name / "config.pbtxt").write_text(text_format.MessageToString(config))


def _problem(serving: Serving) -> str:
    """The problem that prevents a load, with its cure; "" for none."""
    absent = [name for name in LIBRARIES if find_spec(name) is None]
    if absent:
        return f'{", ".join(absent)}: not installed here; pip install "pointsman[llm]"'
    if serving.name and (set(serving.name) & set("/\\\0") or serving.name.startswith(".")):
        return f"--name '{serving.name}': a model's name has no slashes, and begins with no dot"
    if problem := _folder_problem(serving.model.expanduser()):
        return problem
    missing = [f"{name}={folder}" for name, folder in serving.adapters.items() if not folder.expanduser().is_dir()]
    return f"--adapter {missing[0]}: there is no such folder" if missing else ""


def _folder_problem(folder: Path) -> str:
    if folder.is_file():
        return f"--model {folder} is a file: name the folder that it is in (config.json, *.safetensors, tokenizer.json)"
    if not folder.exists():
        text = f"--model {folder}: there is no such folder"
        if len(folder.parts) == 2 and not folder.is_absolute():
            text += (
                f", and nothing is downloaded here. If it is a model of Hugging Face's, get it with: "
                f"hf download {folder} --local-dir {folder.name}"
            )
        return text
    if not (folder / "config.json").exists():
        return (
            f"--model {folder} is no Hugging Face folder: it has no config.json. Beside it belong *.safetensors and "
            "tokenizer.json"
        )
    try:
        read_config(folder)
    except EngineError as error:
        return error.message
    return ""
