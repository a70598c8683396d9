"""Public client libraries, one function for each dialect: each requests a text (`ASK`), or an inference on one tensor
(`INFER`)."""

from collections.abc import Callable, Mapping

from tests.llm.clients import of_anthropic, of_grpc, of_openai, of_v2
from tests.llm.clients.values import Inferred, Tensor, TextRequest, TextResult
from tests.support.child import Child

Ask = Callable[[Child, TextRequest], TextResult]
Infer = Callable[[Child, str, Tensor, str], Inferred]  # gateway, model, input, the request's id

# Front, as `pairs.FRONTS` names it -> its client function.
ASK: Mapping[str, Ask] = {
    "chat": of_openai.ask_chat,
    "completions": of_openai.ask_completions,
    "responses": of_openai.ask_responses,
    "messages": of_anthropic.ask_messages,
    "generate": of_v2.ask_generate,
    "generate_stream": of_v2.ask_generate,
    "infer_stream": of_v2.ask_infer_stream,
    "infer": of_v2.ask_infer,
    "infer_binary": of_v2.ask_infer_binary,
    "model_infer": of_grpc.ask_model_infer,
    "model_stream_infer": of_grpc.ask_model_stream_infer,
}
INFER: Mapping[str, Infer] = {
    "infer_stream": of_v2.infer_stream,
    "infer": of_v2.infer,
    "infer_binary": of_v2.infer_binary,
    "model_infer": of_grpc.infer,
    "model_stream_infer": of_grpc.stream_infer,
}
