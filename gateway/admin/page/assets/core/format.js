// Numbers and times as operators read them.

/** 0.0123 -> "12.3 ms"; nothing known -> "–". */
export function seconds(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 60) return `${digits(value / 60)} min`;
  if (size >= 1) return `${digits(value)} s`;
  if (size >= 1e-3 || value === 0) return `${digits(value * 1e3)} ms`;
  return `${digits(value * 1e6)} µs`;
}

/** How long something has been going on: "4 s", "3 min", "2 h", "5 d". */
export function age(value) {
  if (!known(value)) return "–";
  if (value < 60) return `${Math.max(0, Math.round(value))} s`;
  if (value < 3600) return `${Math.round(value / 60)} min`;
  if (value < 86400 * 2) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function rate(value) {
  return known(value) ? `${digits(value)}/s` : "–";
}

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : "–";
}

export function percent(value) {
  return known(value) ? `${digits(value * 100)} %` : "–";
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

export function bytes(value) {
  if (!known(value)) return "–";
  if (value < 1024) return `${value} B`;
  if (value < 1024 ** 2) return `${digits(value / 1024)} KiB`;
  return `${digits(value / 1024 ** 2)} MiB`;
}

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}
