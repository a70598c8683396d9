// Audit: every call that changed something, or tried to; and from which level on the gateway logs.

import { call, may, path } from "../core/api.js";
import { toast } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { clock } from "../core/format.js";
import { badge, field, select, table } from "../core/parts.js";

export async function show(root, { signal }) {
  const limit = select(["100", "300", "1000"], { id: "limit" });
  const shown = table(
    "Audit",
    [
      { label: "Time", cell: (each) => clock(each.time) },
      { label: "Who", cell: (each) => `${each.name} (${each.role})` },
      { label: "Call", cell: (each) => `${each.method} ${decoded(each.path)}${queryOf(each)}`, code: true },
      {
        label: "Answer",
        cell: (each) => badge(each.status < 400 ? "good" : "bad", String(each.status)),
        same: (each) => each.status,
      },
      {
        label: "With",
        cell: (each) => (each.body === null || each.body === undefined ? "" : brief(each.body)),
        code: true,
        wide: true,
      },
    ],
    (each) => `${each.time} ${each.method} ${each.path}`,
    "Nothing has been changed yet.",
  );
  const look = async () =>
    shown.set((await call("GET", path("/audit", { limit: limit.value }), null, { signal })).audit);
  limit.addEventListener("change", look);
  const level = await logLevel(signal);
  root.append(h("div", { class: "row" }, field("At most", limit), field("The gateway logs from", level)), shown);
  await look();
}

/** From which level on the gateway logs; operators change it. */
async function logLevel(signal) {
  const chosen = select(["debug", "info", "warning", "error"], { id: "log-level" });
  let { level } = await call("GET", "/log-level", null, { signal });
  chosen.value = level;
  chosen.disabled = !may("operator");
  if (chosen.disabled) chosen.title = "needs the role operator";
  chosen.addEventListener("change", async () => {
    try {
      ({ level } = await call("PUT", "/log-level", { level: chosen.value }));
      toast(`The gateway logs from ${level} on`);
    } catch (error) {
      chosen.value = level;
      toast(error.message, "bad");
    }
  });
  return chosen;
}

function queryOf({ query }) {
  const told = new URLSearchParams(query ?? {}).toString();
  return told && `?${told}`;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function brief(body) {
  const told = typeof body === "string" ? body : JSON.stringify(body);
  return told.length > 300 ? `${told.slice(0, 300)} …` : told;
}
