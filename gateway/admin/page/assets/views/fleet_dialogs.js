// What the map's cards open: an endpoint, an engine, a route, with what can be done to it.

import { call, path, piece } from "../core/api.js";
import { action, ask, REASON, show as showDialog, toast } from "../core/dialogs.js";
import { fill, h } from "../core/dom.js";
import { clock, count, digits, rate, seconds } from "../core/format.js";
import { live } from "../core/live.js";
import { badge, tellPairs } from "../core/parts.js";
import { conditionOf, sumOf } from "./fleet_facts.js";

/** A dialog that follows the fleet while it is open. */
function following(title, tellAll) {
  const { dialog, body } = showDialog(title);
  const closed = new AbortController();
  dialog.addEventListener("close", () => closed.abort());
  live.on("fleet", (fleet) => tellAll(fleet, body, dialog), closed.signal);
}

export function openEndpoint(engine, url) {
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

/** A source of endpoints: what it has found, how old that is, and why it is not newer. */
function sourceText({ source, endpoints, age, error, empty }) {
  const found = `${source}: ${count(endpoints)} endpoint${endpoints === 1 ? "" : "s"}, ${age === null ? "no answer yet" : `${count(Math.round(age))} s ago`}`;
  return found + (empty ? ", has none any more" : "") + (error ? `, ${error}` : "");
}

function endpointFacts(engine, endpoint) {
  const { draining, load } = endpoint;
  return {
    Engine: engine,
    State: badge(...conditionOf(endpoint)),
    "Drained since": draining && `${clock(draining.since)} by ${draining.by || "somebody"}`,
    Weight: endpoint.weight !== undefined && digits(endpoint.weight),
    Zone: endpoint.zone,
    Priority: endpoint.priority || undefined,
    "Requests a second": rate(endpoint.rate),
    "Latency p50, p95": `${seconds(endpoint.p50)}, ${seconds(endpoint.p95)}`,
    "In flight": count(endpoint.in_flight),
    "Errors a second": endpoint.error_rate > 0 ? rate(endpoint.error_rate) : null,
    "Requests, errors": `${count(endpoint.requests)}, ${count(endpoint.errors)}`,
    "Sessions moved away": count(endpoint.sessions_moved),
    "Sequences lost": endpoint.sequences_lost ? count(endpoint.sequences_lost) : null,
    Load: load && `${digits(load.running)} running, ${digits(load.waiting)} waiting`,
    Models: endpoint.lists_models === false ? "unknown" : endpoint.models?.join(", "),
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

export function openEngine(name) {
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
      Sources: engine.sources?.map(sourceText).join("; "),
      "Requests a second": rate(engine.rate),
      "In flight": count(sumOf(engine.endpoints, "in_flight")),
      ...overloadFacts(engine.overload),
      "Routes to it":
        fleet.routes
          .filter((route) => route.engines.includes(name))
          .map((route) => route.name)
          .join(", ") || "none",
    });
  });
}

// Of an engine with `overload:`
function overloadFacts(overload) {
  if (!overload) return {};
  const waiting = Object.entries(overload.waiting).map(([name, number]) => `${name} ${count(number)}`);
  const refused = Object.values(overload.refused).flatMap((reasons) => Object.values(reasons));
  return {
    "Most at a time": count(Object.values(overload.limits).reduce((sum, limit) => sum + limit, 0)),
    Waiting: waiting.join(", ") || "none",
    "Refused so far": count(refused.reduce((sum, number) => sum + number, 0)),
  };
}

export function openRoute(name) {
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
      Fallbacks: declared?.fallback.join(", then "),
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
