"""Training on the CPU: batches of similar lengths, two optimizers, a learning rate that falls to 0, checkpoints."""

from __future__ import annotations

import ctypes
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from demo_llm.network import IGNORED, Network

# Documents are sorted by length within this many, so that rows of a batch are similar in length, and batches mixed.
_SORTED_TOGETHER = 2048
_WIDTH_STEP = 32  # widths of batches, so that few different shapes occur
_LONGEST_CHECKPOINT_GAP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The length and speed of training. It ends with `steps` or with `minutes`, whichever is given."""

    steps: int | None = None
    minutes: float | None = None
    tokens_per_step: int = 4096
    rate: float = 4e-3  # of both optimizers; it falls to 0 linearly
    warmup: float = 0.03  # the share of the run in which it rises
    weight_decay: float = 0.05
    seed: int = 0
    compile: bool = True


@dataclass(slots=True)
class State:
    """The progress of a run. `loss` is the recent mean, in nats a token."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    losses: list[float] = field(default_factory=list)  # the mean of each hundred steps

    def progress(self, plan: Plan) -> float:
        """From 0 to 1."""
        if plan.steps is not None:
            return min(1.0, self.step / plan.steps)
        return min(1.0, self.seconds / (60.0 * (plan.minutes or 1.0)))


def batches(texts: Sequence[Sequence[int]], tokens: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels [rows, width], without end; every text once an epoch, in an order of its own.

    A text is a row: it begins at the first position, sees no other, and is padded at its end.
    """
    chance = random.Random(seed)
    while True:
        order = chance.sample(range(len(texts)), len(texts))
        for start in range(0, len(order), _SORTED_TOGETHER):
            together = sorted(order[start : start + _SORTED_TOGETHER], key=lambda index: len(texts[index]))
            rows: list[list[Sequence[int]]] = [[]]
            for index in together:
                width = -(-len(texts[index]) // _WIDTH_STEP) * _WIDTH_STEP
                if rows[-1] and (len(rows[-1]) + 1) * width > tokens:
                    rows.append([])
                rows[-1].append(texts[index])
            chance.shuffle(rows)
            for batch in rows:
                width = -(-max(map(len, batch)) // _WIDTH_STEP) * _WIDTH_STEP
                inputs = torch.zeros((len(batch), width), dtype=torch.int64)
                labels = torch.full((len(batch), width), IGNORED)
                for row, text in enumerate(batch):
                    inputs[row, : len(text)] = labels[row, : len(text)] = torch.tensor(text)
                yield inputs, labels


def train(
    model: Network,
    texts: Sequence[Sequence[int]],
    plan: Plan,
    *,
    report: Callable[[State], None] = lambda state: None,
    checkpoint: Path | None = None,
) -> State:
    """Train the model in place, from the checkpoint if it exists; one is written every two minutes."""
    _keep_freed_memory()
    optimizers = _optimizers(model, plan)
    state = State()
    if checkpoint is not None and checkpoint.exists():
        state = _load(checkpoint, model, optimizers)
    source = batches(texts, plan.tokens_per_step, plan.seed + state.step)
    forward = torch.compile(model, dynamic=True) if plan.compile and shutil.which("c++") else model
    began, saved = time.monotonic() - state.seconds, time.monotonic()
    recent: list[float] = []
    while state.progress(plan) < 1.0:
        inputs, labels = next(source)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * _share_of_rate(state.progress(plan), plan.warmup)
        loss = forward(inputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        recent.append(loss.item())
        state.step += 1
        state.tokens += int((labels != IGNORED).sum())
        state.seconds = time.monotonic() - began
        state.loss = sum(recent[-100:]) / len(recent[-100:])
        if state.step % 100 == 0:
            state.losses.append(round(state.loss, 4))
        report(state)
        if checkpoint is not None and time.monotonic() - saved > _LONGEST_CHECKPOINT_GAP_SECONDS:
            _save(checkpoint, model, optimizers, state)
            saved = time.monotonic()
    return state


def _share_of_rate(progress: float, warmup: float) -> float:
    """A linear rise, and a linear fall to 0."""
    return progress / warmup if progress < warmup else (1.0 - progress) / (1.0 - warmup)


def _optimizers(model: Network, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, Adam for the rest: embeddings, norms.

    Source: Muon (Jordan et al., 2024), with its updates scaled as large as Adam's are.
    """
    matrices = [one for one in model.layers.parameters() if one.ndim == 2]
    rest = [model.embedding, model.norm, *(one for one in model.layers.parameters() if one.ndim == 1)]
    muon = torch.optim.Muon(matrices, lr=plan.rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0)]


def _save(path: Path, model: Network, optimizers: Sequence[torch.optim.Optimizer], state: State) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "model": model.state_dict(),
        "optimizers": [one.state_dict() for one in optimizers],
        "state": asdict(state),
    }
    torch.save(whole, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def _load(path: Path, model: Network, optimizers: Sequence[torch.optim.Optimizer]) -> State:
    whole = torch.load(path, weights_only=True)
    model.load_state_dict(whole["model"])
    for optimizer, known in zip(optimizers, whole["optimizers"], strict=True):
        optimizer.load_state_dict(known)
    return State(**whole["state"])


def _keep_freed_memory() -> None:
    """Let glibc keep the memory that a step frees for the next one: a new allocation costs a third of a step."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            trim_threshold, mmap_threshold, mmap_max = -1, -3, -4
            libc.mallopt(mmap_threshold, 1 << 30)
            libc.mallopt(trim_threshold, (1 << 31) - 1)
            libc.mallopt(mmap_max, 0)
