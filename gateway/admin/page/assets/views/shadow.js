// One mirrored route: what of its candidate's answers agrees, how far, and which requests differ most.

import { call, piece, request } from "../core/api.js";
import { action, ask, toast } from "../core/dialogs.js";
import { fill, h, tell } from "../core/dom.js";
import { clock, count, digits, percent, seconds } from "../core/format.js";
import { every } from "../core/polling.js";
import { panel, stat, stats, table } from "../core/parts.js";

const QUANTILES = ["least", "mean", "p50", "p90", "p99", "most"];

export async function show(root, { detail: route, signal, heading }) {
  const path = `/shadows/${piece(route)}`;
  const about = h("p", { class: "muted" });
  const numbers = {
    agreement: stat("Agree"),
    compared: stat("Compared"),
    mirrored: stat("Mirrored"),
    differing: stat("Differ"),
    candidate_failed: stat("Candidate failed"),
    primary_failed: stat("Own engine failed"),
    both_failed: stat("Both failed"),
  };
  const latency = quantileTable("Latency", "Answer of", seconds);
  const outputs = h("div", { class: "stack" });
  const worst = worstTable();
  const dropped = h("p", { class: "muted" });
  heading.after(
    about,
    h(
      "div",
      { class: "row" },
      reportButton(path, route),
      action("Begin anew", "operator", () => forget(path, route), { class: "danger" }),
    ),
  );
  root.append(
    stats(Object.values(numbers)),
    panel("Latency", latency),
    outputs,
    panel("Which differ most", worst),
    dropped,
  );
  const look = async () => {
    const told = await call("GET", path, null, { signal });
    tell(about, aboutTold(told));
    for (const [name, shown] of Object.entries(numbers))
      shown.set(name === "agreement" ? percent(told[name]) : count(told[name]));
    latency.set(rowsOf(told.latency));
    fill(outputs, outputsTold(told.tensors), outputsTold(told.texts));
    worst.set(told.worst.map((each, index) => ({ ...each, key: `${each.request_id} ${index}` })));
    tell(dropped, droppedTold(told.dropped));
  };
  await every(5000, look, signal);
}

function aboutTold({ shadow, primary_engines: own, since, active }) {
  const model = shadow.model ? `, model ${shadow.model}` : "";
  const tolerance = `${digits(shadow.tolerance.absolute)} absolute or ${digits(shadow.tolerance.relative)} relative`;
  const when = since ? `since ${clock(since)}` : "nothing mirrored yet";
  return `${own.join(", ") || "Its own engine"} against ${shadow.engine}${model}; ${percent(shadow.sample)} of requests, ${when}; they agree within ${tolerance}.${active === false ? " It is mirrored no more." : ""}`;
}

/** The whole report with its plots is a page of its own, which a link could not open: it would bring no key. */
function reportButton(path, route) {
  return action("Download the report", "viewer", async () => {
    const response = await request("GET", `${path}/report`);
    const url = URL.createObjectURL(await response.blob());
    h("a", { href: url, download: `shadow-${route}.html` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
}

function forget(path, route) {
  return ask({
    title: "Begin anew",
    text: `The report of ${route} forgets all that was compared.`,
    confirm: "Begin anew",
    danger: true,
    run: async () => {
      await call("DELETE", path);
      toast("The report begins anew");
    },
  });
}

function rowsOf(found) {
  return Object.entries(found)
    .filter(([, told]) => told?.count)
    .map(([name, told]) => ({ name: name.replaceAll("_", " "), ...told }));
}

function quantileTable(caption, first, write) {
  return table(
    caption,
    [
      { label: first, cell: (row) => row.name },
      { label: "Count", cell: (row) => count(row.count), number: true },
      ...QUANTILES.map((name) => ({ label: name, cell: (row) => write(row[name]), number: true })),
    ],
    (row) => row.name,
    "Nothing compared yet.",
  );
}

function outputsTold(outputs) {
  return Object.entries(outputs).map(([name, found]) => {
    const shown = quantileTable(`Output ${name}`, "Of the output", digits);
    shown.set(rowsOf(Object.fromEntries(Object.entries(found).filter(([, value]) => value?.count !== undefined))));
    const problems = Object.entries(found.problems ?? {}).map(
      ([problem, number]) => `; ${count(number)} times: ${problem}`,
    );
    return panel(
      name,
      h("p", {}, `${count(found.agreeing)} of ${count(found.compared)} agree${problems.join("")}.`),
      shown,
    );
  });
}

function worstTable() {
  return table(
    "Which differ most",
    [
      { label: "Request", cell: (each) => each.request_id, code: true },
      { label: "When", cell: (each) => clock(each.time) },
      { label: "Model", cell: (each) => each.model, code: true },
      { label: "Asked", cell: asked, wide: true },
      { label: "Difference", cell: (each) => each.outputs.map(difference).join("; "), wide: true },
    ],
    (each) => each.key,
    "None differs.",
  );
}

function asked({ inputs, bytes, excerpt }) {
  const shapes = inputs.map((each) => `${each.name} ${each.datatype} [${each.shape.join(", ")}]`);
  return [...shapes, `${count(bytes)} bytes`, excerpt].filter(Boolean).join(", ");
}

function difference(each) {
  if (each.index !== undefined)
    return `${each.name} at [${each.index}]: ${digits(each.primary)} became ${digits(each.candidate)}, ${count(each.outside)} elements outside`;
  if (each.problem) return `${each.name}: ${each.problem}`;
  if (each.first_character !== null && each.first_character !== undefined)
    return `${each.name}: part at character ${each.first_character}`;
  return `${each.name}: differs`;
}

function droppedTold(dropped) {
  const told = Object.entries(dropped ?? {}).map(
    ([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`,
  );
  return told.length ? `Not mirrored: ${told.join(", ")}.` : "";
}
