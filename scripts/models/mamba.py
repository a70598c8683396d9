#!/usr/bin/env python3
"""A small Mamba language model in jax: trained on the demo's stories (or any other text), served a sequence at a time.

    python scripts/models/mamba.py REPOSITORY [--text FILE ...] [--steps 300]
    python scripts/models/mamba.py engines/samples/models --steps 1000      # as the one that is shipped

Entry: `mamba`. The first request of a sequence (START) brings the prompt's bytes (INT32), each further one the byte
that was chosen. What a sequence carries is a state of one size however long the text has become. It is kept in the
store of states that POINTSMAN_STATE_STORE names, so that any host goes on with the sequence, or else in the instance.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

HERE = Path(__file__).parent
# The entry's own file, as it is shipped.
MODEL = HERE.parents[1] / "engines" / "samples" / "models" / "mamba" / "1" / "model.py"
sys.path.insert(0, str(MODEL.parent))
import model  # noqa: E402

LAYERS, WIDTH, STATES, CONVOLUTION, RANK = 2, 96, 16, 4, 8
INSIDE = 2 * WIDTH
VOCABULARY = 256
NUM_DOCUMENTS = 5000  # of which a third are stories: 1.4 MB

CONFIG = """name: "mamba"
backend: "jax"
max_batch_size: 8
input [ { name: "tokens" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [
  { name: "logits" data_type: TYPE_FP32 dims: [ 256 ] },
  { name: "token" data_type: TYPE_INT32 dims: [ 1 ] }
]
sequence_batching {
  oldest { max_candidate_sequences: 64 max_queue_delay_microseconds: 500 }
  max_sequence_idle_microseconds: 60000000
  state [ {STATES} ]
}
parameters { key: "STATE_STORE" value { string_value: "env:POINTSMAN_STATE_STORE" } }
parameters { key: "PADDED_INPUTS" value { string_value: '{"tokens": -1}' } }
"""


def config() -> str:
    """The entry's configuration: each state starts as zeros."""
    dims = {"conv_state": (LAYERS, INSIDE, CONVOLUTION - 1), "ssm_state": (LAYERS, INSIDE, STATES)}
    states = [
        f"""{{
    input_name: "{name}" output_name: "{name}_out" data_type: TYPE_FP32 dims: {list(shape)}
    initial_state: {{ name: "zeros" data_type: TYPE_FP32 dims: {list(shape)} zero_data: true }}
  }}"""
        for name, shape in dims.items()
    ]
    return CONFIG.replace("{STATES}", ", ".join(states))


def initial(seed: int) -> dict[str, Any]:
    """Parameters as section 3.6 of the paper starts them: decays of 1 to N, steps between 0.001 and 0.1."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    steps = np.exp(random.uniform(np.log(1e-3), np.log(1e-1), (LAYERS, INSIDE)))
    return {
        "embedding": normal(VOCABULARY, WIDTH, scale=0.02),
        "norm": np.ones(WIDTH, np.float32),
        "blocks": {
            "norm": np.ones((LAYERS, WIDTH), np.float32),
            "in": normal(LAYERS, WIDTH, 2 * INSIDE, scale=WIDTH**-0.5),
            "conv": normal(LAYERS, INSIDE, CONVOLUTION, scale=0.3),
            "conv_bias": np.zeros((LAYERS, INSIDE), np.float32),
            "select": normal(LAYERS, INSIDE, RANK + 2 * STATES, scale=INSIDE**-0.5),
            "step": normal(LAYERS, RANK, INSIDE, scale=RANK**-0.5),
            "step_bias": np.log(np.expm1(steps)).astype(np.float32),
            "decay_log": np.log(np.tile(np.arange(1, STATES + 1, dtype=np.float32), (LAYERS, INSIDE, 1))),
            "skip": np.ones((LAYERS, INSIDE), np.float32),
            "out": normal(LAYERS, INSIDE, WIDTH, scale=(INSIDE * LAYERS) ** -0.5),
        },
    }


def no_state(rows: int) -> tuple[jax.Array, jax.Array]:
    """The state at the start of a sequence."""
    return jnp.zeros((rows, LAYERS, INSIDE, CONVOLUTION - 1)), jnp.zeros((rows, LAYERS, INSIDE, STATES))


def loss(params: Any, tokens: jax.Array) -> jax.Array:
    """Nats a byte."""
    logits, *_ = model.forward(params, tokens[:, :-1], *no_state(tokens.shape[0]))
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=2)
    return -jnp.mean(chosen)


def train(text: bytes, steps: int, seed: int = 0, rows: int = 16, length: int = 96) -> tuple[Any, float]:
    """Parameters, and the mean loss over the last steps in bits a byte. Adam, with warm-up and a cosine."""
    data = np.frombuffer(text, np.uint8).astype(np.int32)
    random = np.random.default_rng(seed)
    params = jax.tree.map(jnp.asarray, initial(seed))
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    @jax.jit
    def update(params: Any, moments: Any, tokens: Any, step: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
        second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g * g, moments[1], gradients)
        rate = 4e-3 * jnp.minimum((step + 1) / 20, 0.5 + 0.5 * jnp.cos(jnp.pi * step / steps))
        params = jax.tree.map(
            lambda p, m, s: p - rate * (m / (1 - 0.9 ** (step + 1))) / (jnp.sqrt(s / (1 - 0.99 ** (step + 1))) + 1e-8),
            params,
            first,
            second,
        )
        return params, (first, second), value

    bits: list[float] = []
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[bits]:.2f} bits/byte"),
    )
    with Progress(*columns, TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task("training", total=steps, bits=8.0)
        for step in range(steps):
            starts = random.integers(0, len(data) - length - 1, rows)
            tokens = np.stack([data[start : start + length + 1] for start in starts])
            params, moments, value = update(params, moments, tokens, step)
            bits.append(float(value) / np.log(2))
            bar.update(task, advance=1, bits=np.mean(bits[-20:]))
    return params, float(np.mean(bits[-20:]))


def flat(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Nested dictionaries as names with slashes, which is the backend's format."""
    found = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": np.asarray(value)}
    return found


def write(params: Any, repository: Path) -> None:
    """Write the entry."""
    version = repository / "mamba" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(config())
    if not (version / "model.py").exists():
        shutil.copyfile(MODEL, version / "model.py")
    np.savez(version / "model.npz", **flat(params))


def stories() -> bytes:
    """The training texts of the demo's language model: the same at each run."""
    sys.path.append(str(HERE.parent))
    from demo_llm.corpus import documents

    return "\n\n\n".join(each.text for each in documents(seed=1, number=NUM_DOCUMENTS) if each.text).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--text", type=Path, nargs="+", help="files to learn from")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    text = b"\n".join(path.read_bytes() for path in arguments.text) if arguments.text else stories()
    params, bits = train(text, arguments.steps)
    write(params, arguments.repository)
    print(f"wrote mamba: {bits:.2f} bits a byte on {len(text) // 1000} kB of text")


if __name__ == "__main__":
    main()
