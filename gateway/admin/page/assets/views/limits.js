// Limits and budgets: what each lets through, who is near it, and other amounts for it.

import { call, piece } from "../core/api.js";
import { action, ask, REASON, toast } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { count, digits, percent, seconds } from "../core/format.js";
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
  const spent = budgets(() => look());
  const look = async () => {
    const [limits, used] = await Promise.all([
      call("GET", "/limits", null, { signal }),
      call("GET", "/budgets", null, { signal }),
    ]);
    shown.set(limits.limits);
    spent.set(used.budgets.flatMap((budget) => budget.shown.map((account) => ({ budget, ...account }))));
  };
  root.append(
    shown,
    h("p", { class: "muted" }, "A change is a new version of the rules; it is written there with its reason."),
    h("h2", {}, "Budgets"),
    spent,
  );
  await every(2000, look, signal);
}

function budgets(look) {
  return table(
    "Budgets",
    [
      { label: "Budget", cell: (each) => `${each.budget.name} (a ${each.budget.window})` },
      { label: "Account", cell: (each) => each.who },
      {
        label: "Used",
        cell: (each) => [
          h("progress", { "aria-label": `Used by ${each.who}`, max: 1, value: Math.min(1, each.used) }),
          each.used >= 1 ? badge("bad", "exhausted") : badge("good", percent(each.used)),
        ],
        same: (each) => each.used,
      },
      {
        label: "Spent",
        cell: (each) =>
          Object.entries(each.allowed)
            .map(([unit, amount]) => `${digits(each.spent[unit])} of ${digits(amount)} ${unit}`)
            .join(", "),
      },
      { label: "Resets at", cell: (each) => each.budget.reset },
      {
        label: "",
        cell: (each) => action("Reset", "operator", () => reset(each, look), { class: "small" }),
        same: (each) => each.account,
      },
    ],
    (each) => JSON.stringify([each.budget.name, each.account]),
    "No budget has been used in its window.",
  );
}

function reset({ budget, account, who }, look) {
  return ask({
    title: `Budget ${budget.name}`,
    text: `${who} starts over now, before ${budget.reset}.`,
    fields: [REASON],
    confirm: "Reset",
    run: async (values) => {
      await call("POST", `/budgets/${piece(budget.name)}/reset`, { account, ...values });
      toast(`Budget ${budget.name} of ${who} starts over`);
      await look();
    },
  });
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
