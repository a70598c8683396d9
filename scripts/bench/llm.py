"""The benchmark of language-model engines: Pointsman's, transformers' continuous batching, `transformers serve` and
llama.cpp, on the same weights, in turns, on this machine only.

    python scripts/bench/llm.py --install    # first builds a llama-server for this processor (.bench-llamacpp), once
    python scripts/bench/llm.py              # all engines that are installed, three rounds
    python scripts/bench/llm.py --quick      # a glance
    python scripts/bench/llm.py --only mixed --engines transformers,ours --rounds 7

README.md beside this file describes the measurements and how to read them.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
sys.path.append(str(Path(__file__).resolve().parents[2]))

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402

from bench import command, environment, llm_report  # noqa: E402
from bench.llm_build import build_llama_server  # noqa: E402
from bench.llm_cases import CASES  # noqa: E402
from bench.llm_engines import ENGINES, Model  # noqa: E402
from bench.llm_goals import verdicts  # noqa: E402
from bench.llm_model import SHAPES, cache_folder  # noqa: E402
from bench.llm_run import LlmResults, Plan, carry_out  # noqa: E402
from bench.processes import BenchError, raise_file_limit  # noqa: E402

PANELS = (
    ("mixed", "units_per_second", "16 at once: tokens/s"),
    ("mixed", "cpu_ms", "16 at once: CPU ms/token"),
    ("prefix", "first_ms", "1,000 tokens, cold: first token ms"),
    ("prefix", "hit_ms", "1,000 tokens, kept: first token ms"),
    ("arrival", "stretch", "4,000 tokens arrive: gap p95 / median"),
    ("arrival", "first_ms", "4,000 tokens: first token ms"),
    ("alone", "units_per_second", "one request: tokens/s"),
    ("alone", "p50_ms", "one request: gap p50 ms"),
)


def main(
    only: Annotated[str, command.case_option({name: case.title for name, case in CASES.items()})] = "",
    engines: Annotated[str, command.name_option("ENGINES", ENGINES)] = "",
    rounds: command.Rounds = 3,
    dtype: Annotated[
        Literal["bfloat16", "float32"],
        typer.Option(help="Of weights and cache, for all; transformers is fastest with bfloat16 here."),
    ] = "bfloat16",
    threads: Annotated[int, typer.Option(min=1, max=256, help="Of every engine.")] = 2,
    shape: Annotated[
        str, typer.Option(metavar="SHAPE", help=f"Of the model's size, of: {', '.join(SHAPES)}.")
    ] = "150m",
    quick: Annotated[bool, typer.Option("--quick", help="One round: a glance, not a figure.")] = False,
    install: Annotated[
        bool, typer.Option("--install", help="First build llama.cpp's server for this processor: ten minutes, once.")
    ] = False,
    results: command.ResultsFolder = command.RESULTS,
    json: command.JsonFile = None,
) -> None:
    """Measure engines of language models on the same weights: a Llama of 150 M parameters, created once.

    Two setups are compared separately: engines alone (ours, transformers' continuous batching), and with their servers
    (ours-served, transformers-serve, llama.cpp), which stream events over HTTP. All have the same threads, the same
    dtype and the same prompts; every token is checked, and an engine that generates a wrong one is left out. Missed
    goals are shown, and do not change the exit status; it is 1 if an engine has failed.
    """
    if install:
        try:
            build_llama_server(command.console)
        except BenchError as error:
            command.console.print(f"[yellow]{error}[/]")
    raise_file_limit()
    versions = command.present(engines, ENGINES, "engine", lambda engine: engine.how_to_get)
    chosen = SHAPES[command.chosen(shape, list(SHAPES), "shape")[0]]
    plan = Plan(
        engines=list(versions),
        cases=command.chosen(only, CASES, "case", default=list(CASES)),
        rounds=1 if quick else rounds,
        model=Model(chosen, dtype, threads),
    )
    options = {
        "rounds": plan.rounds,
        "dtype": dtype,
        "threads": threads,
        "shape": shape,
        "parameters": chosen.parameters,
        "model_cache": str(cache_folder()),
    }
    machine = environment.describe(versions, [], options)

    def measure(progress: Progress) -> LlmResults:
        found = carry_out(plan, progress)
        machine["settings"] = found.settings
        return found

    cases = [CASES[name] for name in plan.cases]
    command.carry_out("llm", measure, cases, verdicts, PANELS, machine, results, json, show=llm_report.show)


if __name__ == "__main__":
    typer.run(main)
