#!/usr/bin/env python3
"""An image classifier: trains a small network on drawn shapes, and writes it as ONNX and as TorchScript.

    python scripts/models/classifier.py REPOSITORY [--steps 300]

Entries: `classifier` (onnxruntime) and `classifier_torch` (pytorch), from an RGB image of 32 by 32 (FP32 in 0..1) to
the scores of eight classes, with labels.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

CLASSES = ("circle", "ring", "square", "frame", "triangle", "cross", "stripes", "checkers")
SIZE = 32

CONFIG = """name: "{name}"
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "image" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] }} ]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ 8 ] label_filename: "labels.txt" }} ]
dynamic_batching {{ preferred_batch_size: [ 8, 16, 32 ] max_queue_delay_microseconds: 1000 }}
"""


def draw(kind: str, random: np.random.Generator) -> np.ndarray:
    """An image [3, 32, 32] of one shape, with random place, size, colours and noise."""
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    radius = random.uniform(6, 12)
    x, y = x - random.uniform(radius, SIZE - radius), y - random.uniform(radius, SIZE - radius)
    far, wide = np.hypot(x, y), np.maximum(abs(x), abs(y))
    period = random.uniform(4, 7)
    inside = {
        "circle": far < radius,
        "ring": (far < radius) & (far > 0.6 * radius),
        "square": wide < 0.85 * radius,
        "frame": (wide < 0.85 * radius) & (wide > 0.5 * radius),
        "triangle": (y < 0.8 * radius) & (abs(x) < (y + radius) / 2),
        "cross": (wide < radius) & ((abs(x) < 0.25 * radius) | (abs(y) < 0.25 * radius)),
        "stripes": (wide < radius) & (np.floor(x / period * 2) % 2 == 0),
        "checkers": (wide < radius) & ((np.floor(x / period * 2) + np.floor(y / period * 2)) % 2 == 0),
    }[kind]
    back, front = random.uniform(0, 0.4, (3, 1, 1)), random.uniform(0.6, 1, (3, 1, 1))
    if random.random() < 0.5:
        back, front = front, back
    image = np.where(inside, front, back) + random.normal(0, 0.08, (3, SIZE, SIZE))
    return np.clip(image, 0, 1).astype(np.float32)


def batch(size: int, random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = random.integers(len(CLASSES), size=size)
    return torch.from_numpy(np.stack([draw(CLASSES[label], random) for label in labels])), torch.from_numpy(labels)


class Classifier(torch.nn.Module):
    """Three convolutions that halve the image, and a linear layer: 24 thousand weights."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for wide, narrow in ((3, 16), (16, 32), (32, 64)):
            layers += [torch.nn.Conv2d(wide, narrow, 3, padding=1), torch.nn.BatchNorm2d(narrow), torch.nn.ReLU()]
            layers.append(torch.nn.MaxPool2d(2))
        self.features = torch.nn.Sequential(*layers)
        self.scores = torch.nn.Linear(64, len(CLASSES))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.scores(self.features(image).mean((2, 3)))


def train(steps: int, seed: int = 0) -> tuple[Classifier, float]:
    """A trained model, and its accuracy on images that it has not seen."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=max(steps, 10))
    for _ in track(range(steps), "training", transient=True):
        images, labels = batch(64, random)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    images, labels = batch(512, np.random.default_rng(seed + 1))
    with torch.inference_mode():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    return model, accuracy


def write(model: Classifier, repository: Path) -> None:
    """Write the two entries."""
    example = torch.zeros(1, 3, SIZE, SIZE)
    for name, backend in (("classifier", "onnxruntime"), ("classifier_torch", "pytorch")):
        version = repository / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name, backend=backend))
        (version.parent / "labels.txt").write_text("\n".join(CLASSES) + "\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both formats are old, and servers read them
            if backend == "pytorch":
                torch.jit.trace(model, example).save(version / "model.pt")
                continue
            torch.onnx.export(
                model,
                (example,),
                version / "model.onnx",
                input_names=["image"],
                output_names=["scores"],
                dynamic_axes={"image": {0: "batch"}, "scores": {0: "batch"}},
                dynamo=False,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    model, accuracy = train(arguments.steps)
    write(model, arguments.repository)
    print(f"wrote classifier and classifier_torch: {accuracy:.1%} of unseen images are named rightly")


if __name__ == "__main__":
    main()
