// A copy of the rules on its way to become the next version: edited, validated, put in force with a reason.

import { call } from "../core/api.js";
import { action, ask, REASON, toast } from "../core/dialogs.js";
import { editor, problemList } from "../core/editor.js";
import { fill, h } from "../core/dom.js";
import { diffTold } from "./diff.js";
import { replay } from "./replay.js";

/** Have `place` hold an editor for each file; `leave` shows the files in force again. */
export function editCopy(place, files, { leave, look, signal }) {
  const names = Object.keys(files);
  const verdict = h("div", { class: "stack", "aria-live": "polite" });
  const editors = new Map(names.map((name) => [name, editor(`Copy of ${name}`, { changed: () => fill(verdict) })]));
  for (const name of names) editors.get(name).set(files[name]);
  const texts = () => Object.fromEntries(names.map((name) => [name, editors.get(name).value]));

  const showProblems = (problems) => {
    for (const name of names) editors.get(name).show(problems.filter(({ file }) => file === name));
    const go = ({ file, line, column }) => (editors.get(file) ?? editors.get(names[0])).go(line, column);
    fill(verdict, problemList(problems, go));
  };
  const validate = async () => {
    const { ok, problems, diff } = await call("POST", "/rules/validate", { files: texts() }, { signal });
    showProblems(problems);
    if (ok) verdict.append(h("p", { class: "valid" }, "✓ These rules can be activated."), diffTold(diff));
  };
  const put = () =>
    activate(
      { files: texts() },
      "Activate",
      async () => {
        delete place.dataset.edited;
        await look();
      },
      showProblems,
    );

  fill(
    place,
    h(
      "div",
      { class: "row sticky" },
      action("Validate", "admin", validate),
      action("Replay", "admin", () => replay(texts())),
      action("Activate", "admin", put, { class: "primary" }),
      action("Discard", "viewer", leave),
    ),
    verdict,
    names.map((name) => [h("h3", {}, name), editors.get(name).element]),
  );
  editors.get(names[0]).go(1);
}

/** Ask for a reason, and put these files, or a version, in force; mistakes in them are shown by `refused(problems)`. */
export function activate(what, title, done, refused = () => {}) {
  return ask({
    title,
    text: "From then on requests are decided by it, at every worker.",
    fields: [REASON],
    confirm: "Activate",
    run: async (values) => {
      let made = null;
      try {
        made = await call("POST", "/rules/activate", { ...what, ...values });
      } catch (error) {
        if (error.body?.problems) refused(error.body.problems);
        throw error;
      }
      toast(`Version ${made.version.number} is in force`);
      await done();
    },
  });
}
