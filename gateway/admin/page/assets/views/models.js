// Models over the fleet: where each is ready; loaded and unloaded on all replicas at once.

import { call, piece } from "../core/api.js";
import { action, ask, REASON, show as showDialog, toast } from "../core/dialogs.js";
import { fill, h } from "../core/dom.js";
import { count, seconds } from "../core/format.js";
import { badge, field, table, text } from "../core/parts.js";

export async function show(root, { signal }) {
  const unanswered = h("div");
  const filter = text({ id: "filter" });
  const shown = table(
    "Models",
    [
      { label: "Model", cell: (each) => each.name, code: true },
      { label: "Ready", cell: readiness, same: (each) => [each.ready, each.endpoints] },
      { label: "Where", cell: places, same: (each) => each.engines, wide: true },
      { label: "", cell: (each) => buttons(each, look), same: (each) => each.engines },
    ],
    (each) => each.name,
    "No engine tells of a model.",
  );
  let all = [];
  const draw = () => shown.set(all.filter((each) => each.name.toLowerCase().includes(filter.value.toLowerCase())));
  const look = async () => {
    const told = await call("GET", "/models", null, { signal });
    all = told.models;
    fill(unanswered, told.unanswered.length ? silent(told.unanswered) : null);
    draw();
  };
  filter.addEventListener("input", draw);
  const another = action("Load another model", "operator", () => control("load", "", look));
  const again = action("Ask again", "viewer", look);
  root.append(h("div", { class: "row bottom" }, field("Filter", filter), another, again), unanswered, shown);
  await look();
}

function silent(unanswered) {
  const lines = unanswered.map(({ engine, url, detail }) => h("li", {}, `${engine} at ${url}: ${detail}`));
  return h("div", { class: "panel" }, h("h2", {}, "Not told"), h("ul", { class: "said-lines" }, lines));
}

function readiness({ ready, endpoints }) {
  return badge(ready === endpoints ? "good" : ready ? "warning" : "idle", `${ready} of ${endpoints}`);
}

function places({ engines }) {
  return h(
    "ul",
    { class: "plain" },
    engines.flatMap(({ engine, endpoints }) =>
      endpoints.map(({ url, ready, state, versions, reason }) => {
        const which = versions.length ? ` (version ${versions.join(", ")})` : "";
        const words = `${engine} at ${url}: ${state.toLowerCase()}${which}${reason ? `, ${reason}` : ""}`;
        return h("li", { class: ready ? null : "muted" }, `${ready ? "● " : "○ "}${words}`);
      }),
    ),
  );
}

function buttons({ name }, look) {
  const of = (verb) => ({ class: "small", "aria-label": `${verb} ${name}` });
  return h(
    "div",
    { class: "row" },
    action("Load", "operator", () => control("load", name, look), of("Load")),
    action("Unload", "operator", () => control("unload", name, look), of("Unload")),
  );
}

/** Ask where and how, and show what became of it at each endpoint. */
async function control(verb, name, look) {
  const title = verb === "load" ? "Load" : "Unload";
  let answer = null;
  const isDone = await ask({
    title: name ? `${title} ${name}` : `${title} a model`,
    text: "At all endpoints at the same time, wherever the rules send the model, or at one engine.",
    fields: [
      ...(name ? [] : [{ name: "model", label: "Model", required: true }]),
      { name: "engine", label: "Engine", hint: "empty: wherever the rules send it" },
      { name: "quorum", label: "Needed", value: "all", hint: "all, majority, or a number of endpoints" },
      REASON,
    ],
    confirm: title,
    danger: verb === "unload",
    run: async ({ model = name, quorum = "all", ...values }) => {
      const needed = /^\d+$/.test(quorum) ? Number(quorum) : quorum;
      try {
        answer = await call("POST", `/models/${piece(model)}/${verb}`, { ...values, quorum: needed });
      } catch (error) {
        if (!error.body?.endpoints) throw error;
        answer = error.body;
      }
    },
  });
  if (!isDone) return;
  await look();
  if (answer.succeeded >= answer.needed) toast(`${title}: ${answer.succeeded} of ${answer.endpoints.length} endpoints`);
  else showDialog("Too few have done it", outcome(answer));
}

function outcome({ succeeded, needed, endpoints }) {
  const shown = table(
    "Endpoints",
    [
      { label: "", cell: ({ ok }) => badge(ok ? "good" : "bad", ok ? "done" : "failed"), same: ({ ok }) => ok },
      { label: "Endpoint", cell: ({ engine, url }) => `${engine} at ${url}` },
      { label: "Took", cell: (each) => seconds(each.seconds), number: true },
      { label: "What it says", cell: (each) => each.detail, wide: true },
    ],
    ({ engine, url }) => `${engine} ${url}`,
  );
  shown.set(endpoints);
  return [
    h(
      "p",
      {},
      `${count(succeeded)} of ${count(endpoints.length)} endpoints have done it; ${count(needed)} were needed.`,
    ),
    shown,
  ];
}
