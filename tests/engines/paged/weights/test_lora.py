"""LoRA adapters against PEFT, alone and several in one batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engines.core.errors import EngineError
from engines.paged.base.transfer import Staging
from engines.paged.model.adapters import Adapter, adapter_rows
from engines.paged.ops.reference import Ops
from engines.paged.weights.loader import LoadedModel, load_model
from engines.paged.weights.lora import load_adapter
from tests.engines.paged.support.paging import Pages
from tests.engines.paged.support.tiny_models import tiny_model, transformers_model

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # PEFT requires it
LENGTHS = {"a": 9, "b": 31, "c": 20, "d": 14}
TOKENS = {name: [(length * at * at + 3) % 320 for at in range(length)] for name, length in LENGTHS.items()}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


def peft_model(folder: Path, seed: int, **options: Any) -> Any:
    """The folder's model with a random adapter; PEFT's own B would be 0."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "init_lora_weights": False, **options})
    return peft.get_peft_model(transformers_model(folder), config).eval()


@cache
def loaded_model(folder: Path) -> LoadedModel:
    return load_model(folder, Ops("cpu"))


def adapter_of(model: Any, base: LoadedModel, target: Path, name: str) -> Adapter:
    model.save_pretrained(target)
    return load_adapter(name, target, base.config, torch.device("cpu"))


def assert_close(seen: Tensor, expected: Tensor) -> None:
    assert float((seen - expected).abs().max()) < 2e-5 * float(expected.abs().max())


CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"target_modules": ["q_proj", "v_proj"]}),
    ("llama", {"target_modules": ATTENTION + MLP}),
    ("llama", {"target_modules": "all-linear", "use_rslora": True, "r": 9}),
    ("qwen2", {"target_modules": ["k_proj", "up_proj"]}),
    ("qwen3", {"target_modules": MLP, "layers_to_transform": [0, 2]}),
    ("mistral", {"target_modules": r".*\.1\.self_attn\.(q|o)_proj"}),
    (
        "llama",
        {"target_modules": ATTENTION, "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 7}}
        | {"alpha_pattern": {"q_proj": 20, "layers.1.self_attn.v_proj": 3}},
    ),
    ("mixtral", {"target_modules": ATTENTION}),
    ("qwen2_moe", {"target_modules": [*ATTENTION, *MLP]}),  # in PEFT: those of the shared expert and of the dense layer
]


@torch.inference_mode()
@pytest.mark.parametrize("family, options", CASES)
def test_logits_equal_those_of_peft(family: str, options: dict[str, Any], tmp_path: Path):
    """An adapter changes the logits as in PEFT, applied beside its base and merged into it."""
    folder = tiny_model(family)
    base = loaded_model(folder)
    model = peft_model(folder, 1, **options)
    adapter = adapter_of(model, base, tmp_path / "adapter", "one")
    tokens = TOKENS["b"]
    rows = adapter_rows([adapter], [len(tokens)], Staging("cpu"))
    seen = Pages(base.decoder).step({"b": tokens}, rows)["b"]
    assert_close(seen, model(torch.tensor([tokens])).logits[0])
    assert_close(seen, model.merge_and_unload()(torch.tensor([tokens])).logits[0])
    plain = Pages(base.decoder).step({"b": tokens})["b"]
    assert float((plain - seen).abs().max()) > 0.01 * float(plain.abs().max())


@torch.inference_mode()
def test_several_adapters_in_one_batch(tmp_path: Path):
    """Rows with one adapter, with another and with none share a batch; each has the logits that it has alone."""
    folder = tiny_model("llama")
    base = loaded_model(folder)
    first, second = (
        peft_model(folder, seed, target_modules=targets) for seed, targets in ((1, ATTENTION + MLP), (2, ["v_proj"]))
    )
    one, two = (adapter_of(model, base, tmp_path / name, name) for name, model in (("one", first), ("two", second)))
    assert one.fingerprint != two.fingerprint
    by_name = {"a": one, "b": None, "c": two, "d": one}
    plain = transformers_model(folder)
    models = {"a": first, "b": plain, "c": second, "d": first}
    expected = {name: model(torch.tensor([TOKENS[name]])).logits[0] for name, model in models.items()}

    pages = Pages(base.decoder)
    done = dict.fromkeys(TOKENS, 0)
    for step in ({"a": 9, "b": 12}, {"b": 1, "c": 20, "d": 5}, {"b": 5, "d": 1}, {"b": 13, "d": 8}):
        order = sorted(step, key=lambda name: step[name] > 1)
        rows = adapter_rows([by_name[name] for name in order], [step[name] for name in order], Staging("cpu"))
        given = {name: TOKENS[name][done[name] : done[name] + count] for name, count in step.items()}
        for name, logits in pages.step(given, rows).items():
            assert_close(logits, expected[name][done[name] : done[name] + step[name]])
            done[name] += step[name]
    assert all(done[name] == len(tokens) for name, tokens in TOKENS.items())


@torch.inference_mode()
def test_an_adapter_beside_a_quantized_base(tmp_path: Path):
    """Adapters are not quantized with their base: they change a quantized base's products by the same amount."""
    folder = tiny_model("llama")
    base = load_model(folder, Ops("cpu"), quantize="int8", quantize_group=32)
    model = peft_model(folder, 1, target_modules=ATTENTION + MLP)
    adapter = adapter_of(model, base, tmp_path / "adapter", "one")
    tokens = TOKENS["b"]
    seen = Pages(base.decoder).step({"b": tokens}, adapter_rows([adapter], [31], Staging("cpu")))["b"]
    expected = model(torch.tensor([tokens])).logits[0]
    assert float((seen - expected).norm() / expected.norm()) < 0.05


def test_rows():
    """Without an adapter the result is None, with one adapter there is no index, otherwise each adapter has its rows'
    indices in the batch."""
    one, two = Adapter("one", {}, "", 0), Adapter("two", {}, "", 0)
    staging = Staging("cpu")
    assert adapter_rows([None, None], [1, 5], staging) is None
    whole = adapter_rows([one, one], [1, 5], staging)
    assert whole is not None
    assert whole.parts == ((one, None),)
    mixed = adapter_rows([one, None, two, one], [1, 1, 3, 2], staging)
    assert mixed is not None
    assert [(adapter.name, None if rows is None else rows.tolist()) for adapter, rows in mixed.parts] == [
        ("one", [0, 5, 6]),
        ("two", [2, 3, 4]),
    ]


@cache
def saved_adapter(target: Path) -> Path:
    peft_model(tiny_model("llama"), 1, target_modules=ATTENTION + MLP).save_pretrained(target)
    return target


def config_with(**fields: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return edit


def tensors_with(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return edit


PREFIX = "base_model.model.model.layers.1.self_attn.q_proj"
WRONG: list[tuple[Callable[[Path], Any], str]] = [
    (config_with(use_dora=True), "adapter_config.json: use_dora: is not supported; merge the adapter into its base"),
    (config_with(bias="all"), "adapter_config.json: bias: 'all' is not supported; none is"),
    (config_with(peft_type="IA3"), "adapter_config.json: peft_type: 'IA3' is not supported; LORA is"),
    (config_with(modules_to_save=["lm_head"]), r"modules_to_save: ['lm_head'] is not supported"),
    (config_with(lora_alpha="big"), "lora_alpha: a number above 0 is expected, not 'big'"),
    (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json is not there"),
    (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is not there"),
    (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 50), "adapter_model.safetensors: Error"),
    (tensors_with(lambda t: t.clear()), "adapter_model.safetensors: no tensors in it"),
    (tensors_with(lambda t: t.pop(f"{PREFIX}.lora_B.weight")), "layers.1.self_attn.q_proj: lora_B is missing"),
    (
        tensors_with(lambda t: t.update({f"{PREFIX}.lora_A.weight": torch.ones(4, 32)})),
        "layers.1.self_attn.q_proj: lora_A is of shape [4, 32]; by the base it should be [4, 64]",
    ),
    (
        tensors_with(lambda t: t.update({f"{PREFIX}.lora_B.weight": torch.ones(64, 5)})),
        "layers.1.self_attn.q_proj: lora_B is of shape [64, 5]; by the base it should be [64, 4]",
    ),
    (
        tensors_with(lambda t: t.update({f"{PREFIX}.lora_B.weight": torch.full((64, 4), float("nan"))})),
        "layers.1.self_attn.q_proj: there is NaN or infinity in lora_B",
    ),
    (
        tensors_with(lambda t: t.update({f"{PREFIX}.lora_magnitude_vector": torch.ones(64)})),
        "lora_magnitude_vector is neither a lora_A nor a lora_B of a linear module: not supported",
    ),
    (
        tensors_with(lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)})),
        "lm_head: adapters of this module are not supported; of layers' q_proj, k_proj, v_proj, o_proj,",
    ),
    (
        tensors_with(lambda t: t.update({f"{PREFIX.replace('q_proj', 'z')}.lora_A.weight": torch.ones(4, 64)})),
        "self_attn.z: adapters of this module are not supported; of this layer's self_attn.q_proj,",
    ),
    (
        tensors_with(lambda t: t.update({f"{PREFIX.replace('.1.', '.3.')}.lora_A.weight": torch.ones(4, 64)})),
        "layers.3.self_attn.q_proj: the base has 3 layers",
    ),
]


@pytest.mark.parametrize("damage, problem", WRONG)
def test_wrong_adapters(damage: Callable[[Path], Any], problem: str, tmp_path: Path, tmp_path_factory: Any):
    """An adapter that is not plain LoRA, or does not match the base, fails with the file and the field or module."""
    source = saved_adapter(tmp_path_factory.getbasetemp() / "plain-adapter")
    folder = shutil.copytree(source, tmp_path / "adapter")
    damage(folder)
    with pytest.raises(EngineError) as caught:
        load_adapter("wrong", folder, loaded_model(tiny_model("llama")).config, torch.device("cpu"))
    assert problem in caught.value.message
    assert str(folder) in caught.value.message


def test_experts_have_no_adapters(tmp_path: Path):
    """An adapter of experts is refused, since experts are computed together."""
    folder = shutil.copytree(saved_adapter(tmp_path / "plain"), tmp_path / "adapter")
    module = "base_model.model.model.layers.0.mlp.experts.2.up_proj"
    tensors = {f"{module}.lora_A.weight": torch.ones(4, 64), f"{module}.lora_B.weight": torch.ones(64, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(EngineError, match=r"mlp\.experts\.2\.up_proj: adapters of this module are not supported"):
        load_adapter("experts", folder, loaded_model(tiny_model("qwen3_moe")).config, torch.device("cpu"))
