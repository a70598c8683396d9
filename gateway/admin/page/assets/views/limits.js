// Limits: what each lets through, who is near it, and other amounts for it.

import { call, piece } from "../core/api.js";
import { action, ask, REASON, toast } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { count, digits, seconds } from "../core/format.js";
import { every } from "../core/polling.js";
import { badge, table } from "../core/parts.js";

const AMOUNTS = {
  requests_per_second: "Requests per second",
  burst: "Burst (requests)",
  tokens_per_minute: "Tokens per minute",
  concurrency: "Requests at the same time",
  max_wait: "Longest wait (seconds)",
};

export async function show(root, { signal }) {
  const shown = table(
    "Limits",
    [
      { label: "Limit", cell: (limit) => limit.name },
      {
        label: "Counted",
        cell: (limit) =>
          `${limit.per.length ? `per ${limit.per.join(", ")}` : "all together"}${limit.routes.length ? ` of ${limit.routes.join(", ")}` : ""}`,
      },
      { label: "Amount", cell: amounts },
      { label: "Admitted", cell: (limit) => count(limit.admitted), number: true },
      { label: "Refused", cell: (limit) => count(limit.refused), number: true },
      { label: "Waited", cell: (limit) => count(limit.waited), number: true },
      { label: "In use", cell: (limit) => count(limit.in_use), number: true },
      { label: "Accounts", cell: (limit) => count(limit.accounts), number: true },
      {
        label: "Shared",
        cell: (limit) => (limit.shared ? badge("good", "by all") : badge("warning", "each worker")),
        same: (limit) => limit.shared,
      },
      {
        label: "",
        cell: (limit) => action("Change", "admin", () => change(limit, look), { class: "small" }),
        same: (limit) => limit,
      },
    ],
    (limit) => limit.name,
    "The rules declare no limits.",
  );
  const look = async () => shown.set((await call("GET", "/limits", null, { signal })).limits);
  root.append(
    shown,
    h("p", { class: "muted" }, "A change is a new version of the rules; it is written there with its reason."),
  );
  await every(2000, look, signal);
}

function amounts(limit) {
  const kept = Object.keys(AMOUNTS).filter((name) => limit[name]);
  return kept
    .map((name) => `${name === "max_wait" ? seconds(limit[name]) : digits(limit[name])} ${name.replaceAll("_", " ")}`)
    .join(", ");
}

function change(limit, look) {
  const known = Object.keys(AMOUNTS).filter((name) => limit[name] !== undefined);
  return ask({
    title: `Limit ${limit.name}`,
    text: "What is left empty stays as it is.",
    fields: [
      ...known.map((name) => ({ name, label: AMOUNTS[name], type: "number", min: 0, value: limit[name] })),
      REASON,
    ],
    confirm: "Change",
    run: async (values) => {
      for (const name of known) if (values[name] === limit[name]) delete values[name];
      await call("PUT", `/limits/${piece(limit.name)}`, values);
      toast(`Limit ${limit.name} is changed`);
      await look();
    },
  });
}
