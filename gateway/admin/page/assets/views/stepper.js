// A ramp's steps: which are done, which is going on and what it waits for, which are to come.

import { fill, h, tell } from "../core/dom.js";
import { count, percent } from "../core/format.js";
import { panel } from "../core/parts.js";

export function stepper() {
  const list = h("ol", { class: "ramp" });
  const next = h("p", { role: "status" });
  const exposed = h("progress", { "aria-label": "Requests of this step", max: 1, value: 0 });
  const told = h("span", { class: "muted" });
  const progress = h("div", { class: "row", hidden: true }, exposed, told);
  const element = panel("Ramp", list, progress, next);
  return {
    element,
    set({ ramp, bandit, status, next: waits }) {
      element.hidden = !ramp && !bandit;
      const isLive = status === "running" || status === "held";
      progress.hidden = !ramp || !isLive;
      tell(next, waits ? `Next: ${waits}` : "");
      if (bandit)
        return fill(
          list,
          h(
            "li",
            {},
            `A bandit moves the shares every ${bandit.every} s, each between ${percent(bandit.min_share)} and ${percent(bandit.max_share)}.`,
          ),
        );
      if (!ramp) return fill(list);
      fill(
        list,
        ramp.steps.map((share, index) => step(share, index + 1, ramp, status)),
      );
      exposed.value = Math.min(1, ramp.requests / Math.max(1, ramp.min_requests));
      tell(
        told,
        `${count(ramp.requests)} of at least ${count(ramp.min_requests)} requests of '${ramp.arm}', ${ramp.min_time} s at the least`,
      );
      return element;
    },
  };
}

function step(share, number, { step: at }, status) {
  const isOver = status === "finished" || (at !== null && number < at);
  const isNow = !isOver && number === at && (status === "running" || status === "held");
  const state = isOver ? "done" : isNow ? "now" : "to come";
  return h(
    "li",
    { class: isNow ? `now ${status}` : isOver ? "done" : null, "aria-current": isNow ? "step" : null },
    h("strong", {}, percent(share)),
    h("span", { class: "muted" }, state === "now" && status === "held" ? "held" : state),
  );
}
