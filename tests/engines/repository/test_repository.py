"""The repository's start, concurrent operations, cancellation and end."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import EngineError, ErrorCode, internal
from engines.repository import Mode, Repository
from tests.engines.repository.fakes import PYTHON, FakeLoader, brief, ensemble, write_model

Test = Callable[..., Awaitable[None]]


def run(test: Test) -> Callable[[Path], None]:
    """A test as a coroutine that gets the directory and a fake loader."""

    def wrapped(tmp_path: Path) -> None:
        async def limited() -> None:
            async with asyncio.timeout(120):
                await test(tmp_path, FakeLoader())

        asyncio.run(limited())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


async def started(root: Path, loader: FakeLoader, mode: Mode = Mode.EXPLICIT, **options: Any) -> Repository:
    repository = Repository([root], loader, mode=mode, **options)
    await repository.start()
    return repository


async def until(ask: Callable[[], object]) -> None:
    while not ask():
        await asyncio.sleep(0.001)


def touch(path: Path) -> None:
    """Change a file's time; clocks of file systems are too coarse to wait for."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000))


@pytest.mark.parametrize(
    "mode, startup, loaded",
    [
        (Mode.NONE, (), ["a", "b"]),
        (Mode.POLL, (), ["a", "b"]),
        (Mode.EXPLICIT, (), []),
        (Mode.EXPLICIT, ("*",), ["a", "b"]),
        (Mode.EXPLICIT, ("b",), ["b"]),
    ],
)
def test_what_is_loaded_at_the_start(mode: Mode, startup: tuple[str, ...], loaded: list[str], tmp_path: Path) -> None:
    """The start loads all models or the named ones."""

    async def test() -> None:
        for name in ("a", "b"):
            write_model(tmp_path, name)
        repository = await started(tmp_path, FakeLoader(), mode, startup_models=startup)
        assert [entry.name for entry in repository.index(ready_only=True)] == loaded
        await repository.close()

    asyncio.run(test())


@run
async def test_a_start_reports_failures(root: Path, loader: FakeLoader) -> None:
    """Failures are reported by model, with file and line for a wrong configuration. The other models serve."""
    write_model(root, "good")
    write_model(root, "bad", 'backend: "python"\nmax_batch: 3')
    write_model(root, "batch", PYTHON + "\n\nmax_batch_size: -3")
    write_model(root, "raises")
    loader.broken["raises"] = KeyError("weights")
    repository = Repository([root], loader, mode=Mode.NONE)
    failures = await repository.start()
    assert (
        failures
        == repository.failures
        == {
            "bad": f"{root}/bad/config.pbtxt:2:1: ModelConfig has no field 'max_batch'; 'max_batch_size' is near it",
            "batch": f"{root}/batch/config.pbtxt:7: 'max_batch_size' must be non-negative value for batch",
            "raises": "version 1 is at UNAVAILABLE state: Internal: KeyError: 'weights';",
        }
    )
    assert repository.get("good").spec.version == 1
    await repository.close()


@pytest.mark.parametrize(
    "roots, options, error_text",
    [
        (["nowhere"], {}, "repository path is not a valid directory: 'nowhere'"),
        (["."], {"startup_models": ("*", "a")}, "Wildcard model name '*' must be the ONLY startup model"),
    ],
)
def test_a_start_that_is_refused(roots: list[str], options: dict[str, Any], error_text: str) -> None:
    """A root that is not a directory is refused, and a wildcard beside other names."""
    repository = Repository(roots, FakeLoader(), mode=Mode.EXPLICIT, **options)
    with pytest.raises(EngineError) as caught:
        asyncio.run(repository.start())
    assert error_text in caught.value.message


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.POLL])
def test_only_explicit_control_takes_requests(mode: Mode, tmp_path: Path) -> None:
    """The other modes refuse load requests with Triton's text, and only the poll mode polls."""

    async def test() -> None:
        repository = await started(tmp_path, FakeLoader(), mode)
        for operation in (repository.load("a"), repository.unload("a")):
            with pytest.raises(EngineError, match="explicit model load / unload is not allowed if polling") as caught:
                await operation
            assert caught.value.code is ErrorCode.UNAVAILABLE
        if mode is Mode.NONE:
            with pytest.raises(EngineError, match="polling is disabled"):
                await repository.poll()
        await repository.close()

    asyncio.run(test())


@run
async def test_versions_are_requested_by_text(root: Path, loader: FakeLoader) -> None:
    """A version's text is parsed as Triton parses it."""
    write_model(root, "m", "version_policy { all { } }" + PYTHON, ("1", "2", "10"))
    repository = await started(root, loader, startup_models=["m"])
    for text, version in (("", 10), ("1", 1), ("02", 2), ("2x", 2)):
        assert repository.get("m", text).spec.version == version
    for text, error_text in (
        ("abc", "failed to get model version from specified version string 'abc' (details: stol), "),
        ("9" * 30, "(details: stol), version should be an integral value > 0"),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
    ):
        with pytest.raises(EngineError) as caught:
            repository.get("m", text)
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert error_text in caught.value.message
    assert repository.ready_versions("m") == [1, 2, 10]
    assert [model.spec.version for model in repository.ready_models()] == [1, 2, 10]
    await repository.close()


@run
async def test_a_specification(root: Path, loader: FakeLoader) -> None:
    """A loader gets one version: its directories, its configuration with instance groups, and its labels."""
    config = PYTHON.replace('name: "y"', 'name: "y", label_filename: "labels.txt"')
    (write_model(root, "m", config) / "labels.txt").write_text("cat\ndog\n")
    repository = await started(root, loader, startup_models=["m"], gpus=(0, 1))
    spec = repository.get("m").spec
    assert (spec.name, spec.version) == ("m", 1)
    assert (spec.directory, spec.version_directory) == (root / "m", root / "m" / "1")
    assert list(spec.config.instance_group[0].gpus) == [0, 1]
    assert spec.labels == {"y": ("cat", "dog")}
    await repository.close()


@run
async def test_an_ensemble_takes_what_its_models_add(root: Path, loader: FakeLoader) -> None:
    """An ensemble has its models' labels, and is decoupled if one of its models is."""
    config = PYTHON.replace('name: "y"', 'name: "y", label_filename: "labels.txt"')
    decoupled = config + "model_transaction_policy { decoupled: true }"
    (write_model(root, "m", decoupled) / "labels.txt").write_text("cat\ndog\n")
    write_model(root, "e", ensemble("m"))
    repository = await started(root, loader, startup_models=["e"])
    spec = repository.get("e").spec
    assert spec.labels == {"y": ("cat", "dog")}
    assert spec.config.model_transaction_policy.decoupled
    assert loader.take() == [("load", "m", 1), ("load", "e", 1)]
    await repository.close()


@run
async def test_the_old_version_serves_until_the_new_one_is_ready(root: Path, loader: FakeLoader) -> None:
    """The old version serves until the new one is ready, and is unloaded when it is replaced."""
    directory = write_model(root, "m")
    repository = await started(root, loader, startup_models=["m"])
    old = repository.get("m")
    touch(directory / "1" / "model.py")
    loader.gates["m"] = asyncio.Event()
    loader.unload_gates["m"] = asyncio.Event()
    reload = asyncio.create_task(repository.load("m"))
    await until(lambda: loader.num_loading)
    assert repository.get("m") is old
    assert brief(repository.index()) == ["m 1 READY"]
    loader.gates["m"].set()
    await reload
    new = repository.get("m")
    assert new is not old
    assert loader.alive == {old, new}  # the load's reply does not wait until the old version is gone
    assert brief(repository.index()) == ["m 1 READY"]
    loader.unload_gates["m"].set()
    await until(lambda: loader.alive == {new})
    await repository.close()


@run
async def test_only_changed_models_are_reloaded(root: Path, loader: FakeLoader) -> None:
    """An unchanged model is not reloaded. A changed version reloads that version, and a changed configuration reloads
    all versions, unless only the policy has changed."""
    every = "version_policy { all { } }" + PYTHON
    directory = write_model(root, "m", every, ("1", "2"))
    repository = await started(root, loader, startup_models=["m"])
    loader.take()
    await repository.load("m")
    assert loader.take() == []
    touch(directory / "2" / "model.py")
    await repository.load("m")
    await repository._lifecycle.wait_for_unloads()
    assert loader.take() == [("load", "m", 2), ("unload", "m", 2)]
    (directory / "config.pbtxt").write_text("version_policy { latest { num_versions: 1 } }" + PYTHON)
    await repository.load("m")
    await repository._lifecycle.wait_for_unloads()
    assert loader.take() == [("unload", "m", 1)]
    (directory / "config.pbtxt").write_text("max_batch_size: 4 " + every)
    await repository.load("m")
    await repository._lifecycle.wait_for_unloads()
    assert loader.take() == [("load", "m", 1), ("load", "m", 2), ("unload", "m", 2)]
    await repository.close()


@run
async def test_loads_run_side_by_side_up_to_a_limit(root: Path, loader: FakeLoader) -> None:
    """Different models load concurrently, up to the limit."""
    for number in range(6):
        write_model(root, f"m{number}")
        loader.gates[f"m{number}"] = asyncio.Event()
    repository = await started(root, loader, max_concurrent_loads=3)
    loads = [asyncio.create_task(repository.load(f"m{number}")) for number in range(6)]
    await until(lambda: loader.num_loading == 3)
    for gate in loader.gates.values():
        gate.set()
    await asyncio.gather(*loads)
    assert loader.most_loading == 3
    assert len(repository.ready_models()) == 6
    await repository.close()


@run
async def test_one_model_is_changed_by_one_at_a_time(root: Path, loader: FakeLoader) -> None:
    """An unload waits for the load before it; a load of another model does not."""
    for name in ("a", "b"):
        write_model(root, name)
    loader.gates["a"] = asyncio.Event()
    repository = await started(root, loader)
    load = asyncio.create_task(repository.load("a"))
    await until(lambda: loader.num_loading)
    unload = asyncio.create_task(repository.unload("a"))
    await repository.load("b")
    assert not unload.done()
    loader.gates["a"].set()
    await asyncio.gather(load, unload)
    await repository._lifecycle.wait_for_unloads()
    assert brief(repository.index()) == ["a 1 UNAVAILABLE unloaded", "b 1 READY"]
    await repository.close()


@run
async def test_a_caller_that_goes_away_leaves_a_load_to_its_end(root: Path, loader: FakeLoader) -> None:
    """The load of a cancelled caller continues to its end."""
    write_model(root, "m")
    loader.gates["m"] = asyncio.Event()
    repository = await started(root, loader)
    load = asyncio.create_task(repository.load("m"))
    await until(lambda: loader.num_loading)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    loader.gates["m"].set()
    await repository.load("m")
    assert len(loader.loaded) == 1
    assert brief(repository.index()) == ["m 1 READY"]
    await repository.close()


@run
async def test_a_model_can_be_loaded_while_its_last_life_ends(root: Path, loader: FakeLoader) -> None:
    """An unload that waits for requests in flight does not block a new load."""
    write_model(root, "m")
    loader.unload_gates["m"] = asyncio.Event()
    repository = await started(root, loader, startup_models=["m"])
    await repository.unload("m")
    assert brief(repository.index()) == ["m 1 UNLOADING"]
    assert not repository.is_ready
    await repository.load("m")
    assert brief(repository.index()) == ["m 1 READY"]
    loader.unload_gates["m"].set()
    await repository._lifecycle.wait_for_unloads()
    assert brief(repository.index()) == ["m 1 READY"]
    assert len(loader.alive) == 1
    await repository.close()


@run
async def test_an_ensemble_ends_before_its_models(root: Path, loader: FakeLoader) -> None:
    """All of them stop serving at once. The models are unloaded after the ensembles that use them."""
    write_model(root, "m")
    write_model(root, "e", ensemble("m"))
    write_model(root, "f", ensemble("e"))
    loader.unload_gates |= {"e": asyncio.Event(), "f": asyncio.Event()}
    repository = await started(root, loader, startup_models=["f"])
    loader.take()
    await repository.unload("m")
    assert brief(repository.index()) == ["e 1 UNLOADING", "f 1 UNLOADING", "m 1 UNLOADING"]
    loader.unload_gates["f"].set()
    await until(lambda: loader.events)
    assert brief(repository.index()) == ["e 1 UNLOADING", "f 1 UNAVAILABLE unloaded", "m 1 UNLOADING"]
    loader.unload_gates["e"].set()
    await repository._lifecycle.wait_for_unloads()
    assert loader.take() == [("unload", "f", 1), ("unload", "e", 1), ("unload", "m", 1)]
    await repository.close()


@run
async def test_an_end_does_not_wait_for_loads(root: Path, loader: FakeLoader) -> None:
    """At close, loads are cancelled, serving models are unloaded, and changes are rejected."""
    for name in ("a", "b"):
        write_model(root, name)
    loader.gates["b"] = asyncio.Event()
    repository = await started(root, loader, startup_models=["a"])
    load = asyncio.create_task(repository.load("b"))
    await until(lambda: loader.num_loading)
    await repository.close()
    assert not loader.alive
    for operation in (load, repository.load("a")):
        with pytest.raises(EngineError, match="Server exiting") as caught:
            await operation
        assert caught.value.code is ErrorCode.UNAVAILABLE
    assert brief(repository.index()) == [
        "a 1 UNAVAILABLE unloaded",
        "b 1 UNAVAILABLE Unavailable: Server exiting",
    ]


@run
async def test_what_a_model_completes_is_checked(root: Path, loader: FakeLoader) -> None:
    """A configuration that is still invalid once the model is loaded fails the load, and the model is unloaded."""
    write_model(root, "m", 'backend: "python" input [ { name: "x" } ]')
    repository = await started(root, loader)
    with pytest.raises(EngineError, match="Invalid argument: model input 'x' must specify 'data_type' for m"):
        await repository.load("m")
    assert not loader.alive
    await repository.close()


@run
async def test_without_completion_configurations_must_be_complete(root: Path, loader: FakeLoader) -> None:
    """A missing or incomplete configuration fails."""
    write_model(root, "bare", None)
    write_model(root, "part", 'backend: "python" input [ { name: "x" } ]')
    repository = await started(root, loader, auto_complete=False, startup_models=["*"])
    assert repository.failures == {
        "bare": f"{root}/bare/config.pbtxt: No such file or directory",
        "part": f"{root}/part/config.pbtxt:1: model input 'x' must specify 'data_type' for part",
    }
    await repository.close()


@run
async def test_a_name_does_not_lead_out_of_the_repository(root: Path, loader: FakeLoader) -> None:
    """Names of models and of files in a request that lead out of the repository are refused."""
    (root / "models").mkdir()
    write_model(root, "secret")
    repository = await started(root / "models", loader)
    for name in ("../secret", "..", ".", "", "a/../../secret", "/etc", "a\0b"):
        with pytest.raises(EngineError, match="failed to poll from model repository"):
            await repository.load(name)
    for path in ("file:../x", "file:/etc/x", "file:1/../../x", "file:"):
        with pytest.raises(EngineError, match="failed to poll from model repository"):
            await repository.load("m", '{"backend": "python"}', {path: b"x"})
    assert not loader.loaded
    assert repository.failures == {}  # unknown names from requests are not stored
    await repository.close()


@run
async def test_carried_files_go_with_the_model(root: Path, loader: FakeLoader) -> None:
    """Files of a request are in a separate directory until the model is unloaded. A failed reload keeps them."""
    repository = await started(root, loader)
    await repository.load("m", '{"backend": "python"}', {"file:1/model.py": b"x", "file:data.txt": b"y"})
    directory = repository.get("m").spec.directory
    assert (directory / "1" / "model.py").read_bytes() == b"x"
    loader.broken["m"] = internal("no")
    with pytest.raises(EngineError):
        await repository.load("m", '{"backend": "python"}', {"file:1/model.py": b"z"})
    assert (directory / "data.txt").read_bytes() == b"y"
    await repository.unload("m")
    await until(lambda: not directory.exists())
    await repository.close()


@run
async def test_names_that_no_file_system_takes(root: Path, loader: FakeLoader) -> None:
    """Names that a file system cannot have are unknown models."""
    repository = await started(root, loader)
    for name in ("x" * 300, "a\0b", "..", "a/b"):
        with pytest.raises(EngineError) as refused:
            await repository.load(name)
        assert refused.value.message == f"failed to load '{name}', failed to poll from model repository"
    assert repository.index() == []
    await repository.close()
