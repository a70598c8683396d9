"""The table of pairs as routing_rules/README.md shows it.

python -m tests.llm.pairs_shown
"""

from collections.abc import Sequence

from tests.llm.pairs import ENGINES, GROUPS, PAIRS, Engine, How, Loss, Pair

HEADING = "## Which client reaches which engine"

# Clients with the same outcome on every engine share a column.
COLUMNS = {
    "chat, responses, messages": ("chat", "responses", "messages"),
    "completions": ("completions",),
    "embeddings": ("embeddings",),
    "`generate`, `generate_stream`": ("generate", "generate_stream"),
    "`infer_stream`": ("infer_stream",),
    "`infer`, ModelInfer": ("infer", "infer_binary", "model_infer"),
    "ModelStreamInfer": ("model_stream_infer",),
}
_PAIR = {(pair.front, pair.engine): pair for pair in PAIRS}
_LOSSES = list(Loss)
_REASONS = list(dict.fromkeys(group.reason for group in GROUPS if group.reason))


def rendered() -> str:
    """The table in Markdown, followed by the meaning of its numbers and letters."""
    rows = [["engine", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    # A gRPC-only engine has the same outcomes as its REST twin: `_cell` checks it.
    rows += [
        [engine.title, *(_cell(engine, fronts) for fronts in COLUMNS.values())] for engine in ENGINES if engine.title
    ]
    table = [f"| {' | '.join(row)} |" for row in rows]
    losses = [f"* {number}: {loss.value}" for number, loss in enumerate(_LOSSES, 1)]
    reasons = [f"* {_letter(reason)}: {reason.format(engine='NAME', model='NAME')}" for reason in _REASONS]
    return "\n".join([*table, "", "Lost:", "", *losses, "", "Refused, in words that the client reads:", "", *reasons])


def _cell(engine: Engine, fronts: Sequence[str]) -> str:
    names = [each.name for each in ENGINES if each.name in (engine.name, f"{engine.name}_by_grpc")]
    (reply,) = {_told(_PAIR[front, name]) for front in fronts for name in names}
    return reply


def _told(pair: Pair) -> str:
    match pair.how:
        case How.LOSSY:
            return "lossy " + " ".join(str(_LOSSES.index(loss) + 1) for loss in _LOSSES if loss in pair.losses)
        case How.REFUSED:
            return f"no {_letter(pair.reason)}"
        case How.WORKS:
            return "works"


def _letter(reason: str) -> str:
    return chr(ord("a") + _REASONS.index(reason))


if __name__ == "__main__":
    print(rendered())
