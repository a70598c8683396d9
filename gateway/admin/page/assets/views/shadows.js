// Shadows: mirrored routes, and how far their candidates agree.

import { call, piece } from "../core/api.js";
import { h } from "../core/dom.js";
import { count, percent } from "../core/format.js";
import { every } from "../core/polling.js";
import { table } from "../core/parts.js";

export async function show(root, { signal }) {
  const shown = table(
    "Shadows",
    [
      {
        label: "Route",
        cell: ({ route }) => h("a", { href: `#/shadows/${piece(route)}` }, route),
        same: ({ route }) => route,
      },
      { label: "Own engine", cell: (each) => each.primary_engines.join(", ") },
      { label: "Candidate", cell: ({ shadow }) => [shadow.engine, shadow.model].filter(Boolean).join(", model ") },
      { label: "Sample", cell: ({ shadow }) => percent(shadow.sample), number: true },
      { label: "Mirrored", cell: (each) => count(each.mirrored), number: true },
      { label: "Compared", cell: (each) => count(each.compared), number: true },
      { label: "Agree", cell: (each) => percent(each.agreement), number: true },
      { label: "Differ", cell: (each) => count(each.differing), number: true },
      { label: "Candidate failed", cell: (each) => count(each.candidate_failed), number: true },
      { label: "", cell: (each) => (each.active === false ? "mirrored no more" : "") },
    ],
    (each) => each.route,
    "No route has a shadow: `shadow: {engine: …}` on a route has its requests mirrored.",
  );
  root.append(shown);
  const look = async () => shown.set((await call("GET", "/shadows", null, { signal })).shadows);
  await every(3000, look, signal);
}
