// What is known of arms beside the control: every metric now, and one of them over time.

import { chart } from "../core/chart.js";
import { fill, h } from "../core/dom.js";
import { count, digits, percent } from "../core/format.js";
import { interval, writerOf } from "../core/metrics.js";
import { badge, field, panel, select, table } from "../core/parts.js";

const KINDS = { difference: "Difference to the control", ratio: "Ratio to the control", arm: "Each arm by itself" };

export function evidence(signal) {
  const metric = select([], { id: "metric" });
  const kind = select(Object.entries(KINDS), { id: "kind" });
  const drawn = h("div");
  const comparisons = comparisonTable();
  const nothing = h(
    "p",
    { class: "muted" },
    "Nothing is known of this metric yet: that begins with the first requests of a run.",
  );
  const element = panel(
    "Evidence over time",
    h("div", { class: "fields" }, field("Metric", metric), field("Shown as", kind)),
    nothing,
    drawn,
    h("h3", {}, "Now"),
    comparisons,
  );
  let points = [];
  let told = null;
  let shown = null;
  let shownAs = "";
  const draw = () => {
    const found = linesOf(told, points, metric.value, kind.value);
    nothing.hidden = Boolean(found.series.length);
    drawn.hidden = !found.series.length;
    if (!found.series.length) return;
    if (shownAs !== `${metric.value} ${kind.value}`) {
      shownAs = `${metric.value} ${kind.value}`;
      shown = chart(
        `${metric.value}: ${KINDS[kind.value].toLowerCase()}`,
        signal,
        writerOf(metric.value, kind.value === "ratio"),
      );
      fill(drawn, shown);
    }
    shown.set(found);
  };
  metric.addEventListener("change", draw);
  kind.addEventListener("change", draw);
  return {
    element,
    set(state) {
      points = state.series;
      told = state;
      offerMetrics(metric, state);
      comparisons.set(
        Object.entries(state.comparisons).flatMap(([arm, found]) => found.map((each) => ({ shownArm: arm, ...each }))),
      );
      draw();
    },
  };
}

function offerMetrics(list, { comparisons, metric }) {
  const names = [
    ...new Set([metric, ...Object.values(comparisons).flatMap((found) => found.map((each) => each.metric))]),
  ];
  if (names.join() === [...list.options].map((option) => option.value).join()) return;
  const chosen = list.value;
  fill(
    list,
    names.map((value) => h("option", { value, selected: value === chosen }, value)),
  );
}

/** What the chart shows: a band for each arm, the guardrails' bounds on it, and where shares have changed. */
function linesOf(told, points, metric, kind) {
  const arms = Object.keys(told.comparisons);
  const named = kind === "arm" ? [told.control, ...arms] : arms;
  const times = points.map((point) => point.time);
  const at = (point, name) => {
    const found = point.comparisons[name === told.control ? arms[0] : name]?.[metric];
    if (kind !== "arm") return found?.[kind] ?? null;
    return (name === told.control ? found?.control : found?.arm) ?? null;
  };
  const series = named
    .map((label) => {
      const values = points.map((point) => at(point, label));
      const part = (index) => values.map((value) => value?.[index] ?? null);
      return { label, mid: part(0), low: part(1), high: part(2) };
    })
    .filter(({ mid }) => mid.some((value) => value !== null));
  return { times, series, bounds: boundsOf(told, metric, kind), marks: changesOf(points, told) };
}

const ON = {
  max: "arm",
  max_increase: "difference",
  max_decrease: "difference",
  max_ratio: "ratio",
  min_ratio: "ratio",
};

function boundsOf({ guardrails }, metric, kind) {
  const rails = Object.values(guardrails)
    .flat()
    .filter((rail) => rail.metric === metric && ON[rail.bound] === kind);
  const unique = new Map(
    rails.map((rail) => [
      rail.bound,
      { label: `guardrail ${rail.bound}`, value: rail.bound === "max_decrease" ? -rail.limit : rail.limit },
    ]),
  );
  return [...unique.values()];
}

function changesOf(points, { ramp, arms, control }) {
  const arm = ramp?.arm ?? arms.find((each) => each.name !== control)?.name;
  const marks = [];
  let before = null;
  for (const { time, shares } of points) {
    const share = shares[arm];
    if (before !== null && share !== before) marks.push({ time, label: percent(share) });
    before = share;
  }
  return marks.slice(-12);
}

function comparisonTable() {
  return table(
    "Comparisons",
    [
      { label: "Arm", cell: (each) => each.shownArm },
      { label: "Metric", cell: (each) => each.metric },
      { label: "Control", cell: (each) => interval(each.control, writerOf(each.metric)), number: true },
      { label: "Arm's", cell: (each) => interval(each.arm, writerOf(each.metric)), number: true },
      { label: "Difference", cell: (each) => interval(each.difference, writerOf(each.metric)), number: true },
      { label: "Ratio", cell: (each) => interval(each.ratio, writerOf(each.metric, true)), number: true },
      { label: "Of", cell: (each) => `${count(each.n_control)} : ${count(each.n_arm)}`, number: true },
      { label: "p", cell: (each) => digits(each.p_value), number: true },
      {
        label: "",
        cell: (each) => badge(...(each.is_different ? ["warning", "differs"] : ["idle", "no difference known"])),
        same: (each) => each.is_different,
      },
    ],
    (each) => `${each.shownArm} ${each.metric}`,
    "Nothing to compare yet.",
  );
}
