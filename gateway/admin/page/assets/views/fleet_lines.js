// The lines between the map's cards: as wide as what goes along them is much.

import { keyed, mark, s } from "../core/dom.js";

const THINNEST = 1.5;
const WIDEST = 9;

/** The drawing under the cards: `set(lines)` says which {from, to, rate, state?}, `draw(map)` where the cards are now. */
export function drawLines() {
  const element = s("svg", { class: "lines", "aria-hidden": "true" });
  let lines = [];
  return {
    element,
    set: (found) => (lines = found),
    draw(map) {
      const frame = map.getBoundingClientRect();
      const places = new Map();
      for (const card of map.querySelectorAll("[data-key]")) places.set(card.dataset.key, card.getBoundingClientRect());
      const most = Math.max(1e-9, ...lines.map((line) => line.rate ?? 0));
      const seen = lines.filter((line) => places.has(line.from) && places.has(line.to));
      mark(element, "viewBox", `0 0 ${frame.width} ${frame.height}`);
      keyed(
        element,
        seen,
        (line) => `${line.from}\n${line.to}`,
        () => s("path"),
        (drawn, line) => {
          mark(drawn, "d", curve(places.get(line.from), places.get(line.to), frame));
          mark(drawn, "class", [line.state ?? "good", line.rate > 0 ? "used" : "unused"].join(" "));
          mark(drawn, "stroke-width", (THINNEST + (WIDEST - THINNEST) * Math.sqrt((line.rate ?? 0) / most)).toFixed(1));
        },
      );
    },
  };
}

/** From the middle of one card's right side to the middle of another's left side. */
function curve(from, to, frame) {
  const x1 = from.right - frame.left;
  const y1 = from.top + from.height / 2 - frame.top;
  const x2 = to.left - frame.left;
  const y2 = to.top + to.height / 2 - frame.top;
  const bend = (x2 - x1) / 2;
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${(x1 + bend).toFixed(1)} ${y1.toFixed(1)} ${(x2 - bend).toFixed(1)} ${y2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}
