// How values of an experiment's metrics are written.

import { digits, percent, seconds } from "./format.js";

const TIMES = /^(latency|first_token|per_token)/;

/** The function that writes values of a metric; ratios are numbers. */
export function writerOf(metric, isRatio = false) {
  if (isRatio) return (value) => (value === null || value === undefined ? "–" : `×${digits(value)}`);
  if (TIMES.test(metric)) return seconds;
  if (metric === "error_rate") return percent;
  return digits;
}

/** [estimate, low, high] as text; what has no end is told as such. */
export function interval(value, write) {
  if (!value || value[0] === null) return "not known yet";
  const [estimate, low, high] = value;
  return `${write(estimate)} [${low === null ? "−∞" : write(low)}, ${high === null ? "∞" : write(high)}]`;
}

const CALLED = {
  idle: "idle",
  running: "running",
  held: "held",
  finished: "finished",
  rolled_back: "rolled back",
  stopped: "stopped",
};
const KINDS = { running: "good", held: "warning", finished: "good", rolled_back: "bad" };

/** A run's status as a badge's kind and text. */
export function statusOf(status) {
  return [KINDS[status] ?? "idle", CALLED[status] ?? status];
}
