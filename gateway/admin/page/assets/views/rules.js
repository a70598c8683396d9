// Rules: the files in force, and all versions of them.

import { call, path } from "../core/api.js";
import { action, ask, REASON, show as showDialog, toast } from "../core/dialogs.js";
import { editor } from "../core/editor.js";
import { fill, h, tell } from "../core/dom.js";
import { clock } from "../core/format.js";
import { live } from "../core/live.js";
import { panel, table } from "../core/parts.js";
import { diffTold } from "./diff.js";
import { activate, editCopy } from "./rules_copy.js";

export async function show(root, { signal }) {
  const about = h("p", { class: "muted" });
  const found = h("div", { class: "stack" });
  const files = h("div", { class: "stack" });
  const versions = versionTable({
    compare: (version) => compare(version, signal),
    again: ({ number }) => activate({ version: number }, `Activate version ${number}`, look),
  });
  const buttons = h(
    "div",
    { class: "row" },
    action("Roll back", "admin", () => rollBack(look), { class: "danger" }),
    action("Export", "viewer", () => exportFiles(signal)),
  );
  root.append(about, found, panel("Files", files), panel("Versions", buttons, versions));
  let shown = null;
  const read = async (number) => {
    const whole = (masked) => call("GET", path(`/rules/versions/${number}`, { masked }), null, { signal });
    showFiles(files, await whole(true), { read: () => read(number), whole, look, signal });
  };
  const look = async () => {
    const [inForce, kept] = await Promise.all([
      call("GET", "/rules", null, { signal }),
      call("GET", "/rules/versions", null, { signal }),
    ]);
    const number = kept.in_force;
    versions.set(kept.versions.map((each) => ({ ...each, isInForce: each.number === number })));
    const version = kept.versions.find((each) => each.number === number);
    tell(about, versionTold(version));
    fill(found, replicasTold(inForce), problemsTold(inForce));
    if (shown === number) return;
    const isEdited = files.dataset.edited !== undefined;
    if (isEdited) toast(`Version ${number} is in force: what you edit is a copy of the one before.`, "warning");
    else await read(number);
    shown = number;
  };
  live.on("rules", () => look().catch(() => {}), signal);
  await look();
}

function versionTold({ number, time, author, reason, exported }) {
  const why = reason ? `: ${reason}` : "";
  const files = exported
    ? "the files on disk say the same"
    : "the files on disk say something else; Export shows what to write there";
  return `Version ${number} is in force since ${clock(time)}, by ${author}${why}; ${files}.`;
}

function replicasTold({ replicas, digest }) {
  const others = replicas.filter((each) => each.digest !== digest).map((each) => each.name);
  return others.length ? h("p", { class: "problem" }, `Other rules are in force at ${others.join(", ")}.`) : null;
}

function problemsTold({ problems }) {
  if (!problems.length) return null;
  return panel(
    "What the last reading of the files found",
    h(
      "ul",
      { class: "said-lines" },
      problems.map((line) => h("li", {}, line)),
    ),
  );
}

/** The files in force, to read; a copy can be edited. Secrets in them are masked until they are asked for. */
function showFiles(place, { texts, cut }, { read, whole, look, signal }) {
  delete place.dataset.edited;
  const edit = async () => {
    const { texts } = await whole(false);
    place.dataset.edited = "";
    editCopy(place, texts, { leave: read, look, signal });
  };
  const reveal = async () => showFiles(place, await whole(false), { read, whole, look, signal });
  fill(
    place,
    h(
      "div",
      { class: "row" },
      action("Edit a copy", "admin", edit, { class: "primary" }),
      cut && action("Show secrets", "admin", reveal),
    ),
    Object.entries(texts).map(([name, text]) => {
      const shown = editor(name, { readOnly: true });
      shown.set(text);
      return [h("h3", {}, name), shown.element];
    }),
  );
}

function rollBack(look) {
  return ask({
    title: "Roll back",
    text: "What was in force before is in force again, as a new version.",
    fields: [REASON],
    confirm: "Roll back",
    danger: true,
    run: async (values) => {
      const { version } = await call("POST", "/rules/rollback", values);
      toast(`Version ${version.number} is in force`);
      await look();
    },
  });
}

function versionTable({ compare, again }) {
  const buttons = (version) => {
    const { number, isInForce } = version;
    return h(
      "div",
      { class: "row" },
      action("Diff", "viewer", () => compare(version), { class: "small", "aria-label": `Diff of version ${number}` }),
      !isInForce &&
        action("Activate", "admin", () => again(version), {
          class: "small",
          "aria-label": `Activate version ${number}`,
        }),
    );
  };
  return table(
    "Versions",
    [
      { label: "№", cell: (each) => each.number, number: true },
      { label: "", cell: (each) => (each.isInForce ? "in force" : each.of ? `${each.of} again` : "") },
      { label: "Time", cell: (each) => clock(each.time) },
      { label: "By", cell: (each) => each.author },
      { label: "From", cell: (each) => each.source },
      { label: "Reason", cell: (each) => each.reason, wide: true },
      { label: "", cell: buttons, same: (each) => [each.number, each.isInForce] },
    ],
    (each) => each.number,
    "No version is kept.",
  );
}

/** What a version changed of the one before it. */
async function compare({ number }, signal) {
  const told = await call("GET", path("/rules/diff", { to: number, masked: true }), null, { signal });
  showDialog(`Version ${told.from} → ${told.to}`, diffTold(told.diff));
}

async function exportFiles(signal) {
  const { files, exported, cut } = await call("GET", "/rules/export", null, { signal });
  const texts = Object.entries(files).map(([name, text]) => [
    h("h3", {}, name),
    h("pre", { class: "reply", tabindex: "0" }, text),
  ]);
  const about = cut
    ? "Secrets that stand in these files are left out (***): whoever has a key of role admin exports them whole."
    : exported
    ? "The files on disk say just this."
    : "Written to the disk like this, the files say what is in force; they stay the source of truth.";
  showDialog("The rules in force as files", h("p", { class: "muted" }, about), texts);
}
