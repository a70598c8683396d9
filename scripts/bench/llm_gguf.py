"""The model in llama.cpp's format: the same numbers, in a GGUF file."""

import tempfile
from pathlib import Path

import numpy as np

from bench.llm_model import BEGIN, END, Shape, Words, model_folder, tensors_of

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
# The types of matrices; vectors stay FP32, as llama.cpp requires.
TYPES = ("F32", "F16", "BF16")


def gguf_file(shape: Shape, dtype: str, kind: str, home: Path | None = None) -> Path:
    """The file beside the model's folder of this dtype, created if it is missing. `kind` is one of TYPES."""
    path = model_folder(shape, dtype, home).with_suffix(f".{kind}.gguf")
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as beside:
            made = Path(beside) / "model.gguf"
            _write(shape, kind, made)
            made.rename(path)
    return path


def _write(shape: Shape, kind: str, path: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

    words = Words(shape.vocabulary)
    writer = GGUFWriter(path, "llama")
    writer.add_name("bench")
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words.tokens)
    writer.add_token_types([TokenType.CONTROL if token in (BEGIN, END) else TokenType.NORMAL for token in words.tokens])
    writer.add_token_merges(words.merges)
    writer.add_bos_token_id(words.begin)
    writer.add_eos_token_id(words.end)
    writer.add_add_bos_token(False)
    written_as = GGMLQuantizationType[kind]
    for name, values in tensors_of(shape):
        values = _rotated(name, values, shape)
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(gguf_name(name), values)
        else:
            writer.add_tensor(gguf_name(name), quants.quantize(values, written_as), raw_dtype=written_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rotated(name: str, values: np.ndarray, shape: Shape) -> np.ndarray:
    """llama.cpp rotates neighbours where Hugging Face rotates halves: rows of queries and keys are reordered."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return values
    heads = shape.heads if "q_proj" in name else shape.kv_heads
    halves = values.reshape(heads, 2, shape.head_size // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def gguf_name(name: str) -> str:
    """The GGUF name of one of Hugging Face's tensors."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return NAMES[stem] + ".weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"
