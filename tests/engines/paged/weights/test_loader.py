"""Weight folders: sharded, 16-bit, quantized at load; and the errors for damaged ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engines.core.errors import EngineError
from engines.paged.ops.interface import Quantized
from engines.paged.ops.packing import dequantize
from engines.paged.ops.reference import Ops
from engines.paged.weights.files import TensorFiles
from engines.paged.weights.loader import LoadedModel, load_model
from engines.paged.weights.quantization import quantize as quantize_matrix
from tests.engines.paged.support.paging import Pages
from tests.engines.paged.support.tiny_models import FAMILIES, tiny_model, transformers_model

TOKENS = [(7 * at * at + 3) % 320 for at in range(40)]
Tensors = dict[str, Tensor]


def logits_of(loaded: LoadedModel) -> Tensor:
    with torch.inference_mode():
        return Pages(loaded.decoder).step({"a": TOKENS})["a"]


def edited(folder: Path, target: Path, edit: Callable[[Tensors], None]) -> Path:
    """A copy of the folder with its tensors changed."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def change_config(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def sharded(folder: Path, target: Path) -> Path:
    """The same folder in three files with an index."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("model.safetensors"))
    tensors = load_file(folder / "model.safetensors")
    files = {name: f"model-{at % 3 + 1:05}-of-00003.safetensors" for at, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in files if files[name] == file}, target / file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return target


def test_shards(tmp_path: Path):
    """A sharded folder has the logits of a single file; their fingerprints differ."""
    folder = tiny_model("qwen3")
    whole, parts = (load_model(each, Ops("cpu")) for each in (folder, sharded(folder, tmp_path / "shards")))
    assert torch.equal(logits_of(parts), logits_of(whole))
    assert parts.weight_bytes == whole.weight_bytes == TensorFiles(folder).num_bytes - header_bytes(folder)


def header_bytes(folder: Path) -> int:
    content = (folder / "model.safetensors").read_bytes()
    return 8 + int.from_bytes(content[:8], "little")


def test_a_lonely_file(tmp_path: Path):
    """Without an index or a model.safetensors all safetensors files are read, except for adapters'."""
    folder = tiny_model("llama")
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other/model.safetensors").rename(tmp_path / "other/weights.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "other/adapter_model.safetensors")
    loaded = load_model(tmp_path / "other", Ops("cpu"))
    assert torch.equal(logits_of(loaded), logits_of(load_model(folder, Ops("cpu"))))


def test_progress():
    """The callback gets the number of bytes after every tensor, up to nearly the files' size."""
    calls: list[tuple[int, int]] = []
    load_model(tiny_model("llama"), Ops("cpu"), progress=lambda *call: calls.append(call))
    files = TensorFiles(tiny_model("llama"))
    assert len(calls) == len(list(files))
    assert calls == sorted(calls)
    assert {total for _, total in calls} == {files.num_bytes}
    assert 0.97 < calls[-1][0] / calls[-1][1] <= 1


def test_nothing_of_the_file_is_kept(tmp_path: Path):
    """A folder may be removed once its model is loaded."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    loaded = load_model(folder, Ops("cpu"))
    before = logits_of(loaded)
    with (folder / "model.safetensors").open("r+b") as file:  # in place: the pages of a mapped file would change
        file.write(b"\xff" * (folder / "model.safetensors").stat().st_size)
    assert torch.equal(logits_of(loaded), before)


def fused(tensors: Tensors) -> None:
    """One tensor for all experts' gates and ups, as transformers 5 stores them in memory."""
    for layer in range(3):
        block = f"model.layers.{layer}.block_sparse_moe"
        halves = [
            torch.cat([tensors.pop(f"{block}.experts.{at}.{name}.weight") for name in ("w1", "w3")]) for at in range(4)
        ]
        downs = [tensors.pop(f"{block}.experts.{at}.w2.weight") for at in range(4)]
        mlp = f"model.layers.{layer}.mlp"
        tensors[f"{mlp}.experts.gate_up_proj"] = torch.stack(halves)
        tensors[f"{mlp}.experts.down_proj"] = torch.stack(downs)
        tensors[f"{mlp}.gate.weight"] = tensors.pop(f"{block}.gate.weight")


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_fused_experts(quantize: str | None, tmp_path: Path):
    """Mixtral's experts may be stored separately or stacked."""
    folder = tiny_model("mixtral")
    stacked = edited(folder, tmp_path / "stacked", fused)
    one, other = (load_model(each, Ops("cpu"), quantize=quantize) for each in (folder, stacked))
    assert torch.equal(logits_of(one), logits_of(other))


def test_no_prefix(tmp_path: Path):
    """A model saved without its head has tensors without the prefix `model.`; its embedding is its head."""
    folder = tiny_model("llama", tie_word_embeddings=True)

    def strip(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    stripped = edited(folder, tmp_path / "base", strip)
    assert torch.equal(*(logits_of(load_model(each, Ops("cpu"))) for each in (folder, stripped)))


def test_what_old_folders_carry_along(tmp_path: Path):
    """Rotation tables are ignored, layers after the last are reported; neither changes the logits."""
    folder = tiny_model("llama")

    def add(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["model.layers.3.mlp.up_proj.weight"] = torch.ones(8, 8)

    loaded = load_model(edited(folder, tmp_path / "old", add), Ops("cpu"))
    assert loaded.unused == ("model.layers.3.mlp.up_proj.weight",)
    assert torch.equal(logits_of(loaded), logits_of(load_model(folder, Ops("cpu"))))


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def set_at(name: str, value: float) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name].view(-1)[17] = value

    return edit


DAMAGED: list[tuple[Callable[[Tensors], Any], dict[str, Any], str]] = [
    (lambda t: t.pop(Q_PROJ), {}, f"{Q_PROJ} is in none of its 1 safetensors files"),
    (lambda t: t.pop("lm_head.weight"), {}, "lm_head.weight is in none of its 1 safetensors files"),
    (
        lambda t: t.update({Q_PROJ: t[Q_PROJ][:-1].clone()}),
        {},
        f"{Q_PROJ}: its shape is [63, 64]; by config.json it should be [64, 64]",
    ),
    (lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.int8)}), {}, f"{Q_PROJ}: its dtype I8 is not supported; F32, F16,"),
    (set_at(Q_PROJ, float("nan")), {}, f"{Q_PROJ}: there is NaN or infinity in it"),
    (set_at("model.norm.weight", float("-inf")), {}, "model.norm.weight: there is NaN or infinity in it"),
    (
        set_at("lm_head.weight", 1e6),
        {"dtype": "float16"},
        "lm_head.weight: numbers up to 1e+06 do not fit",
    ),
    (
        lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}),
        {},
        "model.layers.0.self_attn.q_norm.weight: by config.json a LlamaForCausalLM has no such tensor",
    ),
    (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.scales": torch.ones(64, 1)}),
        {},
        "model.layers.0.self_attn.q_proj.scales: it is quantized, but config.json has no quantization",
    ),
]


@pytest.mark.parametrize("edit, options, problem", DAMAGED)
def test_damaged_tensors(edit: Callable[[Tensors], None], options: dict[str, Any], problem: str, tmp_path: Path):
    """A tensor that is missing, unknown, not finite, or of another shape or dtype is named in the error."""
    folder = edited(tiny_model("llama"), tmp_path / "damaged", edit)
    with pytest.raises(EngineError) as caught:
        load_model(folder, Ops("cpu"), **options)
    assert problem in caught.value.message
    assert str(folder) in caught.value.message


def test_large_sums_are_no_damage(tmp_path: Path):
    """A tensor whose sum overflows in float16 is valid."""

    def enlarge(tensors: Tensors) -> None:
        tensors["lm_head.weight"].fill_(100.0)

    load_model(edited(tiny_model("llama"), tmp_path / "large", enlarge), Ops("cpu"), dtype="float16")


def remove_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def cut_short(folder: Path) -> None:
    path = folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def twice(folder: Path) -> None:
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / "model-00002-of-00003.safetensors")


def empty_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")


def only_pickles(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize("damage, problem", [
    (remove_shard, "index.json: model-00002-of-00003.safetensors of 3 files is not there: is the download complete?"),
    (cut_short, "model-00003-of-00003.safetensors: .*: is the download complete?"),
    (twice, "model-00002-of-00003.safetensors: .* is in model-00001-of-00003.safetensors too"),
    (empty_index, "index.json: no weight_map of tensors to files in it"),
    (only_pickles, "no safetensors files; pytorch_model.bin cannot be read"),
])  # fmt: skip
def test_damaged_folders(damage: Callable[[Path], None], problem: str, tmp_path: Path):
    """The error for an incomplete folder names the missing file."""
    folder = sharded(tiny_model("llama"), tmp_path / "folder")
    damage(folder)
    with pytest.raises(EngineError, match=problem):
        load_model(folder, Ops("cpu"))


@pytest.mark.parametrize("options, problem", [
    ({"quantize": "int3"}, "quantize: 'int3' is not supported; int8, int4 are"),
    ({"quantize": "int4", "quantize_group": 48}, "quantize_group: 48 is not supported; 32, 64, 128 are"),
    ({"dtype": "float64"}, "dtype: 'float64' is not supported; float32, float16, bfloat16 are"),
    ({"dtype": "int8"}, "dtype: 'int8' is not supported"),
])  # fmt: skip
def test_wrong_options(options: dict[str, Any], problem: str):
    """The error for an unknown scheme or dtype lists the known ones."""
    with pytest.raises(EngineError, match=problem):
        load_model(tiny_model("llama"), Ops("cpu"), **options)


def test_fingerprints(tmp_path: Path):
    """Weights, shape, dtype and scheme each change the fingerprint; end tokens and the folder's path do not."""
    folder = tiny_model("llama")
    copy = change_config(shutil.copytree(folder, tmp_path / "copy"), eos_token_id=5)
    other = edited(folder, tmp_path / "other", set_at(Q_PROJ, 0.0))
    theta = change_config(shutil.copytree(folder, tmp_path / "theta"), rope_parameters={"rope_theta": 1e5})

    def fingerprint(path: Path, **options: Any) -> str:
        return load_model(path, Ops("cpu"), **options).fingerprint

    first = fingerprint(folder)
    assert fingerprint(copy) == first
    others = {
        fingerprint(other),
        fingerprint(theta),
        fingerprint(folder, dtype="bfloat16"),
        fingerprint(folder, quantize="int8"),
        fingerprint(folder, quantize="int4"),
        fingerprint(folder, quantize="int4", quantize_group=32),
    }
    assert len(others | {first}) == 7


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantize, group, loss", [("int8", 64, 0.006), ("int4", 32, 0.09)])
def test_quantized_at_load(family: str, quantize: str, group: int, loss: float):
    """A model quantized at load has the logits of transformers with the same expanded matrices; the report gives the
    error by kind of module."""
    folder = tiny_model(family)
    taken: dict[int, Quantized] = {}

    class Recording(Ops):
        def prepare_linear(self, weight: Any, bias: Tensor | None = None) -> Any:
            taken[len(taken)] = weight
            return super().prepare_linear(weight, bias)

    loaded = load_model(folder, Recording("cpu"), quantize=quantize, quantize_group=group)
    assert isinstance(taken[0], Quantized)
    bits = 8 if quantize == "int8" else 4
    assert (taken[0].bits, taken[0].group_size) == (bits, group)
    assert all(0 < each.relative < loss for each in loaded.losses.values())
    attention = {f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(3) for part in "qkvo"}
    assert {*attention, "model.embed_tokens", "lm_head"} <= set(loaded.losses)
    assert not any(name.endswith(("mlp.gate", "moe.gate", "shared_expert_gate")) for name in loaded.losses)

    model = transformers_model(folder)
    replace_by_expanded(model, bits, group)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert float((logits_of(loaded) - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def replace_by_expanded(model: Any, bits: int, group: int) -> None:
    """Replace each matrix by its quantized and expanded form, except the routers' and those whose rows no group
    divides."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_router = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
            if parameter.ndim < 2 or is_router or parameter.shape[-1] % group:
                continue
            for matrix in parameter.view(-1, *parameter.shape[-2:]):
                matrix.copy_(dequantize(quantize_matrix(matrix, bits, group)[0]))


def test_rows_that_no_group_divides():
    """Matrices whose rows are no multiple of the group stay dense, and the report names them."""
    loaded = load_model(tiny_model("qwen2_moe"), Ops("cpu"), quantize="int4", quantize_group=64)
    assert "model.layers.0.mlp.shared_expert.down_proj" in loaded.left_dense  # rows of 96
    assert all("shared_expert.down_proj" in name for name in loaded.left_dense)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_quantization_is_mlx_own(bits: int, group: int):
    """Words, scales and biases equal those of mx.quantize, also for groups of one sign and of zeros."""
    mx = pytest.importorskip("mlx.core")
    torch.manual_seed(0)
    weight = torch.randn(24, 256)
    weight[1], weight[2], weight[3] = 0.0, weight[2].abs() + 1, -weight[3].abs()
    seen, loss = quantize_matrix(weight, bits, group)
    theirs = mx.quantize(mx.array(weight.numpy()), group, bits)
    packed, scales, biases = (torch.from_numpy(numpy.array(each)) for each in theirs)
    assert torch.equal(seen.packed, packed.view(torch.int32))
    assert torch.equal(seen.scales, scales)
    assert torch.equal(seen.biases, biases)
    expected = (dequantize(seen) - weight).norm() / weight.norm()
    assert loss.relative == pytest.approx(float(expected), rel=1e-4)
