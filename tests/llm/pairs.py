"""Which client works with which engine: every pair of a client's and an engine's dialect, in one table.

`GROUPS` is the source, `PAIRS` the same pair by pair: test_pairs.py tests each through a gateway, and
routing_rules/README.md shows the table (`pairs_shown`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Front:
    """A dialect that clients speak. `says` are the options that it has, by `llm.sampling_fields`' names."""

    name: str
    title: str
    takes: str = ""  # the form of its input for text: messages or prompt
    is_v2: bool = False
    says: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Engine:
    """What stands behind the gateway. `server` is the process that plays it (fleet.py), `model` the name there; `keys`
    are further keys of its rule. `num_pieces` is the number of pieces in which three tokens come."""

    name: str
    title: str
    server: str
    model: str
    protocol: str
    keys: tuple[tuple[str, object], ...] = ()
    by_grpc: bool = False
    takes: str = ""  # messages or prompt; "": OpenAI's clients get no text from it
    tensors: str = "vllm"  # the inputs that a V2 client uses
    num_pieces: int = 3
    has: frozenset[str] = frozenset()  # the options that it supports

    @property
    def is_v2(self) -> bool:
        return self.protocol in ("kserve", "mlserver")


class How(Enum):
    """The outcome of a pair."""

    WORKS = "works"
    LOSSY = "lossy"
    REFUSED = "refused"


class Loss(Enum):
    """What a lossy pair loses."""

    CONTINUING = "the prompt is a user's message: the engine answers it, and does not go on with it"
    THOUGHTS = "what the model thinks is left out"
    TOOL_CALLS = "tool calls and thoughts are text, as the model writes them"
    USAGE = "tokens are estimated, since the engine does not count them: `usage` has `estimated: true`"
    REASON = "why it ends is not told: always `stop`"
    PIECES = "a stream comes in one piece"
    SHAPES = "outputs have one axis"


@dataclass(frozen=True, slots=True)
class Pair:
    """One row. `reason` is the error that a client gets where the pair is refused: `{engine}` and `{model}` stand for
    the names, `…` for more words."""

    front: str
    engine: str
    how: How
    losses: frozenset[Loss] = frozenset()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Pairs with the same outcome."""

    engines: Sequence[str]
    fronts: Sequence[str]
    how: How = How.WORKS
    losses: Sequence[Loss] = ()
    reason: str = ""


_SAMPLING = {"temperature", "top_p", "stop"}
_OF_CHAT = frozenset({*_SAMPLING, "top_k", "min_p", "seed", "presence_penalty"})
_OF_MESSAGES = frozenset({*_SAMPLING, "top_k"})
_OF_RESPONSES = frozenset({"temperature", "top_p"})

FRONTS = (
    Front("chat", "`/v1/chat/completions`", "messages", says=_OF_CHAT),
    Front("completions", "`/v1/completions`", "prompt", says=_OF_CHAT),
    Front("responses", "`/v1/responses`", "messages", says=_OF_RESPONSES),
    Front("messages", "`/v1/messages`", "messages", says=_OF_MESSAGES),
    Front("embeddings", "`/v1/embeddings`"),
    Front("generate", "`generate`", "prompt", is_v2=True, says=_OF_CHAT),
    Front("generate_stream", "`generate_stream`", "prompt", is_v2=True, says=_OF_CHAT),
    Front("infer_stream", "MLServer's `infer_stream`", "prompt", is_v2=True, says=_OF_CHAT),
    Front("infer", "`infer` in JSON", "prompt", is_v2=True, says=_OF_CHAT),
    Front("infer_binary", "`infer` with binary tensors", "prompt", is_v2=True, says=_OF_CHAT),
    Front("model_infer", "ModelInfer", "prompt", is_v2=True, says=_OF_CHAT),
    Front("model_stream_infer", "ModelStreamInfer", "prompt", is_v2=True, says=_OF_CHAT),
)

_TEMPLATE = (("chat_template", "counting.jinja"),)


def _openai(name: str, dialect: str, takes: str = "", has: frozenset[str] = frozenset()) -> Engine:
    return Engine(
        name,
        f"`openai` with `{dialect}`",
        "canned",
        "canned",
        "openai",
        (("dialects", [dialect]),),
        takes=takes,
        has=has,
    )


def _triton(name: str, title: str, model: str, *, by_grpc: bool = False, **more: object) -> Engine:
    return Engine(name, title, "triton", model, "kserve", _TEMPLATE, by_grpc=by_grpc, **more)  # type: ignore[arg-type]


_VLLM = {"model": "vllm_model", "takes": "prompt", "has": _OF_CHAT}
_TRTLLM = {"model": "ensemble", "takes": "prompt", "tensors": "trtllm", "has": _OF_CHAT - {"min_p"}}
_TEXT = {"model": "text", "takes": "prompt", "tensors": "plain", "num_pieces": 1, "has": _OF_CHAT}

ENGINES = (
    _openai("chat", "chat", "messages", _OF_CHAT),
    _openai("messages", "messages", "messages", _OF_MESSAGES),
    _openai("responses", "responses", "messages", _OF_CHAT - {"min_p", "presence_penalty"}),
    Engine(
        "completions",
        "`openai` with `completions` and a `chat_template`",
        "canned",
        "canned",
        "openai",
        (("dialects", ["completions"]), *_TEMPLATE),
        takes="prompt",
        has=_OF_CHAT,
    ),
    Engine(
        "bare_completions",
        "`openai` with `completions` alone",
        "canned",
        "canned",
        "openai",
        (("dialects", ["completions"]),),
        takes="prompt",
        has=_OF_CHAT,
    ),
    _openai("embeddings", "embeddings"),
    _triton("vllm", "Triton's vLLM backend", **_VLLM),
    _triton("vllm_by_grpc", "", by_grpc=True, **_VLLM),
    _triton("trtllm", "a TensorRT-LLM ensemble", **_TRTLLM),
    _triton("trtllm_by_grpc", "", by_grpc=True, **_TRTLLM),
    _triton("text", "another model of text", **_TEXT),
    _triton("text_by_grpc", "", by_grpc=True, **_TEXT),
    Engine("embedder", "a model of vectors", "triton", "embedder", "kserve", tensors="text"),
    Engine("embedder_by_grpc", "", "triton", "embedder", "kserve", by_grpc=True, tensors="text"),
    Engine("mlserver", "`mlserver`", "mlserver", "streamer", "mlserver", _TEMPLATE, tensors="text", num_pieces=2),
    Engine("tfserving", "`tfserving`", "tfserving", "half_plus_two", "tfserving", tensors="text"),
    Engine("tfserving_grpc", "`tfserving` by gRPC alone", "tfserving", "half_plus_two", "tfserving", by_grpc=True),
    Engine("torchserve", "`torchserve`", "torchserve", "texts", "torchserve", tensors="text"),
    Engine("torchserve_grpc", "`torchserve` by gRPC alone", "torchserve", "plain", "torchserve", by_grpc=True),
)

FRONT = {front.name: front for front in FRONTS}
ENGINE = {engine.name: engine for engine in ENGINES}

_CHATS = ("chat", "responses", "messages")
_STREAMS = ("generate", "generate_stream", "model_stream_infer")
_INFERS = ("infer", "infer_binary", "model_infer")
_V2 = (*_STREAMS, *_INFERS)
_TEXTS = ("chat", "completions", "responses", "messages")
_ANSWERING = ("chat", "messages", "responses")
_VLLMS, _TRTLLMS, _PLAINS = ("vllm", "vllm_by_grpc"), ("trtllm", "trtllm_by_grpc"), ("text", "text_by_grpc")
_EMBEDDERS = ("embedder", "embedder_by_grpc")
_TFSERVINGS, _TORCHSERVES = ("tfserving", "tfserving_grpc"), ("torchserve", "torchserve_grpc")
_DECOUPLED = "… doesn't support models with decoupled transaction policy"  # Triton's own
_TFSERVING = "engine '{engine}' speaks tfserving, which has no …"
_GRPC_ALONE = "engine '{engine}' has gRPC alone, which has no …"
_TORCHSERVE = "… is nothing that TorchServe's inference API has"
_NOT_EMBEDDING = "the model '{model}' does not embed: it must have one input, of text, and vectors out"

GROUPS = (
    # OpenAI's and Anthropic's engines
    Group(_ANSWERING, _CHATS),
    Group(_ANSWERING, ("completions",), How.LOSSY, (Loss.CONTINUING,)),
    Group(_ANSWERING, _V2, How.LOSSY, (Loss.CONTINUING, Loss.THOUGHTS)),
    Group(("completions",), _CHATS, How.LOSSY, (Loss.TOOL_CALLS,)),
    Group(
        ("bare_completions",),
        _CHATS,
        How.REFUSED,
        reason="engine '{engine}' takes a prompt, not messages: give it a 'chat_template', or ask for /v1/completions",
    ),
    Group(("completions", "bare_completions"), ("completions", *_V2)),
    Group(
        (*_ANSWERING, "completions", "bare_completions"),
        ("embeddings",),
        How.REFUSED,
        reason="engine '{engine}' has no embeddings: its dialects are …",
    ),
    Group(("embeddings",), ("embeddings", *_INFERS, "model_stream_infer")),
    Group(
        ("embeddings",),
        (*_TEXTS, "generate", "generate_stream"),
        How.REFUSED,
        reason="engine '{engine}' has no dialect for text, only embeddings",
    ),
    # V2's
    Group(_VLLMS, ("completions",)),
    Group(_VLLMS, _CHATS, How.LOSSY, (Loss.TOOL_CALLS,)),
    Group(_TRTLLMS, ("completions",), How.LOSSY, (Loss.USAGE, Loss.REASON)),
    Group(_TRTLLMS, _CHATS, How.LOSSY, (Loss.TOOL_CALLS, Loss.USAGE, Loss.REASON)),
    Group((*_VLLMS, *_TRTLLMS), _STREAMS),
    Group((*_VLLMS, *_TRTLLMS), _INFERS, How.REFUSED, reason=_DECOUPLED),
    Group(_PLAINS, ("completions",), How.LOSSY, (Loss.USAGE, Loss.REASON, Loss.PIECES)),
    Group(_PLAINS, _CHATS, How.LOSSY, (Loss.TOOL_CALLS, Loss.USAGE, Loss.REASON, Loss.PIECES)),
    Group((*_PLAINS, *_EMBEDDERS), _V2),
    Group((*_VLLMS, *_TRTLLMS, *_PLAINS, *_EMBEDDERS), ("infer_stream",), How.LOSSY, (Loss.SHAPES,)),
    Group((*_VLLMS, *_TRTLLMS, *_PLAINS), ("embeddings",), How.REFUSED, reason=_NOT_EMBEDDING),
    Group(_EMBEDDERS, ("embeddings",), How.LOSSY, (Loss.USAGE,)),
    Group(
        _EMBEDDERS,
        _TEXTS,
        How.REFUSED,
        reason="the model '{model}' has no one output that is text: it is no language model",
    ),
    # Others
    Group(("mlserver",), (*_V2, "infer_stream")),
    Group(("mlserver",), ("completions",), How.LOSSY, (Loss.USAGE, Loss.REASON)),
    Group(("mlserver",), _CHATS, How.LOSSY, (Loss.TOOL_CALLS, Loss.USAGE, Loss.REASON)),
    Group(("mlserver",), ("embeddings",), How.REFUSED, reason=_NOT_EMBEDDING),
    Group((*_TFSERVINGS, *_TORCHSERVES), (*_INFERS, "model_stream_infer")),
    Group(("tfserving",), (*_TEXTS, "embeddings", "generate", "generate_stream"), How.REFUSED, reason=_TFSERVING),
    Group(("torchserve",), ("generate", "generate_stream")),
    Group(("torchserve",), (*_TEXTS, "embeddings"), How.REFUSED, reason=_TORCHSERVE),
    Group(
        ("tfserving_grpc", "torchserve_grpc"),
        (*_TEXTS, "embeddings", "generate", "generate_stream"),
        How.REFUSED,
        reason=_GRPC_ALONE,
    ),
    Group(
        (*_ANSWERING, "completions", "bare_completions", "embeddings", *_TFSERVINGS, *_TORCHSERVES),
        ("infer_stream",),
        How.REFUSED,
        reason="… which has no infer_stream: ask generate_stream",
    ),
)


def _pairs() -> Iterator[Pair]:
    for group in GROUPS:
        for engine in group.engines:
            for front in group.fronts:
                yield Pair(front, engine, group.how, frozenset(group.losses), group.reason)


PAIRS = tuple(_pairs())
