// Audit: every call that changed something, or tried to.

import { call, path } from "../core/api.js";
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
  root.append(h("div", { class: "row" }, field("At most", limit)), shown);
  await look();
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
