"""Where models, configurations and labels lie."""

from pathlib import Path

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.repository.config import read
from engines.repository.layout import check_roots, config_path, model_directories, read_labels
from tests.engines.repository.fakes import write_model


def test_models_of_several_roots(tmp_path: Path) -> None:
    """By name; a model that is in two roots has two directories. Files and hidden directories are no models."""
    for root, name in (("a", "one"), ("a", "two"), ("b", "two"), ("b", "three"), ("b", ".git")):
        write_model(tmp_path / root, name)
    (tmp_path / "a" / "notes.txt").touch()
    roots = [tmp_path / "a", tmp_path / "b"]
    assert model_directories(roots) == {
        "one": [roots[0] / "one"],
        "three": [roots[1] / "three"],
        "two": [roots[0] / "two", roots[1] / "two"],
    }


def test_a_root_that_is_no_directory(tmp_path: Path) -> None:
    """It is refused, and named."""
    with pytest.raises(EngineError, match=r"repository path is not a valid directory: '.*nowhere'") as caught:
        check_roots([tmp_path, tmp_path / "nowhere"])
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_a_configuration_that_the_host_chooses(tmp_path: Path) -> None:
    """configs/NAME.pbtxt counts where it is there, else config.pbtxt."""
    directory = write_model(tmp_path, "m")
    (directory / "configs").mkdir()
    (directory / "configs" / "h100.pbtxt").touch()
    assert config_path(directory) == directory / "config.pbtxt"
    assert config_path(directory, "h100") == directory / "configs" / "h100.pbtxt"
    assert config_path(directory, "a100") == directory / "config.pbtxt"


@pytest.mark.parametrize(
    "text, labels",
    [("cat\ndog\n", ("cat", "dog")), ("cat\ndog", ("cat", "dog")), ("cat\n\ndog\n", ("cat", "", "dog")), ("", ())],
)
def test_labels(text: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    """A line is a label; only outputs that name a file have any."""
    (tmp_path / "labels.txt").write_text(text)
    config = read('output [ { name: "y", label_filename: "labels.txt" }, { name: "z" } ]')
    assert read_labels(config, tmp_path) == {"y": labels}


def test_labels_that_are_missing(tmp_path: Path) -> None:
    """The error is Triton's."""
    with pytest.raises(EngineError) as caught:
        read_labels(read('output [ { name: "y", label_filename: "no.txt" } ]'), tmp_path)
    assert caught.value.code is ErrorCode.INTERNAL
    said = f"failed to open text file for read {tmp_path}/no.txt: No such file or directory"
    assert caught.value.message == said
