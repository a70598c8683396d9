// Playground: a request as a client would send it, and which way it went, how long each phase took.

import { call, piece, request } from "../core/api.js";
import { action } from "../core/dialogs.js";
import { fill, h, tell } from "../core/dom.js";
import { seconds } from "../core/format.js";
import { badge, field, panel, readPairs, select, tellPairs, text, trouble } from "../core/parts.js";
import { drawPhases } from "./phases.js";
import { KINDS, needsStream, template } from "./templates.js";

export async function show(root, { query, signal }) {
  const model = text({ id: "model", value: query.get("model") ?? "", list: "models" });
  const kind = select(
    Object.entries(KINDS).map(([value, { label }]) => [value, label]),
    { id: "kind" },
  );
  const where = text({ id: "path", class: "code", required: true, value: "/v2/models/MODEL/infer" });
  const headers = h("textarea", { id: "headers", rows: 2, spellcheck: "false", placeholder: "x-tier: premium" });
  const body = h("textarea", { id: "body", rows: 14, spellcheck: "false" });
  const known = h("datalist", { id: "models" });
  const state = h("p", { class: "muted", role: "status" });
  const shown = reply();
  let stop = new AbortController();
  signal.addEventListener("abort", () => stop.abort());

  let edits = 0; // what somebody types while an engine is asked is not written over
  for (const input of [where, body]) input.addEventListener("input", () => (edits += 1));

  let fills = 0; // only the last choice of kind and model fills the form in
  let filling = Promise.resolve();
  const fillOnce = async () => {
    tell(state, "");
    const before = edits;
    const turn = (fills += 1);
    const filled = template(kind.value, model.value || "MODEL", await describe(model.value, kind.value, signal));
    if (edits !== before || turn !== fills) return;
    where.value = filled.path;
    body.value = JSON.stringify(filled.body, null, 2);
    if (filled.note) tell(state, filled.note);
  };
  const fillIn = () => (filling = fillOnce());
  const send = async (button) => {
    button.disabled = true; // one click sends once, however long the template takes
    await filling.catch(() => null);
    button.disabled = false;
    stop.abort();
    stop = new AbortController();
    const wanted = { path: where.value, headers: Object.fromEntries(readPairs(headers.value)) };
    if (body.value.trim()) wanted.body = parsed(body.value);
    button.disabled = true;
    cancel.disabled = false;
    try {
      await (needsStream(wanted) ? sendStream : sendWhole)(wanted, shown, stop.signal);
    } catch (error) {
      if (error.name === "AbortError") shown.end("cancelled");
      else fill(shown.element, trouble(error));
    } finally {
      button.disabled = false;
      cancel.disabled = true;
    }
  };
  const cancel = h("button", { type: "button", disabled: true, onclick: () => stop.abort() }, "Cancel");

  kind.addEventListener("change", fillIn);
  model.addEventListener("change", fillIn);
  await fillIn();
  root.append(
    h(
      "div",
      { class: "columns" },
      panel(
        "Request",
        h(
          "div",
          { class: "fields" },
          field("Model", model, "its template is filled in from what its engine says of it"),
          field("What", kind),
        ),
        known,
        field("Path", where),
        field("Headers", headers, "name: value, a line each"),
        field("Body", body),
        h("div", { class: "row" }, action("Send", "operator", send, { class: "primary" }), cancel, state),
      ),
      shown.element,
    ),
  );
  await offerModels(known, signal);
}

/** Names that the gateway's engines have, to choose from. */
async function offerModels(list, signal) {
  const { engines } = await call("GET", "/engines", null, { signal });
  const names = new Set(engines.flatMap((engine) => engine.endpoints.flatMap((endpoint) => endpoint.models ?? [])));
  fill(
    list,
    [...names].sort().map((value) => h("option", { value })),
  );
}

/** The model's metadata where V2 has them; null where nobody tells. */
async function describe(model, kind, signal) {
  if (!model || KINDS[kind].isOpenAI) return null;
  const asked = { path: `/v2/models/${piece(model)}`, method: "GET" };
  try {
    const { status, body } = await call("POST", "/playground", asked, { signal });
    return status === 200 && Array.isArray(body.inputs) ? body : null;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

/** JSON as what it says, anything else as it stands: the gateway may be tried with bad bodies, too. */
function parsed(body) {
  try {
    return JSON.parse(body);
  } catch {
    return body;
  }
}

async function sendWhole(wanted, shown, signal) {
  shown.begin();
  const whole = await call("POST", "/playground", wanted, { signal });
  shown.tell(whole);
  shown.text(typeof whole.body === "string" ? whole.body : JSON.stringify(whole.body, null, 2));
  shown.end("", whole.seconds);
}

async function sendStream(wanted, shown, signal) {
  shown.begin();
  const response = await request("POST", "/playground/stream", wanted, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) hear(JSON.parse(line), shown);
  }
}

function hear(told, shown) {
  if (told.status !== undefined) shown.tell(told);
  else if (told.text !== undefined) shown.add(told.text, told.seconds);
  else shown.end(told.error ?? "", told.seconds);
}

/** The panel of the reply: its way, its phases, its text as it comes. */
function reply() {
  const element = panel("Reply", h("p", { class: "muted" }, "Nothing sent yet."));
  const way = h("dl", { class: "pairs" });
  const phases = h("div");
  const body = h("pre", { class: "reply", tabindex: "0", "aria-label": "The reply's body" });
  const ended = h("p", { class: "muted", role: "status" });
  let begun = null;
  let firstAt = null;
  return {
    element,
    begin() {
      begun = firstAt = null;
      fill(body);
      fill(way);
      way.elementsByKey?.clear();
      fill(phases);
      tell(ended, "Waiting …");
      fill(element, h("h2", {}, "Reply"), way, phases, body, ended);
    },
    tell(told) {
      begun = told;
      const { status, route, arm, engine, endpoint } = told;
      tellPairs(way, {
        Status: badge(status < 400 ? "good" : "bad", String(status)),
        Route: route,
        Arm: arm,
        Engine: engine,
        Endpoint: endpoint,
        "Request id": told.request_id,
        Reason: told.headers["x-pointsman-reason"],
      });
    },
    text: (all) => tell(body, all),
    add(more, at) {
      firstAt ??= at;
      body.append(more);
      body.scrollTop = body.scrollHeight;
      tell(ended, `First text after ${seconds(firstAt)} …`);
    },
    end(why, total) {
      if (begun && total !== undefined) drawPhases(phases, begun.phases, total);
      const first = firstAt === null ? "" : `First text after ${seconds(firstAt)}. `;
      tell(ended, why ? `${first}Ended: ${why}` : `${first}Ended after ${seconds(total)}.`);
    },
  };
}
