// Requests to begin with, from what an engine says of its model.

import { piece } from "../core/api.js";

export const KINDS = {
  infer: { label: "V2 infer" },
  generate: { label: "V2 generate" },
  generate_stream: { label: "V2 generate, streamed" },
  chat: { label: "Chat (OpenAI)", isOpenAI: true },
  chat_stream: { label: "Chat, streamed", isOpenAI: true },
  completion: { label: "Completion (OpenAI)", isOpenAI: true },
};

const WORDS = "Say in one sentence what a pointsman does.";
// A tensor that a page can show; a longer one is cut at its first dimension that is free.
const MOST_VALUES = 4096;

/** The path and the body for a model; `metadata` are V2's, null where nobody tells. */
export function template(kind, model, metadata) {
  const base = `/v2/models/${piece(model)}`;
  const messages = [{ role: "user", content: WORDS }];
  switch (kind) {
    case "generate":
    case "generate_stream":
      return { path: `${base}/${kind}`, body: { text_input: WORDS, max_tokens: 32 } };
    case "chat":
      return { path: "/v1/chat/completions", body: { model, messages, max_tokens: 64 } };
    case "chat_stream":
      return { path: "/v1/chat/completions", body: { model, messages, max_tokens: 64, stream: true } };
    case "completion":
      return { path: "/v1/completions", body: { model, prompt: WORDS, max_tokens: 64 } };
    default:
      return inference(base, metadata);
  }
}

function inference(base, metadata) {
  const path = `${base}/infer`;
  if (!metadata) {
    const inputs = [{ name: "INPUT0", datatype: "FP32", shape: [1, 4], data: [0, 0, 0, 0] }];
    return { path, body: { inputs }, note: "No engine tells this model's inputs: put yours in." };
  }
  const inputs = metadata.inputs.map(({ name, datatype, shape }) => {
    const size = shape.map((length) => (length < 1 ? 1 : length));
    const total = size.reduce((product, length) => product * length, 1);
    return { name, datatype, shape: size, data: total <= MOST_VALUES ? Array(total).fill(zero(datatype)) : [] };
  });
  const isCut = inputs.some((input) => !input.data.length);
  return { path, body: { inputs }, note: isCut ? "An input is too long to be filled in here." : "" };
}

function zero(datatype) {
  if (datatype === "BYTES") return "text";
  if (datatype === "BOOL") return false;
  return 0;
}

/** Whether the reply comes in pieces. */
export function needsStream({ path, body }) {
  return /\/(generate_stream|infer_stream)$/.test(path.split("?")[0]) || body?.stream === true;
}
