// Replay: how rules that are not in force yet would change where recorded requests go.

import { call } from "../core/api.js";
import { ask, show as showDialog } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { count } from "../core/format.js";
import { stat, stats, table } from "../core/parts.js";

/** Ask which recording, and tell what `files` would make of it. */
export async function replay(files) {
  const { recordings } = await call("GET", "/recordings");
  if (!recordings.length) throw new Error("There is no recording: make one under Recordings.");
  let told = null;
  const isDone = await ask({
    title: "Replay",
    text: "Recorded requests are decided by this copy and by the rules in force; nothing is sent.",
    fields: [{ name: "recording", label: "Recording", options: recordings.map(({ name }) => name) }],
    confirm: "Replay",
    run: async ({ recording }) => {
      told = await call("POST", "/rules/replay", { recording, files });
    },
  });
  if (isDone) showDialog("What would change", report(told));
}

function report({ facts, changed, unknown, without_route: lost, changes, unrecorded }) {
  return [
    stats(
      ...[
        ["Requests", facts],
        ["Go elsewhere", changed],
        ["Without a route", lost],
        ["Not known", unknown],
      ].map(([label, number]) => stat(label, count(number))),
    ),
    unrecorded.length
      ? h("p", { class: "problem" }, `Not recorded, though these rules ask for it: ${unrecorded.join(", ")}`)
      : null,
    Object.entries(changes).map(([what, found]) => changesOf(what, found)),
  ];
}

function changesOf(what, found) {
  const shown = table(
    `Changes of ${what}`,
    [
      { label: "From", cell: (each) => each.from },
      { label: "To", cell: (each) => each.to },
      { label: "Requests", cell: (each) => count(each.count), number: true },
      {
        label: "For example",
        cell: (each) => each.examples.slice(0, 2).map(example).join("; "),
        code: true,
        wide: true,
      },
    ],
    (each) => `${each.from}\n${each.to}`,
    "None.",
  );
  shown.set(found);
  return [h("h3", {}, what), shown];
}

function example(fact) {
  const said = typeof fact === "string" ? fact : JSON.stringify(fact);
  return said.length > 160 ? `${said.slice(0, 160)} …` : said;
}
