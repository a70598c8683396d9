// Numbers and times as operators read them.

// Between a number and its unit: they stay on one line.
const GAP = "\u00a0";

/** 0.0123 -> "12.3 ms"; nothing known -> "–". */
export function seconds(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 60) return `${digits(value / 60)}${GAP}min`;
  if (size >= 1) return `${digits(value)}${GAP}s`;
  if (size >= 1e-3 || value === 0) return `${digits(value * 1e3)}${GAP}ms`;
  return `${digits(value * 1e6)}${GAP}µs`;
}

export function rate(value) {
  return known(value) ? `${digits(value)}/s` : "–";
}

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : "–";
}

export function percent(value) {
  return known(value) ? `${digits(value * 100)}${GAP}%` : "–";
}

/** Three digits that say something. */
export function digits(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size === 0) return "0";
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

/** The time of day of seconds since 1970, with the date where that is not today. */
export function clock(since) {
  if (!known(since)) return "–";
  const at = new Date(since * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}
