// What the views of the fleet say alike.

/** How an endpoint is: kind and word. Draining hides the rest, since an operator has wanted it. */
export function conditionOf(endpoint) {
  if (endpoint.draining) return ["busy", "drained"];
  if (endpoint.breaker_open) return ["bad", "breaker open"];
  const kinds = { ready: "good", down: "bad", unknown: "idle" };
  return [kinds[endpoint.condition] ?? "warning", endpoint.condition];
}

export function endpointKey(engine, url) {
  return `endpoint ${engine} ${url}`;
}

export function sumOf(items, field) {
  return items.reduce((sum, item) => sum + (item[field] ?? 0), 0);
}

export function shortUrl(url) {
  return url.replace(/^\w+:\/\//, "");
}
