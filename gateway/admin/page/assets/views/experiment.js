// One experiment: its arms, what is known of their difference, its ramp and what it waits for, and all its decisions.

import { call, piece } from "../core/api.js";
import { action, ask, REASON, toast } from "../core/dialogs.js";
import { fill, h, tell } from "../core/dom.js";
import { clock, count, digits, percent } from "../core/format.js";
import { live } from "../core/live.js";
import { interval, statusOf, writerOf } from "../core/metrics.js";
import { every } from "../core/polling.js";
import { panel, setBadge, table } from "../core/parts.js";
import { evidence } from "./evidence.js";
import { stepper } from "./stepper.js";

export async function show(root, { detail: name, signal, heading }) {
  const path = `/experiments/${piece(name)}`;
  const status = h("span", { role: "status" });
  const why = h("p", { class: "muted" });
  const buttons = h("div", { class: "row" });
  const steps = stepper();
  const arms = armTable();
  const ratio = h("p", { class: "muted" });
  const rails = guardrailTable();
  const known = evidence(signal);
  const decisions = decisionTable();
  heading.after(h("div", { class: "row" }, status, why), buttons);
  root.append(
    steps.element,
    panel("Arms", arms, ratio),
    panel("Guardrails", rails),
    known.element,
    panel("Decisions", decisions),
  );
  let offered = "";
  const look = async () => {
    const told = await call("GET", path, null, { signal });
    setBadge(status, ...statusOf(told.status));
    tell(
      why,
      [told.since && `Since ${clock(told.since)}`, told.by && `by ${told.by}`, told.reason].filter(Boolean).join(", "),
    );
    steps.set(told);
    arms.set(told.arms.map((arm) => ({ ...arm, isControl: arm.name === told.control })));
    tell(ratio, ratioTold(told.sample_ratio));
    rails.set(Object.entries(told.guardrails).flatMap(([arm, found]) => found.map((rail) => ({ arm, ...rail }))));
    decisions.set((told.decisions ?? []).map((each, index, all) => ({ ...each, key: all.length - index })));
    known.set(told);
    if (offered === told.status) return;
    offered = told.status;
    fill(buttons, commands(path, told, look));
  };
  live.on("experiment", () => look().catch(() => {}), signal);
  await every(3000, look, signal);
}

/** What an operator may have it do, as its status allows. */
function commands(path, told, look) {
  const { name, unit, status, ramp, bandit, arms, control } = told;
  const command =
    (verb, title, text, { fields = [], danger = false, says = title } = {}) =>
    () =>
      ask({
        title,
        text,
        fields: [...fields, REASON],
        confirm: title,
        danger,
        run: async (values) => {
          await call("POST", `${path}/${verb}`, values);
          toast(`${name}: ${says}`);
          await look();
        },
      });
  const isLive = status === "running" || status === "held";
  const step = {
    name: "step",
    label: "Step",
    type: "number",
    min: 1,
    value: Math.min((ramp?.step ?? 0) + 1, ramp?.steps.length),
    hint: "counted from 1",
  };
  const promoted = {
    name: "arm",
    label: "Arm",
    options: arms.map((arm) => arm.name),
    value: ramp?.arm ?? arms.find((arm) => arm.name !== control)?.name,
  };
  const forced = [
    { name: "unit", label: "Session", required: true, hint: "as its clients name it" },
    { name: "arm", label: "Arm", options: [...arms.map((arm) => arm.name), "as it falls"] },
  ];
  return [
    !isLive &&
      (ramp || bandit) &&
      action(
        "Start",
        "operator",
        command("start", "Start", "From the first step on, as far as guardrails let it.", { says: "started" }),
        { class: "primary" },
      ),
    status === "held" &&
      action("Go on", "operator", command("ramp", "Go on", "The ramp may advance again.", { says: "goes on" }), {
        class: "primary",
      }),
    status === "running" &&
      action(
        "Hold",
        "operator",
        command("hold", "Hold", "It stays at this step; guardrails and the fuse still act.", { says: "held" }),
      ),
    isLive &&
      ramp &&
      action(
        "Go to step",
        "operator",
        command("ramp", "Go to step", "At once, whatever is known by now.", {
          fields: [step],
          says: "at another step",
        }),
      ),
    isLive &&
      action(
        "Roll back",
        "operator",
        command("rollback", "Roll back", "The control gets all units, at once.", { danger: true, says: "rolled back" }),
        { class: "danger" },
      ),
    isLive &&
      action(
        "Stop",
        "operator",
        command("stop", "Stop", "The rules' weights are in force again.", { says: "stopped" }),
      ),
    action(
      "Promote",
      "admin",
      command("promote", "Promote", "This arm gets all units; the rules are written so.", {
        fields: [promoted],
        says: "promoted",
      }),
    ),
    unit === "session" && action("Force a session", "operator", force(path, forced)),
  ];
}

function force(path, fields) {
  return () =>
    ask({
      title: "Force a session",
      text: "It has this arm from its next request on, whatever its hash says, while the arm has a share.",
      fields: [...fields, REASON],
      confirm: "Force",
      run: async ({ unit, arm, reason }) => {
        await call("POST", `${path}/force`, { unit, arm: arm === "as it falls" ? null : arm, reason });
        toast(`${unit}: ${arm}`);
      },
    });
}

function armTable() {
  const of = (name) => (arm) => count(arm.counts?.[name]);
  return table(
    "Arms",
    [
      { label: "Arm", cell: (arm) => (arm.isControl && arm.name !== "control" ? `${arm.name} (control)` : arm.name) },
      { label: "Engine", cell: (arm) => [arm.engine, arm.model].filter(Boolean).join(", model ") },
      { label: "Share", cell: (arm) => percent(arm.share), number: true },
      { label: "Requests", cell: of("requests"), number: true },
      { label: "Errors", cell: of("errors"), number: true },
      {
        label: "Error rate",
        cell: (arm) => (arm.counts?.requests ? percent(arm.counts.errors / arm.counts.requests) : "–"),
        number: true,
      },
      { label: "Units", cell: of("units"), number: true },
      { label: "Crossed", cell: of("crossed"), number: true },
      { label: "Forced", cell: of("forced"), number: true },
      { label: "Guessed", cell: of("guessed"), number: true },
      { label: "Tokens out", cell: of("output_tokens"), number: true },
    ],
    (arm) => arm.name,
  );
}

function ratioTold(ratio) {
  if (!ratio || ratio.counted === "nothing") return "Whether units fall as their shares promise is not known yet.";
  const seen = Object.entries(ratio.seen).map(
    ([arm, number]) => `${arm} ${count(number)} of ${count(ratio.expected[arm])} expected`,
  );
  const verdict = ratio.mismatched
    ? "▲ Units do not fall as their shares promise"
    : "✓ Units fall as their shares promise";
  return `${verdict} (${ratio.counted}: ${seen.join(", ")}; p = ${digits(ratio.p_value)}).`;
}

const BOUNDS = {
  max: "at most",
  max_increase: "increase at most",
  max_decrease: "decrease at most",
  max_ratio: "ratio at most",
  min_ratio: "ratio at least",
};

function guardrailTable() {
  const write = (rail) => writerOf(rail.metric, rail.bound.endsWith("ratio"));
  const state = ({ breached, cleared }) =>
    breached ? ["bad", "breached"] : cleared ? ["good", "kept"] : ["idle", "not known yet"];
  return table(
    "Guardrails",
    [
      { label: "State", cell: (rail) => setBadge(h("span"), ...state(rail)), same: state },
      { label: "Arm", cell: (rail) => rail.arm },
      { label: "Metric", cell: (rail) => rail.metric },
      { label: "Bound", cell: (rail) => `${BOUNDS[rail.bound] ?? rail.bound} ${write(rail)(rail.limit)}` },
      { label: "Seen", cell: (rail) => interval(rail.value, write(rail)), number: true },
    ],
    (rail) => `${rail.arm} ${rail.metric} ${rail.bound}`,
    "No guardrail is declared, or nothing is known yet.",
  );
}

function decisionTable() {
  return table(
    "Decisions",
    [
      { label: "Time", cell: (each) => clock(each.time) },
      { label: "What", cell: (each) => statusOf(each.action)[1].replaceAll("_", " ") },
      { label: "By", cell: (each) => each.by },
      { label: "Why", cell: (each) => each.reason, wide: true },
      { label: "Requests", cell: (each) => numbersTold(each.numbers), number: true },
    ],
    (each) => each.key,
    "None yet.",
  );
}

function numbersTold(numbers) {
  if (numbers?.unit !== undefined) return `${numbers.unit}: ${numbers.arm ?? "as it falls"}`;
  if (numbers?.requests === null || typeof numbers?.requests !== "object") return count(numbers?.requests);
  return Object.entries(numbers.requests)
    .map(([arm, number]) => `${arm} ${count(number)}`)
    .join(", ");
}
