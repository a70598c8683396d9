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

/** The part of a fleet that is called so: routes and engines of this name, what leads there, and what is behind. */
export function narrowed(fleet, wanted) {
  if (!wanted) return fleet;
  const word = wanted.toLowerCase();
  const has = (name) => name.toLowerCase().includes(word);
  const named = fleet.routes.filter((route) => has(route.name));
  const called = fleet.engines.filter((engine) => has(engine.name) || engine.endpoints.some(({ url }) => has(url)));
  const names = new Set([...called.map(({ name }) => name), ...named.flatMap(({ engines }) => engines)]);
  return {
    ...fleet,
    routes: fleet.routes.filter(
      (route) => named.includes(route) || route.engines.some((name) => called.some((engine) => engine.name === name)),
    ),
    engines: fleet.engines.filter(({ name }) => names.has(name)),
  };
}
