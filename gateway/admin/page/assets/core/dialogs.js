// Questions to the operator: a dialog with fields, a key, a short word at the edge.

import { fill, h } from "./dom.js";
import { caller, keepKey, may, onKeyWanted } from "./api.js";

const toasts = document.getElementById("toasts");
let count = 0;

/**
 * Ask in a dialog. `fields` are {name, label, type?, value?, hint?, required?, options?}; `run(values)` does what is asked
 * for, and what it raises is told in the dialog, which stays open. Resolves to whether it was done.
 */
export function ask({ title, text, fields = [], confirm = "OK", danger = false, run }) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: `dialog-${++count}` }, title);
    const problem = h("p", { class: "problem", role: "alert" });
    const inputs = fields.map((field) => ({ field, input: inputFor(field) }));
    const go = h("button", { class: danger ? "danger" : "primary", type: "submit" }, confirm);
    const form = h(
      "form",
      { method: "dialog" },
      heading,
      text && h("p", { class: "muted" }, text),
      inputs.map(({ field, input }) => labelled(field, input)),
      problem,
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go),
    );
    const dialog = h(
      "dialog",
      { "aria-labelledby": heading.id, onclose: () => (takeAway(dialog), resolve(done)) },
      form,
    );
    let done = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      fill(problem);
      go.disabled = true;
      try {
        await run(valuesOf(inputs));
        done = true;
        dialog.close();
      } catch (error) {
        fill(problem, error.message);
      } finally {
        go.disabled = false;
      }
    });
    document.body.append(dialog);
    dialog.showModal();
    inputs[0]?.input.focus();
  });
}

/** The field that nearly every change has. */
export const REASON = { name: "reason", label: "Reason", hint: "kept with the change, for whoever reads it later" };

function inputFor(field) {
  const common = { id: `field-${++count}`, name: field.name, required: field.required, autocomplete: "off" };
  if (field.options) {
    const options = field.options.map((value) => h("option", { value, selected: value === field.value }, value));
    return h("select", common, options);
  }
  const type = field.type ?? "text";
  return h("input", {
    ...common,
    type,
    step: type === "number" ? "any" : null,
    min: field.min,
    value: field.value ?? "",
  });
}

function labelled(field, input) {
  const hint = field.hint && h("span", { class: "hint", id: `${input.id}-hint` }, field.hint);
  if (hint) input.setAttribute("aria-describedby", hint.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, field.label), input, hint);
}

/** What was entered, by name; what is empty is left out. */
function valuesOf(inputs) {
  const entered = inputs.filter(({ input }) => input.value !== "");
  return Object.fromEntries(
    entered.map(({ field, input }) => [field.name, field.type === "number" ? Number(input.value) : input.value]),
  );
}

/** A dialog that only shows; it is closed by Escape or its button. Returns the dialog and the part to fill. */
export function show(title, ...children) {
  const heading = h("h2", { id: `dialog-${++count}` }, title);
  const body = h("div", { class: "stack" }, children);
  const dialog = h(
    "dialog",
    { class: "wide", "aria-labelledby": heading.id, onclose: () => takeAway(dialog) },
    h(
      "div",
      { class: "row between" },
      heading,
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
    ),
    body,
  );
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, body };
}

/** A button for who has the role; for others it says why it does nothing. */
export function action(label, role, act, attributes = {}) {
  const button = h("button", { type: "button", ...attributes }, label);
  if (!may(role)) {
    const why = `needs the role ${role}; you are ${caller.role}`;
    button.setAttribute("aria-disabled", "true");
    button.title = why;
    button.setAttribute("aria-description", why);
  }
  button.addEventListener("click", async () => {
    if (!may(role)) return toast(`“${label}” ${button.title}`, "warning");
    try {
      await act(button);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, "bad");
    }
  });
  return button;
}

/** Remove a dialog, but not what was said meanwhile. */
function takeAway(dialog) {
  if (dialog.contains(toasts)) document.body.append(toasts);
  dialog.remove();
}

/** Say something at the edge for a while; `kind` is good, warning or bad. */
export function toast(text, kind = "good") {
  const shown = h("p", { class: `toast ${kind}` }, text);
  const dialogs = document.querySelectorAll("dialog[open]");
  (dialogs[dialogs.length - 1] ?? document.body).append(toasts); // above the dialog that is open, if one is
  toasts.append(shown);
  setTimeout(() => shown.remove(), kind === "good" ? 4000 : 8000);
}

/** Ask for a key; `check()` raises where it is not taken. */
export function keyEntry(check) {
  const enter = (why) =>
    ask({
      title: "A key is wanted",
      text:
        why ||
        "The admin API needs a key, which stays in this tab until it is closed. `pointsman page` prints a link that signs in without one.",
      fields: [{ name: "key", label: "Key", type: "password", required: true }],
      confirm: "Use it",
      run: ({ key }) => check(key).then(() => keepKey(key)),
    });
  onKeyWanted(enter);
  return enter;
}
