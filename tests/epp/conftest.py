"""Engines, and pickers that know them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.epp.engines import Engine
from tests.epp.processes import Config, PickerProcess
from tests.epp.proxy import Stream


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """`a` serves the models one and shared, `b` two and shared."""
    with Engine("a", ("one", "shared")) as a, Engine("b", ("two", "shared")) as b:
        yield a, b


@pytest.fixture(scope="module")
def start_picker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., PickerProcess]]:
    started: list[PickerProcess] = []

    def start(rules: Config, *extra_args: str) -> PickerProcess:
        directory: Path = tmp_path_factory.mktemp("picker")
        picker = PickerProcess.start(rules, directory, *extra_args)
        started.append(picker)
        return picker

    yield start
    for picker in started:
        if picker.process.poll() is None:
            picker.stop()
        assert "Traceback" not in picker.log(), picker.log()


@pytest.fixture(scope="module")
def open_stream() -> Iterator[Callable[[PickerProcess], Stream]]:
    channels: dict[str, grpc.Channel] = {}

    def open_at(picker: PickerProcess) -> Stream:
        channel = channels.get(picker.address)
        if channel is None:
            channel = channels[picker.address] = grpc.insecure_channel(picker.address)
        return Stream(channel)

    yield open_at
    for channel in channels.values():
        channel.close()
