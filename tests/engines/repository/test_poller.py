"""Following the files of a repository."""

import shutil
import uuid
from pathlib import Path

import pytest

from engines.core.errors import EngineError, internal
from engines.repository import Mode, Repository
from tests.engines.repository.fakes import PYTHON, FakeLoader, brief, ensemble, write_model
from tests.engines.repository.test_repository import run, started, touch, until


@run
async def test_a_poll_follows_the_files(root: Path, loader: FakeLoader) -> None:
    """New models and versions are loaded, changed ones reloaded, removed ones unloaded, others not touched."""
    write_model(root, "a")
    write_model(root, "b")
    repository = await started(root, loader, Mode.POLL)
    loader.take()
    await repository.poll()
    assert loader.take() == []
    write_model(root, "c")
    touch(root / "a" / "1" / "model.py")
    write_model(root, "b", versions=("2",))
    await repository.poll()
    await repository._lifecycle.wait_for_unloads()
    loads = {("load", "a", 1), ("load", "b", 2), ("load", "c", 1)}
    assert set(loader.take()) == loads | {("unload", "a", 1), ("unload", "b", 1)}
    shutil.rmtree(root / "a")
    await repository.poll()
    await repository._lifecycle.wait_for_unloads()
    assert loader.take() == [("unload", "a", 1)]
    assert brief(repository.index(ready_only=True)) == ["b 2 READY", "c 1 READY"]
    await repository.close()


@run
async def test_polls_come_by_themselves(root: Path, loader: FakeLoader) -> None:
    """The repository polls at its interval."""
    repository = await started(root, loader, Mode.POLL, poll_seconds=0.005)
    write_model(root, "late")
    await until(lambda: brief(repository.index()) == ["late 1 READY"])
    await repository.close()


@run
async def test_a_configuration_that_becomes_wrong(root: Path, loader: FakeLoader) -> None:
    """The model continues to serve, with a failure until the configuration is valid again."""
    directory = write_model(root, "m")
    repository = await started(root, loader, Mode.POLL)
    (directory / "config.pbtxt").write_text("bogus: 3")
    await repository.poll()
    assert brief(repository.index()) == ["m 1 READY"]
    assert "has no field 'bogus'" in repository.failures["m"]
    (directory / "config.pbtxt").write_text("max_batch_size: 2 " + PYTHON)
    await repository.poll()
    assert repository.failures == {}
    assert repository.get("m").config.max_batch_size == 2
    await repository.close()


@run
async def test_a_model_that_appears_twice_is_unloaded(root: Path, loader: FakeLoader) -> None:
    """The model is loaded again when only one directory remains."""
    write_model(root / "one", "m")
    (root / "two").mkdir()
    repository = Repository([root / "one", root / "two"], loader, mode=Mode.POLL)
    await repository.start()
    write_model(root / "two", "m")
    await repository.poll()
    assert brief(repository.index()) == ["m UNAVAILABLE model appears in two or more repositories"]
    shutil.rmtree(root / "one" / "m")
    await repository.poll()
    assert repository.get("m").spec.directory == root / "two" / "m"
    await repository.close()


@run
async def test_a_load_that_failed_is_tried_again(root: Path, loader: FakeLoader) -> None:
    """Each poll tries a failed load again; ensembles load with their models."""
    write_model(root, "m")
    write_model(root, "e", ensemble("m"))
    loader.broken["m"] = internal("no memory")
    repository = await started(root, loader, Mode.POLL)
    assert brief(repository.index()) == ["e", "m 1 UNAVAILABLE Internal: no memory"]
    loader.broken.clear()
    await repository.poll()
    assert brief(repository.index()) == ["e 1 READY", "m 1 READY"]
    assert repository.failures == {}
    await repository.close()


@run
async def test_a_root_that_goes_away(root: Path, loader: FakeLoader) -> None:
    """Models continue to serve, and polls continue."""
    write_model(root / "models", "m")
    repository = await started(root / "models", loader, Mode.POLL, poll_seconds=0.005)
    (root / "models").rename(root / "elsewhere")
    with pytest.raises(EngineError, match="failed to poll model repository"):
        await repository.poll()
    assert repository.get("m").spec.name == "m"
    (root / "elsewhere").rename(root / "models")
    write_model(root / "models", "n")
    await until(lambda: len(repository.ready_models()) == 2)
    await repository.close()


@run
async def test_a_remote_root_is_followed(root: Path, loader: FakeLoader) -> None:
    """Changes in the store change the served models."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    place = f"/{uuid.uuid4().hex}"
    files.pipe(f"{place}/m/1/model.py", b"one")
    repository = Repository([f"memory:/{place}"], loader, mode=Mode.POLL, cache_directory=root)
    assert await repository.start() == {}
    assert (repository.get("m").spec.version_directory / "model.py").read_bytes() == b"one"
    files.pipe(f"{place}/m/2/model.py", b"two")
    await repository.poll()
    assert repository.get("m").spec.version == 2
    files.rm(f"{place}/m", recursive=True)
    await repository.poll()
    assert repository.ready_models() == []
    await repository.close()


@run
async def test_a_remote_model_is_fetched_when_it_is_loaded(root: Path, loader: FakeLoader) -> None:
    """In explicit mode only the names are fetched before a model is loaded."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    place = f"/{uuid.uuid4().hex}"
    for name in ("a", "b"):
        files.pipe(f"{place}/{name}/1/model.py", b"one")
    repository = Repository([f"memory:/{place}"], loader, mode=Mode.EXPLICIT, cache_directory=root)
    await repository.start()
    assert brief(repository.index()) == ["a", "b"]
    assert not list(root.rglob("model.py"))
    await repository.load("b")
    assert [path.parts[-3] for path in root.rglob("model.py")] == ["b"]
    assert brief(repository.index()) == ["a", "b 1 READY"]
    await repository.close()
