// A text with line numbers, to read or to edit, whose problems stand at their lines.

import { fill, h, mark } from "./dom.js";

/** `set(text)`, `value`, `show(problems)`: {line, column?, severity, message}, lines counted from 1. */
export function editor(label, { readOnly = false, changed = () => {} } = {}) {
  const gutter = h("div", { class: "gutter", "aria-hidden": "true" });
  const under = h("pre", { class: "under", "aria-hidden": "true" });
  const area = h("textarea", {
    "aria-label": label,
    spellcheck: "false",
    autocapitalize: "off",
    wrap: "off",
    readonly: readOnly,
  });
  const element = h("div", { class: "editor" }, gutter, h("div", { class: "code-frame" }, under, area));
  let problems = new Map();
  const draw = () => {
    const lines = area.value.split("\n");
    area.rows = lines.length + 1;
    area.cols = Math.max(40, ...lines.map((line) => line.length + 2));
    fill(
      gutter,
      lines.map((_, index) => h("div", { class: problems.get(index + 1)?.severity }, String(index + 1))),
    );
    fill(
      under,
      lines.map((line, index) => {
        const problem = problems.get(index + 1);
        if (!problem) return h("div", {}, line || " ");
        return h(
          "div",
          { class: problem.severity },
          line || " ",
          h("span", { class: "said" }, `  ◂ ${problem.message}`),
        );
      }),
    );
  };
  area.addEventListener("input", () => {
    if (problems.size) problems = new Map();
    draw();
    changed();
  });
  return {
    element,
    get value() {
      return area.value;
    },
    set(text) {
      if (area.value === text && gutter.childElementCount) return;
      area.value = text;
      problems = new Map();
      draw();
    },
    show(found) {
      problems = new Map();
      for (const problem of found) if (!problems.has(problem.line)) problems.set(problem.line, problem);
      draw();
    },
    /** Put the cursor at a place. */
    go(line, column = 1) {
      const before = area.value.split("\n").slice(0, line - 1);
      const at = before.reduce((sum, text) => sum + text.length + 1, 0) + column - 1;
      area.focus();
      area.setSelectionRange(at, at);
      gutter.children[line - 1]?.scrollIntoView({ block: "center" });
    },
    enable(isOn) {
      mark(area, "readonly", !isOn);
    },
  };
}

/** Problems as a list; each leads to its place by `go(problem)`. */
export function problemList(problems, go) {
  return h(
    "ul",
    { class: "problems" },
    problems.map((problem) =>
      h(
        "li",
        { class: problem.severity },
        h("button", { type: "button", class: "small", onclick: () => go(problem) }, placeOf(problem)),
        h("span", {}, `${problem.severity}: ${problem.message}`),
      ),
    ),
  );
}

function placeOf({ file, line, column }) {
  return [file, line, column].filter((part) => part !== null && part !== undefined && part !== "").join(":") || "all";
}
