// Recordings: what rules could ask of a sample of requests, kept to try other rules by.

import { call, path, piece, request } from "../core/api.js";
import { action, ask, REASON, toast } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { clock, count, percent } from "../core/format.js";
import { every } from "../core/polling.js";
import { badge, table } from "../core/parts.js";

export async function show(root, { signal }) {
  const shown = table(
    "Recordings",
    [
      { label: "Recording", cell: (each) => each.name, code: true },
      { label: "", cell: (each) => stateOf(each), same: (each) => each.ended },
      { label: "Began", cell: (each) => clock(each.started) },
      { label: "By", cell: (each) => each.by },
      { label: "Sample", cell: (each) => percent(each.share), number: true },
      { label: "Requests", cell: (each) => `${count(each.facts)} of ${count(each.max_facts)}`, number: true },
      { label: "Left out", cell: (each) => count(each.skipped), number: true },
      { label: "", cell: (each) => buttons(each, look), same: (each) => each.ended },
    ],
    (each) => each.name,
    "Nothing is recorded.",
  );
  const look = async () => shown.set((await call("GET", "/recordings", null, { signal })).recordings);
  const about =
    "A recording holds what rules may ask of requests and what they decided: no bodies, and of headers those that rules ask for. Replay, where rules are edited, says what others would have made of it.";
  root.append(
    h("p", { class: "muted" }, about),
    h(
      "div",
      { class: "row" },
      action("Record", "operator", () => record(look), { class: "primary" }),
    ),
    shown,
  );
  await every(2000, look, signal);
}

function stateOf({ ended }) {
  return ended ? badge("idle", ended) : badge("good", "records");
}

function record(look) {
  return ask({
    title: "Record traffic",
    text: "It ends by itself.",
    fields: [
      { name: "name", label: "Name", hint: "letters, digits, _ . and -; empty: one is made" },
      { name: "percent", label: "Sample (percent of requests)", type: "number", min: 0, value: 1, required: true },
      { name: "seconds", label: "Seconds", type: "number", min: 1, value: 60, required: true },
      { name: "max_facts", label: "Requests at the most", type: "number", min: 1, value: 10000, required: true },
      REASON,
    ],
    confirm: "Record",
    run: async ({ percent: sample, ...values }) => {
      const made = await call("POST", "/recordings", { ...values, sample: sample / 100 });
      toast(`${made.name} records`);
      await look();
    },
  });
}

function buttons({ name, ended }, look) {
  const verb = ended ? "Delete" : "Stop";
  const end = async () => {
    await call("DELETE", `/recordings/${piece(name)}`);
    toast(`${name}: ${ended ? "deleted" : "stopped"}`);
    await look();
  };
  return h(
    "div",
    { class: "row" },
    action("Download", "viewer", () => download(name), { class: "small", "aria-label": `Download ${name}` }),
    action(verb, "operator", end, { class: "small danger", "aria-label": `${verb} ${name}` }),
  );
}

async function download(name) {
  const response = await request("GET", path(`/recordings/${piece(name)}/file`));
  const url = URL.createObjectURL(await response.blob());
  h("a", { href: url, download: `${name}.jsonl` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
