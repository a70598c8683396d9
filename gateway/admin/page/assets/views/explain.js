// Explain: facts of a request, and what the rules make of it, route by route.

import { call, may } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { editor } from "../core/editor.js";
import { digits, percent } from "../core/format.js";
import { badge, field, panel, readPairs, select, tellPairs, text, trouble } from "../core/parts.js";
import { intervals } from "./intervals.js";

const OPERATIONS = ["infer", "generate", "stream", "chat", "completion", "embedding"];

export async function show(root, { query, signal }) {
  const inputs = {
    model: text({ id: "model", required: true, value: query.get("model") ?? "" }),
    version: text({ id: "version", inputmode: "numeric" }),
    protocol: select(["rest", "grpc", "openai"], { id: "protocol" }),
    operation: select(OPERATIONS, { id: "operation" }),
    session: text({ id: "session" }),
    tenant: text({ id: "tenant" }),
    force: text({ id: "force", placeholder: "EXPERIMENT=ARM" }),
    image: h("input", { type: "checkbox", id: "image" }),
    header: h("textarea", { id: "header", rows: 2, spellcheck: "false", placeholder: "x-tier: premium" }),
    parameter: h("textarea", { id: "parameter", rows: 2, spellcheck: "false", placeholder: "priority: 1" }),
    input: h("textarea", { id: "input", rows: 2, spellcheck: "false", placeholder: "INPUT0: FP32 1,3,224,224" }),
  };
  const candidate = candidateFiles(signal);
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
      field("Forced arm", inputs.force),
    ),
    h(
      "div",
      { class: "fields wide" },
      field("Headers", inputs.header, "name: value, a line each"),
      field("Parameters", inputs.parameter, "name: value, a line each"),
      field("Inputs", inputs.input, "name: DATATYPE shape, a line each"),
    ),
    h("div", { class: "check" }, inputs.image, h("label", { for: "image" }, "It has an image")),
    candidate.element,
    h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Explain")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const files = candidate.files();
      fill(
        answer,
        told(await call("POST", "/rules/explain", { ...facts(inputs), ...(files && { files }) }, { signal })),
      );
      candidate.show([]);
    } catch (error) {
      if (error.name === "AbortError") return;
      candidate.show(error.body?.problems ?? []);
      fill(answer, trouble(error));
    }
  });
  root.append(form, answer);
}

/** Rule files that are asked in place of those in force; they begin as these. */
function candidateFiles(signal) {
  const isWanted = h("input", { type: "checkbox", id: "candidate", disabled: !may("admin") });
  const place = h("div", { class: "stack", hidden: true });
  let editors = null;
  isWanted.addEventListener("change", async () => {
    place.hidden = !isWanted.checked;
    if (editors) return;
    const { files } = await call("GET", "/rules/export", null, { signal });
    editors = Object.entries(files).map(([name, content]) => [name, editor(`Candidate ${name}`)]);
    for (const [name, made] of editors) made.set(files[name]);
    fill(
      place,
      editors.map(([name, made]) => [h("h3", {}, name), made.element]),
    );
  });
  return {
    element: [
      h(
        "div",
        { class: "check" },
        isWanted,
        h(
          "label",
          { for: "candidate" },
          "By a candidate of the rules, which is not activated",
          may("admin") ? "" : " (needs the role admin)",
        ),
      ),
      place,
    ],
    files: () =>
      isWanted.checked && editors ? Object.fromEntries(editors.map(([name, made]) => [name, made.value])) : null,
    show: (problems) => editors?.forEach(([name, made]) => made.show(problems.filter(({ file }) => file === name))),
  };
}

function facts(inputs) {
  const told = {
    model: inputs.model.value,
    protocol: inputs.protocol.value,
    operation: inputs.operation.value,
    has_image: inputs.image.checked,
  };
  for (const name of ["version", "session", "tenant", "force"]) {
    if (inputs[name].value) told[name] = inputs[name].value;
  }
  told.header = Object.fromEntries(readPairs(inputs.header.value));
  told.parameter = Object.fromEntries(readPairs(inputs.parameter.value).map(([name, value]) => [name, read(value)]));
  told.input = readPairs(inputs.input.value).map(tensor);
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

function told({ steps, decision, assignment, targets }) {
  return [
    decided(decision, assignment, targets),
    panel("Routes, in order", h("ol", { class: "steps" }, steps.map(step))),
  ];
}

function decided(decision, assignment, targets) {
  if (!decision && !targets.length) {
    return panel(
      "Decision",
      h("p", {}, badge("bad", "no route"), " No rule takes this request: its caller reads 404."),
    );
  }
  const list = h("dl", { class: "pairs" });
  tellPairs(list, {
    Route: decision?.route,
    Arm: decision?.arm && `${decision.arm}${decision.forced ? " (forced)" : ""}`,
    Engine: decision?.engine,
    "Model there": decision?.model,
    Endpoints: decision?.endpoints.join(", "),
    "Endpoints without the model": decision?.lacking.join(", "),
    Fallbacks: decision?.fallbacks.join(", then "),
    Session: decision?.session,
    Limits: decision?.limits.join(", "),
    Budgets: decision?.budgets.join(", "),
    "All that it goes to": targets.map(({ engine, model }) => `${engine} as ${model}`).join(", "),
  });
  return panel(
    "Decision",
    list,
    assignment && [h("h3", {}, `Experiment ${assignment.experiment}`), assigned(assignment)],
  );
}

/** Where the request's unit falls, and whose that place is. */
function assigned({ unit_kind: kind, unit, arm, forced, position, layer, place, draws }) {
  const list = h("dl", { class: "pairs" });
  tellPairs(list, {
    Unit: unit === null ? `none (${kind}): the arm is drawn by chance, for this request alone` : `${kind} ${unit}`,
    Layer: layer && `${layer}, at ${digits(place)}`,
    Share: !layer && place !== null ? `at ${digits(place)}` : null,
    Position: position !== null && digits(position),
    Arm: arm === null ? "none: the experiment has not got this unit" : `${arm}${forced ? ", which was forced" : ""}`,
    Shares: draws.map(({ arm: name, share }) => `${name} ${percent(share)}`).join(", "),
  });
  return [list, draws.length ? intervals(draws, position) : null];
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
