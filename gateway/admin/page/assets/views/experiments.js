// All experiments: where each stands, and what its arms get.

import { call, piece } from "../core/api.js";
import { h } from "../core/dom.js";
import { count, percent } from "../core/format.js";
import { live } from "../core/live.js";
import { statusOf } from "../core/metrics.js";
import { every } from "../core/polling.js";
import { badge, table } from "../core/parts.js";

export async function show(root, { signal }) {
  const shown = table(
    "Experiments",
    [
      {
        label: "Experiment",
        cell: ({ name }) => h("a", { href: `#/experiments/${piece(name)}` }, name),
        same: ({ name }) => name,
      },
      { label: "Status", cell: (each) => badge(...statusOf(each.status)), same: (each) => each.status },
      { label: "Step", cell: stepOf },
      { label: "Shares", cell: (each) => each.arms.map((arm) => `${arm.name} ${percent(arm.share)}`).join(", ") },
      {
        label: "Requests",
        cell: (each) => count(each.arms.reduce((sum, arm) => sum + (arm.counts?.requests ?? 0), 0)),
        number: true,
      },
      { label: "Unit", cell: (each) => each.unit },
      { label: "Next", cell: (each) => each.next ?? "", wide: true },
    ],
    (each) => each.name,
    "The rules declare no experiment.",
  );
  root.append(shown);
  const look = async () => shown.set((await call("GET", "/experiments", null, { signal })).experiments);
  live.on("experiment", ({ experiments }) => shown.set(experiments), signal);
  await every(5000, look, signal);
}

function stepOf({ ramp, bandit }) {
  if (bandit) return "bandit";
  if (!ramp) return "no ramp";
  return ramp.step ? `${ramp.step} of ${ramp.steps.length}` : `${ramp.steps.length} steps`;
}
