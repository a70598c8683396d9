// Whose which part of an experiment's units is, from 0 to 1, and where one unit stands.

import { h, s } from "../core/dom.js";
import { percent } from "../core/format.js";

const COLOURS = ["first", "second", "third", "fourth"];

/** `draws` are {arm, share, intervals: [[from, to], ...]}; `position` may be null. */
export function intervals(draws, position) {
  const colourOf = (index) => COLOURS[index % COLOURS.length];
  const parts = draws.flatMap(({ intervals: spans }, index) =>
    spans.map(([from, to]) =>
      s("rect", { class: `fill-${colourOf(index)}`, x: from, y: 4, width: to - from, height: 12 }),
    ),
  );
  const mark = position !== null && s("rect", { class: "here", x: position - 0.002, y: 0, width: 0.004, height: 20 });
  const said = draws.map(({ arm, share }) => `${arm} ${percent(share)}`).join(", ");
  const picture = {
    class: "intervals",
    viewBox: "0 0 1 20",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": said,
  };
  return h(
    "figure",
    {},
    s("svg", picture, parts, mark),
    h(
      "ul",
      { class: "legend" },
      draws.map(({ arm }, index) => h("li", {}, h("span", { class: `key key-${colourOf(index)}` }), arm)),
    ),
  );
}
