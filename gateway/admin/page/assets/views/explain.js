// Explain: facts of a request, and what the rules make of it, route by route.

import { call } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { badge, field, panel, readPairs, select, tellPairs, text, trouble } from "../core/parts.js";

const OPERATIONS = ["infer", "generate", "stream", "chat", "completion", "embedding"];

export async function show(root, { query, signal }) {
  const inputs = {
    model: text({ id: "model", required: true, value: query.get("model") ?? "" }),
    version: text({ id: "version", inputmode: "numeric" }),
    protocol: select(["rest", "grpc", "openai"], { id: "protocol" }),
    operation: select(OPERATIONS, { id: "operation" }),
    session: text({ id: "session" }),
    tenant: text({ id: "tenant" }),
    has_image: select(
      [
        ["", "not said"],
        ["true", "yes"],
        ["false", "no"],
      ],
      { id: "has_image" },
    ),
    header: h("textarea", { id: "header", rows: 2, spellcheck: "false", placeholder: "x-tier: premium" }),
    parameter: h("textarea", { id: "parameter", rows: 2, spellcheck: "false", placeholder: "priority: 1" }),
    input: h("textarea", { id: "input", rows: 2, spellcheck: "false", placeholder: "INPUT0: FP32 1,3,224,224" }),
    files: h("textarea", { id: "files", rows: 12, spellcheck: "false" }),
  };
  const isCandidate = h("input", { type: "checkbox", id: "candidate" });
  const candidate = h(
    "div",
    { hidden: true },
    field("Candidate rules", inputs.files, "asked in place of those in force; nothing is activated"),
  );
  isCandidate.addEventListener("change", () => {
    candidate.hidden = !isCandidate.checked;
    if (isCandidate.checked && !inputs.files.value) takeCurrent(inputs.files, signal);
  });
  const answer = h("div", { class: "stack", "aria-live": "polite" });
  const form = h(
    "form",
    { class: "panel" },
    h(
      "div",
      { class: "fields" },
      field("Model", inputs.model),
      field("Version", inputs.version),
      field("Protocol", inputs.protocol),
      field("Operation", inputs.operation),
      field("Session", inputs.session),
      field("Tenant", inputs.tenant),
      field("Has an image", inputs.has_image),
    ),
    h(
      "div",
      { class: "fields" },
      field("Headers", inputs.header, "name: value, a line each"),
      field("Parameters", inputs.parameter, "name: value, a line each"),
      field("Inputs", inputs.input, "name: DATATYPE shape, a line each"),
    ),
    h(
      "div",
      { class: "check" },
      isCandidate,
      h("label", { for: "candidate" }, "Ask a candidate file instead of the rules in force"),
    ),
    candidate,
    h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Explain")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      fill(answer, told(await call("POST", "/rules/explain", facts(inputs, isCandidate.checked), { signal })));
    } catch (error) {
      if (error.name !== "AbortError") fill(answer, trouble(error));
    }
  });
  root.append(form, answer);
}

async function takeCurrent(files, signal) {
  const { files: texts } = await currentFiles(signal);
  files.value = Object.values(texts)[0] ?? "";
}

async function currentFiles(signal) {
  const { version } = await call("GET", "/rules", null, { signal });
  return call("GET", `/rules/versions/${version.number ?? version}`, null, { signal });
}

function facts(inputs, isCandidate) {
  const told = { model: inputs.model.value, protocol: inputs.protocol.value, operation: inputs.operation.value };
  for (const name of ["version", "session", "tenant"]) {
    if (inputs[name].value) told[name] = inputs[name].value;
  }
  if (inputs.has_image.value) told.has_image = inputs.has_image.value === "true";
  if (inputs.header.value.trim()) told.header = Object.fromEntries(readPairs(inputs.header.value));
  if (inputs.parameter.value.trim())
    told.parameter = Object.fromEntries(readPairs(inputs.parameter.value).map(([name, value]) => [name, read(value)]));
  if (inputs.input.value.trim()) told.input = readPairs(inputs.input.value).map(tensor);
  if (isCandidate) told.files = { "candidate.yaml": inputs.files.value };
  return told;
}

function read(value) {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function tensor([name, value]) {
  const [datatype, shape = ""] = value.split(/\s+/);
  return { name, datatype, shape: shape.replace(/[[\]]/g, "").split(",").filter(Boolean).map(Number) };
}

function told({ steps, decision, assignment }) {
  return [decided(decision, assignment), panel("Routes, in order", h("ol", { class: "steps" }, steps.map(step)))];
}

function decided(decision, assignment) {
  if (!decision?.route)
    return panel(
      "Decision",
      h("p", {}, badge("bad", "no route"), " No rule takes this request: its caller reads 404."),
    );
  const facts = { Route: decision.route, Engine: decision.engine, "Model there": decision.model, Arm: decision.arm };
  if (assignment) {
    Object.assign(facts, {
      Experiment: assignment.experiment,
      Unit:
        assignment.unit === null
          ? "none in this request: the arm is drawn by chance"
          : `${assignment.unit_kind}: ${assignment.unit}`,
    });
  }
  const list = h("dl", { class: "pairs" });
  tellPairs(list, facts);
  return panel("Decision", list, assignment?.draws?.length ? drawsOf(assignment) : null);
}

/** Each arm's draw for this unit. */
function drawsOf({ draws, arm }) {
  const row = (draw) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, draw.arm, draw.arm === arm ? " ✓" : ""),
      Object.entries(draw)
        .filter(([name]) => name !== "arm")
        .map(([, value]) =>
          h(
            "td",
            { class: "number" },
            typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value),
          ),
        ),
    );
  const names = Object.keys(draws[0]).filter((name) => name !== "arm");
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Arm"),
    names.map((name) => h("th", { scope: "col", class: "number" }, name)),
  );
  return h("div", { class: "scroller" }, h("table", {}, h("thead", {}, head), h("tbody", {}, draws.map(row))));
}

const VERDICTS = {
  matched: ["good", "matched"],
  failed: ["bad", "does not match"],
  "not asked": ["idle", "not asked"],
};

function step({ route, verdict, checks }) {
  return h(
    "li",
    {},
    h("div", { class: "row" }, h("strong", {}, route), badge(...(VERDICTS[verdict] ?? ["idle", verdict]))),
    checks?.length ? h("ul", { class: "checks" }, checks.map(check)) : null,
  );
}

function check({ key, expected, actual, holds }) {
  return h(
    "li",
    { class: holds ? "holds" : "fails" },
    h("span", { "aria-hidden": "true" }, holds ? "✓ " : "✗ "),
    h("span", { class: "hidden" }, holds ? "holds: " : "fails: "),
    h("code", {}, key),
    " wants ",
    h("code", {}, expected),
    ", the request has ",
    actual === null || actual === undefined ? "none" : h("code", {}, actual),
  );
}
