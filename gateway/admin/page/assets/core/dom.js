// Elements made by hand. Names come from callers, so nothing here reads text as markup: children are nodes or texts.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a", {href: "#/fleet", onclick: go}, "Fleet")`. Attributes that are null, undefined or false are left out. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of an SVG element. */
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Have an element hold these children and no others. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** Set an element's text where it differs: what is not touched keeps its selection, and announces nothing. */
export function tell(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Set an attribute where it differs; null takes it away. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
}

/**
 * Have `parent` hold one element for each item, in order; those of known keys stay the same elements, so that focus and
 * selection stay where they are. `make(item)` makes one, `update(element, item)` fills it.
 */
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.elementsByKey ?? (parent.elementsByKey = new Map());
  const gone = new Set(known.keys());
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    gone.delete(key);
    let element = known.get(key);
    if (!element) {
      element = make(item);
      known.set(key, element);
    }
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const key of gone) {
    known.get(key).remove();
    known.delete(key);
  }
}
