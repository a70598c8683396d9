// The fleet as a map: front, routes, engines, endpoints, each with what goes through it now.

import { call } from "../core/api.js";
import { h, keyed, tell } from "../core/dom.js";
import { count, digits, rate, seconds } from "../core/format.js";
import { live } from "../core/live.js";
import { field, setBadge, stat, stats, text } from "../core/parts.js";
import { openEndpoint, openEngine, openRoute } from "./fleet_dialogs.js";
import { conditionOf, endpointKey, narrowed, shortUrl, sumOf } from "./fleet_facts.js";
import { drawLines } from "./fleet_lines.js";

export async function show(root, { signal }) {
  const numbers = {
    rate: stat("Requests"),
    errors: stat("Errors"),
    flight: stat("In flight"),
    connections: stat("Connections"),
    workers: stat("Workers"),
    unrouted: stat("No route"),
    rules: stat("Rules"),
  };
  const waiting = h("p", { class: "muted" }, "Waiting for the gateway's first word …");
  const columns = {
    front: column("Front"),
    routes: column("Routes"),
    engines: column("Engines"),
    endpoints: column("Endpoints"),
  };
  const lines = drawLines();
  const map = h(
    "div",
    { class: "map", hidden: true },
    lines.element,
    Object.values(columns).map((each) => each.element),
  );
  const filter = text({ id: "filter" });
  const top = h("div", { class: "row between" }, stats(Object.values(numbers)), field("Filter", filter));
  root.append(top, waiting, map);
  const redraw = () => lines.draw(map);
  const watched = new ResizeObserver(redraw);
  watched.observe(map);
  signal.addEventListener("abort", () => watched.disconnect());
  let experiments = {};
  const learn = async () => {
    const { routes } = await call("GET", "/rules", null, { signal });
    experiments = Object.fromEntries(routes.map((route) => [route.name, route.experiment]));
  };
  live.on("rules", () => learn().catch(() => {}), signal);
  let latest = null;
  const draw = () => {
    if (!latest) return;
    waiting.hidden = true;
    map.hidden = false;
    tellNumbers(numbers, latest);
    const fleet = narrowed(latest, filter.value);
    tellMap(columns, fleet, experiments);
    lines.set(linesOf(fleet));
    redraw();
  };
  filter.addEventListener("input", draw);
  live.on(
    "fleet",
    (fleet) => {
      latest = fleet;
      draw();
    },
    signal,
  );
  await learn();
}

function column(title) {
  const cards = h("ul", { class: "cards" });
  return { element: h("section", { class: "map-column" }, h("h2", {}, title), cards), cards };
}

function tellNumbers(numbers, fleet) {
  const total = (field) => sumOf(fleet.routes, field);
  const endpoints = fleet.engines.flatMap((engine) => engine.endpoints);
  const errors = total("errors");
  numbers.rate.set(rate(total("rate") + fleet.unrouted.rate));
  numbers.errors.set(rate(errors), errors > 0 ? "bad" : null);
  numbers.flight.set(count(sumOf(endpoints, "in_flight")));
  numbers.connections.set(count(fleet.connections));
  numbers.workers.set(count(fleet.workers));
  numbers.unrouted.set(rate(fleet.unrouted.rate), fleet.unrouted.rate > 0 ? "bad" : null);
  numbers.rules.set(`№ ${fleet.rules_number}`);
}

function tellMap(columns, fleet, experiments) {
  const front = { rate: sumOf(fleet.routes, "rate") + fleet.unrouted.rate, ...fleet };
  keyed(
    columns.front.cards,
    [front],
    () => "front",
    () => card("front", "#/tail"),
    tellFront,
  );
  keyed(
    columns.routes.cards,
    fleet.routes.map((route) => ({ experiment: experiments[route.name], ...route })),
    (each) => each.name,
    (each) => card(`route ${each.name}`, () => openRoute(each.name)),
    tellRoute,
  );
  keyed(
    columns.engines.cards,
    fleet.engines,
    (each) => each.name,
    (each) => card(`engine ${each.name}`, () => openEngine(each.name)),
    tellEngine,
  );
  const endpoints = fleet.engines.flatMap((engine) =>
    engine.endpoints.map((endpoint) => ({ engine: engine.name, ...endpoint })),
  );
  const keyOf = (each) => endpointKey(each.engine, each.url);
  keyed(
    columns.endpoints.cards,
    endpoints,
    keyOf,
    (each) => card(keyOf(each), () => openEndpoint(each.engine, each.url)),
    tellEndpoint,
  );
}

/** A card of the map, to press; its parts are filled anew each second. */
function card(key, open) {
  const parts = {
    name: h("strong"),
    state: h("span"),
    facts: h("span", { class: "facts" }),
    more: h("span", { class: "facts" }),
  };
  const inner = [h("span", { class: "row between" }, parts.name, parts.state), parts.facts, parts.more];
  const face =
    typeof open === "string"
      ? h("a", { class: "card", href: open }, inner)
      : h("button", { type: "button", class: "card", onclick: open }, inner);
  const element = h("li", { "data-key": key }, face);
  element.parts = parts;
  return element;
}

function tellCard({ parts }, name, state, facts, more) {
  tell(parts.name, name);
  parts.state.hidden = !state;
  if (state) setBadge(parts.state, ...state);
  tell(parts.facts, facts.filter(Boolean).join(" · "));
  parts.more.hidden = !more?.length;
  tell(parts.more, (more ?? []).filter(Boolean).join(" · "));
}

function tellFront(element, front) {
  tellCard(
    element,
    "Front",
    null,
    [rate(front.rate)],
    [counted(front.connections, "connection"), counted(front.workers, "worker")],
  );
}

function tellRoute(element, route) {
  const state = route.errors > 0 ? ["bad", `${rate(route.errors)} errors`] : null;
  tellCard(
    element,
    route.name,
    state,
    [rate(route.rate), latencies(route)],
    [route.experiment && `experiment ${route.experiment}`],
  );
}

function tellEngine(element, engine) {
  const ready = engine.endpoints.filter((each) => conditionOf(each)[0] === "good").length;
  const all = engine.endpoints.length;
  const kind = ready === all ? "good" : ready ? "warning" : "bad";
  tellCard(
    element,
    engine.name,
    [kind, `${ready} of ${all}`],
    [rate(engine.rate), latencies(engine)],
    [engine.protocol, engine.balance],
  );
}

function tellEndpoint(element, endpoint) {
  const errors = endpoint.error_rate > 0 ? `${rate(endpoint.error_rate)} errors` : null;
  const weight = endpoint.weight !== undefined && endpoint.weight !== 1 ? `weight ${digits(endpoint.weight)}` : null;
  tellCard(
    element,
    shortUrl(endpoint.url),
    conditionOf(endpoint),
    [rate(endpoint.rate), latencies(endpoint)],
    [`${count(endpoint.in_flight)} in flight`, errors, weight],
  );
}

function latencies(of) {
  return Number.isFinite(of.p50) ? `p50 ${seconds(of.p50)} · p95 ${seconds(of.p95)}` : "p50 –";
}

function counted(number, noun) {
  return `${count(number)}\u00a0${noun}${number === 1 ? "" : "s"}`;
}

/** Which card leads to which, and how much goes there. */
function linesOf(fleet) {
  const found = fleet.routes.map((route) => ({ from: "front", to: `route ${route.name}`, rate: route.rate }));
  for (const route of fleet.routes) {
    for (const engine of route.engines)
      found.push({ from: `route ${route.name}`, to: `engine ${engine}`, rate: route.rate });
  }
  for (const engine of fleet.engines) {
    for (const endpoint of engine.endpoints) {
      const state = conditionOf(endpoint)[0];
      found.push({
        from: `engine ${engine.name}`,
        to: endpointKey(engine.name, endpoint.url),
        rate: endpoint.rate,
        state,
      });
    }
  }
  return found;
}
