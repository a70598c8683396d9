// A unified diff, coloured, with its signs for whoever sees no colours.

import { h } from "../core/dom.js";

export function diffTold(diff) {
  const lines = diff.split("\n");
  if (!lines.at(-1)) lines.pop();
  if (!lines.length) return h("p", { class: "muted" }, "They say the same.");
  const shown = lines.map((line) => h("div", { class: kindOf(line) }, line || " "));
  return h("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "Differences" }, shown);
}

function kindOf(line) {
  if (/^(---|\+\+\+|@@)/.test(line)) return "place";
  if (line.startsWith("+")) return "added";
  if (line.startsWith("-")) return "removed";
  return null;
}
