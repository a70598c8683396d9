#!/usr/bin/env python3
"""The demo's language model, made from nothing: a corpus of stories, a tokenizer, a few minutes of training on the CPU.

    python scripts/make_demo_llm.py --output /tmp/storyteller --minutes 35     # as the one that is shipped
    python scripts/make_demo_llm.py --output /tmp/storyteller --steps 200      # a glance: it babbles
    python scripts/make_demo_llm.py --show 5                                   # only read some of the corpus

What comes out is a Hugging Face folder: `pointsman llm --model DIR` serves it, transformers loads it. The one that the
demo serves lies in engines/samples/models/storyteller/1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_llm import folder
from demo_llm.corpus import Document, digest, documents
from demo_llm.judging import Loss, loss_of, write
from demo_llm.plot import all_plots
from demo_llm.tokenizer import END, encode, train_tokenizer

if TYPE_CHECKING:  # torch is imported only for training
    from demo_llm.network import Network, Shape
    from demo_llm.training import Plan, State
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn, track

PROMPT = "Tell me a story about a fox."
_FEW = 100  # documents: fewer are not enough for a model


def main(options: list[str]) -> int:
    arguments = _parser().parse_args(options)
    console = Console(highlight=False)
    if arguments.show:
        for number, one in enumerate(documents(arguments.seed, arguments.show)):
            _show(console, number, one)
        return 0
    if arguments.output is None:
        console.print("--output DIR: where the model is to be written. --help tells the rest.", style="red")
        return 2
    _make(console, arguments, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="DIR", help="the folder to write; files in it are replaced")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="train this long (default: 35)")
    length.add_argument("--steps", type=int, help="train this many steps of 4,096 tokens, however long it takes")
    parser.add_argument(
        "--documents",
        type=int,
        default=60_000,
        help="stories and conversations of the corpus (default: %(default)s, 50 MB)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the corpus, the weights and the order (default: 0)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="of the CPU (default: all of it, here %(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from DIR/checkpoint.pt, which is written every two minutes"
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="do without torch.compile: starts at once, trains at half the speed"
    )
    shape = parser.add_argument_group("the network's shape; the defaults make 2.2 million parameters, 4.3 MB")
    for name, value in (("hidden", 192), ("layers", 4), ("heads", 4), ("key-value-heads", 2), ("mlp", 512)):
        shape.add_argument(f"--{name}", type=int, default=value, help="(default: %(default)s)")
    parser.add_argument(
        "--held-out", type=int, default=300, help="documents that the perplexity is measured on (default: %(default)s)"
    )
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N documents of the corpus and stop")
    return parser


def _make(console: Console, arguments: argparse.Namespace, options: list[str]) -> None:
    import torch
    from demo_llm.network import Network, Shape
    from demo_llm.training import Plan
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(arguments.threads)
    checkpoint = arguments.output / "checkpoint.pt"
    if not arguments.resume:
        checkpoint.unlink(missing_ok=True)
    number = max(arguments.documents, _FEW)
    corpus = list(
        track(documents(arguments.seed, number), "writing the corpus", number, console=console, transient=True)
    )
    num_bytes = sum(len(one.plain.encode()) for one in corpus)
    tokenizer = train_tokenizer(corpus[:: max(1, number // 10_000)])
    steps = track(corpus, "cutting it into tokens", console=console, transient=True)
    shape = Shape(
        tokenizer.get_vocab_size(),
        arguments.hidden,
        arguments.layers,
        arguments.heads,
        arguments.key_value_heads,
        mlp=arguments.mlp,
    )
    encoded = (encode(tokenizer, one, begins=place % 3 == 0) for place, one in enumerate(steps))
    texts = [text for text in encoded if len(text) <= shape.context]
    console.print(
        f"corpus: {number:,} documents, {num_bytes / 1e6:.0f} MB, {sum(map(len, texts)):,} tokens; "
        f"a glance at it: --show 5"
    )
    end = tokenizer.token_to_id(END)
    assert end is not None
    model = Network(shape, arguments.seed)
    console.print(f"network: {model.num_parameters:,} parameters; torch on {arguments.threads} threads")
    minutes = None if arguments.steps else arguments.minutes or 35.0
    plan = Plan(arguments.steps, minutes, seed=arguments.seed, compile=not arguments.no_compile)
    state = _train(console, model, texts, plan, checkpoint)
    folder.write_tokenizer(arguments.output, tokenizer, shape.context)
    folder.write_model(arguments.output, model, end)

    # From here on, the model is evaluated in the form that others load.
    loaded = AutoModelForCausalLM.from_pretrained(arguments.output, dtype=torch.float32)
    held_out = list(documents(arguments.seed, max(arguments.held_out, 2), "held out"))
    stories, chats = (
        _loss(loaded, tokenizer, [one for one in held_out if bool(one.chat) == is_chat]) for is_chat in (False, True)
    )
    sample, _ = write(loaded, AutoTokenizer.from_pretrained(arguments.output), [{"role": "user", "content": PROMPT}])
    facts = _facts(arguments, shape, state, stories, chats) | {"command": _command(options)}
    facts |= {"parameters": model.num_parameters, "megabytes": num_bytes / 1e6, "documents": number}
    facts |= {"digest": digest(iter(corpus[:1000])), "sample": sample, "prompt": PROMPT}
    folder.write_card(arguments.output, facts)
    checkpoint.unlink(missing_ok=True)
    console.print(f"held out: perplexity {stories.perplexity:.3f} on stories, {chats.perplexity:.3f} on conversations")
    console.print(
        f"wrote {arguments.output}: {folder.size_of(arguments.output) / 1e6:.2f} MB\n\n{sample}", markup=False
    )


def _train(console: Console, model: Network, texts: list[list[int]], plan: Plan, checkpoint: Path) -> State:
    """Train with a progress bar that shows the loss and the remaining time."""
    from demo_llm.training import train

    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("step {task.fields[step]:,}  loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task("training", total=1.0, step=0, loss=float("nan"), speed=0.0)

        def report(state: State) -> None:
            speed = state.tokens / state.seconds
            bar.update(task, completed=state.progress(plan), step=state.step, loss=state.loss, speed=speed)
            if not console.is_terminal and state.step % 100 == 0:
                console.print(
                    f"step {state.step:,}: loss {state.loss:.3f}, {speed:,.0f} tokens/s, {state.seconds:.0f} s"
                )

        return train(model, texts, plan, report=report, checkpoint=checkpoint)


def _loss(model: Any, tokenizer: Any, some: list[Document]) -> Loss:
    return loss_of(model, [encode(tokenizer, one) for one in some], sum(len(one.plain.encode()) for one in some))


def _facts(arguments: argparse.Namespace, shape: Shape, state: State, stories: Loss, chats: Loss) -> dict[str, Any]:
    """The facts about the run on the model card."""
    return {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.key_value_heads,
        "context": shape.context,
        "vocabulary": shape.vocabulary,
        "plots": len(all_plots()),
        "steps": state.step,
        "tokens": state.tokens,
        "minutes": state.seconds / 60.0,
        "threads": "one core" if arguments.threads == 1 else f"{arguments.threads} cores",
        "loss": state.loss,
        "story_perplexity": stories.perplexity,
        "story_bits": stories.bits_per_byte,
        "chat_perplexity": chats.perplexity,
        "chat_bits": chats.bits_per_byte,
    }


def _command(options: list[str]) -> str:
    """The options that create the same model again, without its destination."""
    arguments = [one for one in options if one != "--resume" and not one.startswith("--output=")]
    if "--output" in arguments:
        del arguments[arguments.index("--output") : arguments.index("--output") + 2]
    return shlex.join(arguments)


def _show(console: Console, number: int, one: Document) -> None:
    console.rule(str(number + 1))
    for message in one.chat:
        console.print(f"[bold]{message.role}[/]")
        console.print(message.content, markup=False, soft_wrap=True)
    console.print(one.text, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
