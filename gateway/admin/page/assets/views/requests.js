// Requests under way, in all workers; any can be cancelled.

import { call, path, piece } from "../core/api.js";
import { action, toast } from "../core/dialogs.js";
import { h, tell } from "../core/dom.js";
import { count, seconds } from "../core/format.js";
import { every } from "../core/polling.js";
import { table } from "../core/parts.js";
import { shortUrl } from "./fleet_facts.js";

const MOST = 500;

export async function show(root, { signal }) {
  const state = h("p", { class: "muted" });
  const shown = table(
    "Requests under way",
    [
      { label: "Age", cell: (each) => seconds(each.age), number: true },
      { label: "Stage", cell: (each) => each.stage, line: true },
      { label: "Route", cell: (each) => each.route, line: true },
      { label: "Arm", cell: (each) => each.arm, line: true },
      { label: "Model", cell: (each) => each.model, code: true },
      { label: "Engine", cell: (each) => each.engine, line: true },
      { label: "Endpoint", cell: (each) => shortUrl(each.endpoint), code: true, line: true },
      { label: "Protocol", cell: (each) => each.protocol },
      { label: "From", cell: (each) => each.peer, code: true, line: true },
      { label: "Id", cell: (each) => each.id, code: true },
      {
        label: "",
        cell: (each) =>
          action("Cancel", "operator", () => cancel(each, look), {
            class: "small danger",
            "aria-label": `Cancel ${each.id}`,
          }),
        same: (each) => each.id,
      },
    ],
    (each) => `${each.worker} ${each.id}`,
    "Nothing is under way.",
  );
  const look = async () => {
    const { requests } = await call("GET", path("/requests", { limit: MOST }), null, { signal });
    requests.sort((one, other) => other.age - one.age);
    shown.set(requests);
    tell(
      state,
      `${count(requests.length)}${requests.length === MOST ? " or more" : ""} under way, the oldest first; asked for each second.`,
    );
  };
  root.append(state, shown);
  await every(1000, look, signal);
}

async function cancel({ id }, look) {
  await call("DELETE", `/requests/${piece(id)}`);
  toast("The request is cancelled");
  await look();
}
