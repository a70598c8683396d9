// The page: its views by the address' hash, who is looking, and whether the gateway is heard.

import { ApiError, call, caller, keepKey, learnCaller, mayAskAgain } from "./core/api.js";
import { keyEntry, toast } from "./core/dialogs.js";
import { fill, h, mark, tell } from "./core/dom.js";
import { live } from "./core/live.js";
import { setBadge, trouble } from "./core/parts.js";
import { themeSwitch } from "./core/theme.js";

const VIEWS = {
  Traffic: { fleet: "Fleet", tail: "Live tail", requests: "Requests" },
  Change: {
    experiments: "Experiments",
    shadows: "Shadows",
    rules: "Rules",
    recordings: "Recordings",
    limits: "Limits",
  },
  Operate: { models: "Models", sessions: "Sessions", audit: "Audit" },
  Try: { explain: "Explain", playground: "Playground" },
};
const NAMES = Object.assign({}, ...Object.values(VIEWS));
// Views of one thing, under the view of all of them.
const DETAILS = { experiments: "experiment", shadows: "shadow" };

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
let leave = new AbortController();
let isFirst = true;

/** Show the view that the hash names: `#/rules`, `#/experiments/NAME`, with `?field=value` behind. */
async function navigate() {
  const [place, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = place.split("/").map(decodeURIComponent);
  const view = NAMES[name] ? name : "fleet";
  const detail = rest.join("/");
  leave.abort("left");
  if (!isFirst) mayAskAgain();
  if (!isFirst) for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  leave = new AbortController();
  const { signal } = leave;
  showPlace(view, detail);
  const heading = h("h1", { tabindex: "-1" }, detail || NAMES[view]);
  const root = h("div", { class: "stack view" }, heading);
  fill(main, root);
  if (!isFirst) heading.focus();
  isFirst = false;
  try {
    const module = await import(`./views/${detail && DETAILS[view] ? DETAILS[view] : view}.js`);
    if (!signal.aborted) await module.show(root, { detail, query: new URLSearchParams(query), signal, heading });
  } catch (error) {
    if (signal.aborted) return; // the view was left, and what it waited for ended
    root.append(trouble(error));
    if (!(error instanceof ApiError)) console.error(error);
  }
}

function showPlace(view, detail) {
  document.title = `${detail || NAMES[view]} · Pointsman`;
  for (const link of nav.querySelectorAll("a")) {
    mark(link, "aria-current", link.dataset.view === view ? "page" : null);
  }
  openMenu(false);
}

function openMenu(isOpen) {
  mark(menu, "aria-expanded", String(isOpen));
  mark(nav, "class", isOpen ? "open" : null);
}

function makeNavigation() {
  fill(
    nav,
    Object.entries(VIEWS).map(([group, views]) =>
      h(
        "div",
        { class: "group" },
        h("h2", { id: `nav-${group}` }, group),
        h(
          "ul",
          { "aria-labelledby": `nav-${group}` },
          Object.entries(views).map(([view, label]) =>
            h("li", {}, h("a", { href: `#/${view}`, "data-view": view }, label)),
          ),
        ),
      ),
    ),
  );
  menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu.getAttribute("aria-expanded") === "true") {
      openMenu(false);
      menu.focus();
    }
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash names the view
    main.focus();
  });
}

function showCaller() {
  const button = document.getElementById("caller");
  tell(button, caller.role ? `${caller.name} · ${caller.role}` : "Enter a key");
  mark(button, "title", "Use another key");
}

function showState(state) {
  const element = document.getElementById("live");
  if (state === "live") setBadge(element, "good", "live");
  else setBadge(element, state === "connecting" ? "idle" : "warning", state);
}

/** Whether a key is taken, before it is kept. Raises: ApiError. */
async function tryKey(key) {
  const response = await fetch("/whoami", { headers: { authorization: `Bearer ${key}` }, cache: "no-store" });
  if (!response.ok) throw new ApiError(response.status, "this key is not known here", null);
  Object.assign(caller, await response.json());
  showCaller();
}

/** Exchange the token of a sign-in link, `#token=TOKEN`, for a session's key; returns whether there was one. */
async function signIn() {
  const token = location.hash.match(/^#token=([\w-]+)$/)?.[1];
  if (!token) return false;
  history.replaceState(null, "", location.pathname);
  try {
    keepKey((await call("POST", "/sign-in", { token })).key);
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
  return true;
}

async function begin() {
  makeNavigation();
  showState("connecting");
  const enterKey = keyEntry(tryKey);
  themeSwitch(document.getElementById("theme"), () => document.dispatchEvent(new Event("themechange")));
  document.getElementById("caller").addEventListener("click", async () => {
    if (!(await enterKey(""))) return;
    live.again();
    navigate();
  });
  live.addEventListener("state", (event) => showState(event.detail));
  addEventListener("hashchange", async () => {
    if (await signIn()) live.again();
    navigate();
  });
  try {
    await signIn();
    await learnCaller();
  } catch (error) {
    if (error.status === 401) keepKey(null);
    toast(error.message, "bad");
  }
  showCaller();
  live.start();
  await navigate();
}

begin();
