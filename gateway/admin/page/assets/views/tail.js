// Live tail: decisions as they are made, a sample where there are many.

import { fill, h, tell } from "../core/dom.js";
import { clock, count, seconds } from "../core/format.js";
import { live } from "../core/live.js";
import { field, table, text } from "../core/parts.js";
import { shortUrl } from "./fleet_facts.js";

const MOST = 200;

export function show(root, { signal }) {
  let rows = [];
  let seen = 0;
  let isPaused = false;
  const filter = text({ id: "filter", placeholder: "route, engine, model, status …" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const state = h("p", { class: "muted" });
  const shown = table(
    "Decisions",
    [
      { label: "Time", cell: (each) => clock(each.time), line: true },
      { label: "Status", cell: (each) => each.status || "–", number: true },
      { label: "Took", cell: (each) => seconds(each.seconds), number: true },
      { label: "Route", cell: (each) => each.route ?? "no route", line: true },
      { label: "Arm", cell: (each) => each.arm ?? "", line: true },
      { label: "Engine", cell: (each) => each.engine ?? "", line: true },
      { label: "Endpoint", cell: (each) => shortUrl(each.endpoint ?? ""), code: true, line: true },
      { label: "Model", cell: (each) => each.model ?? "", code: true },
      { label: "Operation", cell: (each) => [each.protocol, each.operation].filter(Boolean).join(" "), line: true },
      { label: "Session", cell: (each) => each.session ?? "", code: true },
    ],
    (each) => each.key,
    "No decision yet.",
  );
  const draw = () => {
    const wanted = filter.value.toLowerCase();
    const kept = wanted ? rows.filter((row) => row.words.includes(wanted)) : rows;
    if (!isPaused) shown.set(kept);
    tell(state, `${count(seen)} seen, the last ${count(kept.length)} shown${isPaused ? "; paused" : ""}.`);
  };
  const hear = (told) => {
    for (const decision of told.decisions ?? [told]) {
      seen += 1;
      const words = JSON.stringify(decision).toLowerCase();
      rows.unshift({ ...decision, key: seen, words });
    }
    rows = rows.slice(0, MOST);
  };
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    fill(pause, isPaused ? "Go on" : "Pause");
    draw();
  });
  filter.addEventListener("input", draw);
  root.append(h("div", { class: "row bottom" }, field("Filter", filter), pause), state, shown);
  live.on("decision", hear, signal);
  const drawing = setInterval(draw, 250); // many come in a moment
  live.wantDecisions(true);
  signal.addEventListener("abort", () => {
    clearInterval(drawing);
    live.wantDecisions(false);
  });
  draw();
}
