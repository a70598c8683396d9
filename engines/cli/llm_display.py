"""What a user of `pointsman llm` sees: a bar while the model loads, where it serves, how to ask it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from engines.backends.paged.load_progress import find_progress


class Display:
    """On a terminal a bar, elsewhere lines."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._stage = ""

    @contextmanager
    def watching(self, logger: logging.Logger) -> Iterator[None]:
        """Draw what the instance of the model tells of its load in the log."""
        handler = _Handler(self)
        logger.addHandler(handler)
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task(f"starting {self._name}", total=None)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            self.close()

    def tell_progress(self, line: str) -> None:
        """A line of the log, whatever it says."""
        progress = find_progress(line)
        if progress is None:
            return
        is_other, self._stage = progress.stage != self._stage, progress.stage
        if self._bar is None:
            if is_other and not self._console.is_terminal:
                self._say(f"loading {self._name}: {progress.stage}")
            return
        if is_other:
            self._end_stage()
            self._task = self._bar.add_task(progress.stage, total=progress.total)
        self._bar.update(self._task, completed=progress.done)

    def tell_ready(self, told: Mapping[str, Any], host: str, http_port: int, grpc_port: int, metrics_port: int) -> None:
        """It serves: what runs where, and a command to try."""
        self._end_stage()
        self.close()
        where = f"on {told['device']} ({told['ops']}, {told['dtype']})"
        self._say(f"{self._name} is served {where}, contexts of up to {told['max_context']:,} tokens")
        lines = [("memory", told["memory_text"])]
        if told.get("kv_store"):
            lines.append(("kv store", told["kv_store"]))
        if told.get("quantization"):
            lines.append(("quantized", told["quantization"]))
        if told.get("adapters"):
            lines.append(("adapters", ", ".join(told["adapters"])))
        url = f"http://{host}:{http_port}"
        lines += [
            ("OpenAI", f"{url}/v1"),
            ("V2", f"{url}/v2, gRPC {host}:{grpc_port}"),
            ("metrics", f"http://{host}:{metrics_port}/metrics"),
        ]
        for what, text in lines:
            self._say(f"  {what:<10}{text}")
        self._say(f"try:\n{_example(url, self._name, bool(told.get('chats')))}")

    def tell_end(self) -> None:
        self._say("stopping: answers under way may end; Ctrl-C once more stops at once")

    def close(self) -> None:
        """Let the bar be."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _end_stage(self) -> None:
        """What was under way is done, whether that was told or not."""
        if self._bar is not None:
            total = next(task.total for task in self._bar.tasks if task.id == self._task) or 1.0
            self._bar.update(self._task, completed=total, total=total)

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class _Handler(logging.Handler):
    """Takes the lines of the log."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.tell_progress(record.getMessage())


def _example(url: str, name: str, chats: bool) -> str:
    asked = '"messages": [{"role": "user", "content": "Hello!"}]' if chats else '"prompt": "Once upon a time"'
    path = "chat/completions" if chats else "completions"
    return (
        f"  curl -N {url}/v1/{path} -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{name}", {asked}, "max_tokens": 64, "stream": true}}\''
    )
