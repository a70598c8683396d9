// Sessions: found by their names, moved, forgotten.

import { call, piece } from "../core/api.js";
import { action, ask, REASON, toast } from "../core/dialogs.js";
import { fill, h } from "../core/dom.js";
import { clock, count } from "../core/format.js";
import { field, panel, tellPairs, text, trouble } from "../core/parts.js";

export async function show(root, { detail, signal }) {
  const name = text({ id: "session", required: true, value: detail });
  const tenant = text({ id: "tenant" });
  const found = h("div", { class: "stack", "aria-live": "polite" });
  const find = async () => {
    try {
      fill(found, sessionTold(await call("GET", pathOf(name.value, tenant.value), null, { signal }), find));
    } catch (error) {
      if (error.name === "AbortError") return;
      const isMissing = error.status === 404 || error.status === 503;
      fill(found, isMissing ? h("p", { class: "muted" }, error.message) : trouble(error));
    }
  };
  const form = h(
    "form",
    { class: "panel" },
    h(
      "div",
      { class: "row bottom" },
      field("Session", name, "as its clients name it"),
      field("Tenant", tenant, "of the verified caller, where the rules have auth"),
      h("button", { type: "submit", class: "primary" }, "Find"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    find();
  });
  root.append(form, found);
  if (detail) await find();
}

function pathOf(session, tenant, verb = "") {
  return `/sessions/${piece(session)}${verb}${tenant ? `?tenant=${piece(tenant)}` : ""}`;
}

function sessionTold(told, again) {
  const { session, tenant, places, arms } = told;
  const facts = h("dl", { class: "pairs" });
  tellPairs(facts, {
    "First seen": clock(told.created),
    "Last seen": clock(told.seen),
    Requests: count(told.requests),
    Arms: named(arms) || "none",
    "Not at home at": named(places) || "it is where hashing puts it",
  });
  const remove = () =>
    ask({
      title: "Forget session",
      text: `${session}: its next request is that of a new one. A conversation kept for it stays.`,
      fields: [REASON],
      confirm: "Forget",
      danger: true,
      run: async () => {
        await call("DELETE", pathOf(session, tenant));
        toast("The session is forgotten");
        again();
      },
    });
  return panel(
    session,
    facts,
    h(
      "div",
      { class: "row" },
      action("Move", "operator", () => move(told, again)),
      action("Forget", "operator", remove, { class: "danger" }),
    ),
  );
}

function named(values) {
  return Object.entries(values ?? {})
    .map(([name, value]) => `${name}: ${value}`)
    .join(", ");
}

async function move({ session, tenant }, again) {
  const { engines } = await call("GET", "/engines");
  const places = engines.flatMap((engine) => engine.endpoints.map(({ url }) => `${engine.name} at ${url}`));
  await ask({
    title: "Move session",
    text: `${session} goes on there from its next request.`,
    fields: [{ name: "place", label: "Endpoint", options: places }, REASON],
    confirm: "Move",
    run: async ({ place, reason }) => {
      const at = place.indexOf(" at ");
      await call("POST", pathOf(session, tenant, "/move"), {
        engine: place.slice(0, at),
        url: place.slice(at + 4),
        reason,
      });
      toast("The session is moved");
      again();
    },
  });
}
