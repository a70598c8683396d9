"""A Mamba language model of bytes, for the jax backend: what it carries from step to step is a state of fixed size.

    tokens      [B, T] int32     bytes; -1 behind the last one of a row is nothing
    conv_state  [B, L, E, K - 1] the last inputs of each layer's convolution
    ssm_state   [B, L, E, N]     each layer's state space
    logits      [B, 256]         of the byte that comes next
    token       [B, 1] int32     the likeliest one

L layers of width D, E = 2 D channels inside, N states a channel, K the convolution's width.
Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, section 3 and algorithm 2.
"""

import jax
import jax.numpy as jnp


def apply(params, inputs):
    tokens = inputs["tokens"]
    logits, conv_state, ssm_state = forward(params, tokens, inputs["conv_state"], inputs["ssm_state"])
    # The last byte of each row says what comes next; a row without any says it of nothing.
    last = jnp.maximum(jnp.sum(tokens >= 0, axis=1) - 1, 0)
    logits = jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0]
    return {
        "logits": logits,
        "token": jnp.argmax(logits, axis=1, keepdims=True).astype(jnp.int32),
        "conv_state_out": conv_state,
        "ssm_state_out": ssm_state,
    }


def forward(params, tokens, conv_state, ssm_state):
    """Logits [B, T, 256] after each byte, and the states after the last."""
    is_byte = tokens >= 0
    x = params["embedding"][jnp.maximum(tokens, 0)]

    def layer(x, scanned):
        weights, conv, ssm = scanned
        out, conv, ssm = block(weights, rms_norm(x, weights["norm"]), is_byte, conv, ssm)
        return x + out, (conv, ssm)

    states = (conv_state.swapaxes(0, 1), ssm_state.swapaxes(0, 1))
    x, (conv_state, ssm_state) = jax.lax.scan(layer, x, (params["blocks"], *states))
    logits = rms_norm(x, params["norm"]) @ params["embedding"].T
    return logits, conv_state.swapaxes(0, 1), ssm_state.swapaxes(0, 1)


def block(weights, x, is_byte, conv_state, ssm_state):
    """One layer: a short convolution, then a state space whose step, input and output depend on the byte."""
    u, gate = jnp.split(x @ weights["in"], 2, axis=-1)
    u = jnp.where(is_byte[..., None], u, 0)
    u, conv_state = convolve(weights, u, conv_state, jnp.sum(is_byte, axis=1))
    u = jax.nn.silu(u)
    rank = weights["step"].shape[0]
    states = ssm_state.shape[-1]
    step, into, out_of = jnp.split(u @ weights["select"], (rank, rank + states), axis=-1)
    step = jax.nn.softplus(step @ weights["step"] + weights["step_bias"])
    step = jnp.where(is_byte[..., None], step, 0)  # a step of no length leaves the state as it is
    decay = -jnp.exp(weights["decay_log"])  # [E, N]

    def advance(state, at):
        step, into, out_of, u = at  # [B, E], [B, N], [B, N], [B, E]
        state = jnp.exp(step[..., None] * decay) * state + (step * u)[..., None] * into[:, None, :]
        return state, jnp.einsum("ben,bn->be", state, out_of)

    in_time = tuple(value.swapaxes(0, 1) for value in (step, into, out_of, u))
    ssm_state, y = jax.lax.scan(advance, ssm_state, in_time)
    y = y.swapaxes(0, 1) + u * weights["skip"]
    return (y * jax.nn.silu(gate)) @ weights["out"], conv_state, ssm_state


def convolve(weights, u, state, num_bytes):
    """Each channel's own causal convolution over time, going on from the inputs in `state`; and the new state."""
    width = weights["conv"].shape[1]
    whole = jnp.concatenate([state.swapaxes(1, 2), u], axis=1)  # [B, K - 1 + T, E]
    length = u.shape[1]
    y = sum(whole[:, k : k + length] * weights["conv"][:, k] for k in range(width)) + weights["conv_bias"]
    # The K - 1 inputs that end with the row's last byte.
    places = num_bytes[:, None] + jnp.arange(width - 1)
    return y, jnp.take_along_axis(whole, places[..., None], axis=1).swapaxes(1, 2)


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale
