// Pieces that several views are made of.

import { fill, h, keyed, mark, tell } from "./dom.js";

// What a state is called, and its shape: colour alone says nothing to many.
const SHAPES = { good: "●", warning: "▲", bad: "■", idle: "○", busy: "◐" };

/** A state: text, shape and colour. `kind` is good, warning, bad, idle or busy. */
export function badge(kind, text) {
  return setBadge(h("span"), kind, text);
}

export function setBadge(element, kind, text) {
  mark(element, "class", `badge ${kind}`);
  mark(element, "data-shape", SHAPES[kind]);
  tell(element, text);
  return element;
}

/** One number with its name; returns the element, whose `set(text, kind?)` changes it. */
export function stat(label, value = "–") {
  const shown = h("dd", {}, value);
  const element = h("div", { class: "stat" }, h("dt", {}, label), shown);
  element.set = (text, kind) => {
    tell(shown, text);
    mark(shown, "class", kind);
  };
  return element;
}

export function stats(...children) {
  return h("dl", { class: "stats" }, children);
}

/**
 * A table that scrolls by itself where it is too wide. `columns` are {label, cell(item) -> node or text, number?, wide?, code?, line?}.
 * `set(items)` shows them; rows of a known key keep their place and focus.
 */
export function table(caption, columns, keyOf, nothing = "Nothing here.") {
  const body = h("tbody");
  const empty = h("p", { class: "muted empty" }, nothing);
  const head = columns.map((column) =>
    h(
      "th",
      { scope: "col", class: column.number ? "number" : null },
      column.label || h("span", { class: "hidden" }, "More"),
    ),
  );
  const frame = h(
    "div",
    { class: "scroller", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)), body),
  );
  const element = h("div", {}, frame, empty);
  element.set = (items) => {
    frame.hidden = !items.length;
    empty.hidden = Boolean(items.length);
    keyed(
      body,
      items,
      keyOf,
      () => h("tr"),
      (row, item) => fillRow(row, columns, item),
    );
  };
  element.set([]);
  return element;
}

/** Cells whose value is a text are changed in place; a node is put in where its column's `same(item)` has changed. */
function fillRow(row, columns, item) {
  columns.forEach((column, index) => {
    const cell = row.cells[index] ?? row.appendChild(h("td", { class: classes(column) }));
    const key = column.same ? JSON.stringify(column.same(item)) : null;
    if (key !== null && cell.shownKey === key) return;
    cell.shownKey = key;
    const value = column.cell(item);
    if (value instanceof Node || Array.isArray(value)) fill(cell, value);
    else tell(cell, value ?? "");
  });
}

function classes(column) {
  return (
    [column.number && "number", column.wide && "wide", column.code && "code", column.line && "line"]
      .filter(Boolean)
      .join(" ") || null
  );
}

/** A labelled input of a form. `control` gets an id. */
export function field(label, control, hint) {
  control.id ||= `control-${(field.count = (field.count ?? 0) + 1)}`;
  const told = hint && h("span", { class: "hint", id: `${control.id}-hint` }, hint);
  if (told) control.setAttribute("aria-describedby", told.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, told);
}

export function text(attributes = {}) {
  return h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
}

export function select(options, attributes = {}) {
  const made = options.map((option) => {
    const [value, label] = Array.isArray(option) ? option : [option, option];
    return h("option", { value }, label);
  });
  return h("select", attributes, made);
}

/** A box with a heading. */
export function panel(title, ...children) {
  return h("section", { class: "panel" }, title && h("h2", {}, title), children);
}

/** Lines "name: value" as pairs; raises where one is neither. */
export function readPairs(lines, separator = ":") {
  const pairs = [];
  for (const line of lines.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf(separator);
    if (at < 1) throw new Error(`“${line.trim()}” is not “name${separator} value”`);
    pairs.push([line.slice(0, at).trim(), line.slice(at + 1).trim()]);
  }
  return pairs;
}

/** A failure in the place of what could not be shown. */
export function trouble(error) {
  return h("p", { class: "problem", role: "alert" }, error.message);
}

/** Names and values; where a value is nothing, its name is left out. */
export function tellPairs(list, pairs) {
  const kept = Object.entries(pairs).filter(
    ([, value]) => value !== null && value !== undefined && value !== false && value !== "",
  );
  keyed(
    list,
    kept,
    ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd")),
    (row, [, value]) => (value instanceof Node ? fill(row.lastChild, value) : tell(row.lastChild, value)),
  );
}
