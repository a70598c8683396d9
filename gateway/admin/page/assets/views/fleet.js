// The fleet as a map: front, routes, engines, endpoints, each with what goes through it now.

import { call, path, piece } from "../core/api.js";
import { action, ask, REASON, show as showDialog, toast } from "../core/dialogs.js";
import { fill, h, keyed, tell } from "../core/dom.js";
import { clock, count, digits, rate, seconds } from "../core/format.js";
import { live } from "../core/live.js";
import { badge, setBadge, stat, stats, tellPairs } from "../core/parts.js";
import { drawLines } from "./fleet_lines.js";

export function show(root, { signal }) {
  const numbers = {
    rate: stat("Requests"),
    errors: stat("Errors"),
    flight: stat("In flight"),
    connections: stat("Connections"),
    workers: stat("Workers"),
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
  root.append(stats(Object.values(numbers)), waiting, map);
  const redraw = () => lines.draw(map);
  const watched = new ResizeObserver(redraw);
  watched.observe(map);
  signal.addEventListener("abort", () => watched.disconnect());
  live.on(
    "fleet",
    (fleet) => {
      waiting.hidden = true;
      map.hidden = false;
      tellNumbers(numbers, fleet);
      tellMap(columns, fleet);
      lines.set(linesOf(fleet));
      redraw();
    },
    signal,
  );
}

function column(title) {
  const cards = h("ul", { class: "cards" });
  return { element: h("section", { class: "map-column" }, h("h2", {}, title), cards), cards };
}

function tellNumbers(numbers, fleet) {
  const total = (field) => fleet.routes.reduce((sum, route) => sum + (route[field] ?? 0), 0);
  const endpoints = fleet.engines.flatMap((engine) => engine.endpoints);
  const errors = total("errors");
  numbers.rate.set(rate(total("rate")));
  numbers.errors.set(rate(errors), errors > 0 ? "bad" : null);
  numbers.flight.set(count(endpoints.reduce((sum, each) => sum + each.in_flight, 0)));
  numbers.connections.set(count(fleet.connections));
  numbers.workers.set(count(fleet.workers));
  numbers.rules.set(`№ ${fleet.rules_number}`);
}

function tellMap(columns, fleet) {
  const front = { rate: fleet.routes.reduce((sum, route) => sum + (route.rate ?? 0), 0), ...fleet };
  keyed(
    columns.front.cards,
    [front],
    () => "front",
    () => card("front", "#/tail"),
    tellFront,
  );
  keyed(
    columns.routes.cards,
    fleet.routes,
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
    [`${count(front.connections)} connections`, `${front.workers} workers`],
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
    [rate(engine.rate ?? sumOf(engine.endpoints, "rate")), latencies(engine)],
    [engine.protocol, engine.balance],
  );
}

function tellEndpoint(element, endpoint) {
  const weight = endpoint.weight !== undefined && endpoint.weight !== 1 ? `weight ${digits(endpoint.weight)}` : null;
  tellCard(
    element,
    shortUrl(endpoint.url),
    conditionOf(endpoint),
    [rate(endpoint.rate), latencies(endpoint)],
    [`${count(endpoint.in_flight)} in flight`, weight],
  );
}

function latencies(of) {
  return Number.isFinite(of.p50) ? `p50 ${seconds(of.p50)} · p95 ${seconds(of.p95)}` : "p50 –";
}

function sumOf(items, field) {
  return items.reduce((sum, item) => sum + (item[field] ?? 0), 0);
}

function shortUrl(url) {
  return url.replace(/^\w+:\/\//, "");
}

/** How an endpoint is: kind and word. Draining hides the rest, since an operator has wanted it. */
export function conditionOf(endpoint) {
  if (endpoint.draining) return ["busy", "drained"];
  if (endpoint.breaker_open) return ["bad", "breaker open"];
  const kinds = { ready: "good", healthy: "good", up: "good", down: "bad", unknown: "idle" };
  return [kinds[endpoint.condition] ?? "warning", endpoint.condition];
}

export function endpointKey(engine, url) {
  return `endpoint ${engine} ${url}`;
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

/** A dialog that follows the fleet while it is open. */
function following(title, tellAll) {
  const { dialog, body } = showDialog(title);
  const closed = new AbortController();
  dialog.addEventListener("close", () => closed.abort());
  live.on("fleet", (fleet) => tellAll(fleet, body, dialog), closed.signal);
}

function openEndpoint(engine, url) {
  const facts = h("dl", { class: "pairs" });
  const buttons = h("div", { class: "row" });
  let shown = null;
  following(url, (fleet, body) => {
    const endpoint = fleet.engines.find((each) => each.name === engine)?.endpoints.find((each) => each.url === url);
    if (!body.childElementCount) body.append(facts, buttons);
    if (!endpoint) return fill(body, h("p", { class: "muted" }, "The rules no longer name this endpoint."));
    tellPairs(facts, endpointFacts(engine, endpoint));
    const isDrained = Boolean(endpoint.draining);
    if (shown === isDrained) return;
    shown = isDrained;
    fill(buttons, endpointButtons(engine, endpoint));
  });
}

function endpointFacts(engine, endpoint) {
  const { draining, load } = endpoint;
  return {
    Engine: engine,
    State: badge(...conditionOf(endpoint)),
    "Drained since": draining && `${clock(draining.since)} by ${draining.by || "somebody"}`,
    Weight: endpoint.weight !== undefined && digits(endpoint.weight),
    "Requests a second": rate(endpoint.rate),
    "Latency p50, p95": `${seconds(endpoint.p50)}, ${seconds(endpoint.p95)}`,
    "In flight": count(endpoint.in_flight),
    "Requests, errors": `${count(endpoint.requests)}, ${count(endpoint.errors)}`,
    "Sessions moved away": count(endpoint.sessions_moved),
    "Sequences lost": endpoint.sequences_lost ? count(endpoint.sequences_lost) : null,
    Load: load && `${digits(load.running)} running, ${digits(load.waiting)} waiting`,
    Models: endpoint.models?.join(", "),
  };
}

function endpointButtons(engine, { url, draining, weight }) {
  const base = `/engines/${piece(engine)}/endpoints`;
  const change =
    (title, verb, danger = false) =>
    () =>
      ask({
        title,
        text: url,
        fields: [REASON],
        confirm: title,
        danger,
        run: async ({ reason }) => {
          await call("POST", `${base}/${verb}`, { url, reason, by: "the page" });
          toast(`${url}: ${verb === "drain" ? "drained" : "gets work again"}`);
        },
      });
  const setWeight = () =>
    ask({
      title: "Set weight",
      text: `${url}: its share of the engine's work, beside the others' weights.`,
      fields: [{ name: "weight", label: "Weight", type: "number", min: 0, value: weight ?? 1, required: true }, REASON],
      confirm: "Set",
      run: async (values) => {
        await call("POST", `${base}/weight`, { url, ...values });
        toast(`${url} has weight ${values.weight}`);
      },
    });
  const remove = () =>
    ask({
      title: "Remove endpoint",
      text: `${url} leaves the rules: a new version of them. What is on its way there still ends.`,
      fields: [REASON],
      confirm: "Remove",
      danger: true,
      run: async ({ reason }) => {
        await call("DELETE", path(base, { url, reason }));
        toast(`${url} is removed`);
      },
    });
  return [
    draining
      ? action("Undrain", "operator", change("Undrain", "undrain"))
      : action("Drain", "operator", change("Drain", "drain")),
    action("Set weight", "admin", setWeight),
    action("Remove", "admin", remove, { class: "danger" }),
  ];
}

function openEngine(name) {
  const facts = h("dl", { class: "pairs" });
  const add = () =>
    ask({
      title: "Add endpoint",
      text: `To engine ${name}: a new version of the rules.`,
      fields: [
        { name: "url", label: "URL", required: true, hint: "http://host:port, https://host:port or grpc://host:port" },
        { name: "grpc", label: "gRPC address", hint: "host:port, where the engine has both" },
        { name: "weight", label: "Weight", type: "number", min: 0, value: 1 },
        REASON,
      ],
      confirm: "Add",
      run: async (values) => {
        await call("POST", `/engines/${piece(name)}/endpoints`, values);
        toast(`${values.url} is added to ${name}`);
      },
    });
  following(`Engine ${name}`, (fleet, body) => {
    const engine = fleet.engines.find((each) => each.name === name);
    if (!body.childElementCount) body.append(facts, h("div", { class: "row" }, action("Add endpoint", "admin", add)));
    if (!engine) return fill(body, h("p", { class: "muted" }, "The rules no longer name this engine."));
    tellPairs(facts, {
      Protocol: engine.protocol,
      Balance: engine.balance,
      Endpoints: count(engine.endpoints.length),
      "Requests a second": rate(engine.rate ?? sumOf(engine.endpoints, "rate")),
      "In flight": count(sumOf(engine.endpoints, "in_flight")),
      "Routes to it":
        fleet.routes
          .filter((route) => route.engines.includes(name))
          .map((route) => route.name)
          .join(", ") || "none",
    });
  });
}

function openRoute(name) {
  const facts = h("dl", { class: "pairs" });
  const links = h("div", { class: "row" });
  let declared = null;
  call("GET", "/rules").then(({ routes }) => (declared = routes.find((each) => each.name === name)));
  following(`Route ${name}`, (fleet, body) => {
    const route = fleet.routes.find((each) => each.name === name);
    if (!body.childElementCount) body.append(facts, links);
    if (!route) return fill(body, h("p", { class: "muted" }, "The rules no longer have this route."));
    tellPairs(facts, {
      "Requests a second": rate(route.rate),
      "Errors a second": rate(route.errors),
      "Latency p50, p95": `${seconds(route.p50)}, ${seconds(route.p95)}`,
      Engines: route.engines.join(", "),
      Matches: declared && h("code", {}, JSON.stringify(declared.match)),
      Experiment: declared?.experiment,
      "Declared at": declared?.location,
    });
    if (!links.childElementCount && declared?.experiment) {
      links.append(
        h("a", { class: "button", href: `#/experiments/${piece(declared.experiment)}` }, "Open the experiment"),
      );
    }
  });
}
