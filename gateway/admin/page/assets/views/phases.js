// How long each phase of a request took, as a bar and in numbers.

import { fill, h, s } from "../core/dom.js";
import { seconds } from "../core/format.js";

const MEANING = {
  decide: "the rules, and the body that they asked for",
  wait: "limits, and Redis",
  connect: "until there was a connection",
  retry: "tries that failed",
  engine: "from sent to the first byte",
  rest: "the rest of the reply, and the way to the gateway and back",
};

/** Show the phases that the gateway has told, and what of `total` seconds is left. */
export function drawPhases(element, told, total) {
  if (!told.length) return fill(element);
  const phases = told
    .filter(({ name }) => name in MEANING)
    .map(({ name, milliseconds }) => ({ name, seconds: milliseconds / 1000 }));
  const sum = phases.reduce((all, phase) => all + phase.seconds, 0);
  phases.push({ name: "rest", seconds: Math.max(0, total - sum) });
  const row = ({ name, seconds: took }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), name),
      h("td", { class: "number" }, seconds(took)),
      h("td", { class: "muted" }, MEANING[name]),
    );
  fill(
    element,
    h("h3", {}, "Phases"),
    bar(phases, total),
    h(
      "div",
      { class: "scroller" },
      h(
        "table",
        {},
        h("caption", { class: "hidden" }, "Phases of the request"),
        h(
          "tbody",
          {},
          phases.map(row),
          h(
            "tr",
            {},
            h("th", { scope: "row" }, h("span", { class: "swatch" }), "total"),
            h("td", { class: "number" }, seconds(total)),
            h("td", { class: "muted" }, "as the admin port measured it"),
          ),
        ),
      ),
    ),
  );
  return element;
}

function bar(phases, total) {
  let left = 0;
  const parts = phases.map((phase) => {
    const width = (100 * phase.seconds) / Math.max(total, 1e-9);
    const part = s("rect", { class: phase.name, x: left, y: 0, width, height: 14 });
    left += width;
    return part;
  });
  return s(
    "svg",
    {
      class: "phases",
      viewBox: "0 0 100 14",
      preserveAspectRatio: "none",
      width: "100%",
      height: 14,
      "aria-hidden": "true",
    },
    parts,
  );
}
