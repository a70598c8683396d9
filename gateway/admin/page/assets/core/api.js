// The admin API as functions: the key that is sent, who one is by it, and what went wrong in words.

const KEY = "pointsman-key";
const ROLES = ["viewer", "operator", "admin"];

/** What the API refuses; `body` is its whole answer. */
export class ApiError extends Error {
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

/** Who the API takes this page for. */
export const caller = { name: "", role: "" };

let askForKey = () => Promise.resolve(false);
let asking = null;
let isDeclined = false; // who does not want to give a key is not asked again by what the page does by itself

/** Have `ask(why)` called where the API wants a key; it resolves to whether one was given. */
export function onKeyWanted(ask) {
  askForKey = ask;
}

/** Whoever looks at another view may be asked again. */
export function mayAskAgain() {
  isDeclined = false;
}

export function keepKey(key) {
  isDeclined &&= !key;
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Whether the caller's role may do what `role` may. */
export function may(role) {
  return ROLES.indexOf(caller.role) >= ROLES.indexOf(role);
}

export async function learnCaller() {
  Object.assign(caller, await call("GET", "/whoami"));
  return caller;
}

/** One whole answer, read as JSON. Raises: ApiError. */
export async function call(method, path, body, { signal } = {}) {
  const response = await request(method, path, body, { signal });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** The response of a call that went well, its body unread; a key is asked for where one is wanted. Raises: ApiError. */
export async function request(method, path, body, { signal } = {}) {
  for (;;) {
    const sent = sessionStorage.getItem(KEY);
    const response = await reached(method, path, body, sent, signal);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401) throw error;
    if (sessionStorage.getItem(KEY) !== sent) continue; // somebody else has given one meanwhile
    if (isDeclined) throw error;
    asking ??= askForKey(sent ? error.message : "").finally(() => (asking = null));
    isDeclined = !(await asking);
    if (isDeclined) throw error;
  }
}

async function reached(method, path, body, key, signal) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined && body !== null) headers["content-type"] = "application/json";
  const sent = body === undefined || body === null ? undefined : JSON.stringify(body);
  try {
    return await fetch(path, { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway's admin port cannot be reached", null);
  }
}

async function errorOf(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Not the API's own words: the status must do.
  }
  return new ApiError(response.status, told(body) ?? `the admin API answered with status ${response.status}`, body);
}

/** What FastAPI says of an error, in one line. */
function told(body) {
  const detail = body?.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((each) => `${each.loc?.slice(1).join(".")}: ${each.msg}`).join("; ");
  if (typeof detail?.message === "string") return detail.message;
  return null;
}

/** A path with its query: `path("/audit", {limit: 5})`; what is empty or null is left out. */
export function path(base, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? `${base}?${new URLSearchParams(kept)}` : base;
}

/** A name as a piece of a path. */
export const piece = encodeURIComponent;
