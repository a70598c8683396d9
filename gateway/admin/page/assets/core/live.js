// What the gateway tells by itself: server-sent events, read from a fetch, since an EventSource cannot send a key.

import { request } from "./api.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
// The gateway tells the fleet each second: a stream that has been silent for so long is dead.
const SILENCE = 10000;

/** Events by their names: `fleet`, `rules`, `experiment`, `decision`; and `state`: "live" or "reconnecting". */
class Live extends EventTarget {
  state = "connecting";
  last = {}; // the latest of each kind, for views that open between two

  #withDecisions = false;
  #stop = new AbortController();
  #hurry = () => {};

  start() {
    this.#read();
  }

  /** Whether decisions are told as well: they cost the gateway something. */
  wantDecisions(wanted) {
    if (wanted === this.#withDecisions) return;
    this.#withDecisions = wanted;
    this.#stop.abort("other events");
  }

  /** Call `hear` with each event of a kind, the latest one at once, until `signal` says stop. */
  on(kind, hear, signal) {
    this.addEventListener(kind, (event) => hear(event.detail), { signal });
    if (this.last[kind] !== undefined && kind !== "decision") hear(this.last[kind]);
  }

  async #read() {
    let pause = FIRST_PAUSE;
    for (;;) {
      this.#stop = new AbortController();
      try {
        const path = this.#withDecisions ? "/events?decisions=true" : "/events";
        const response = await request("GET", path, null, { signal: this.#stop.signal });
        this.#become("live");
        await this.#follow(response.body.getReader());
        pause = FIRST_PAUSE;
        this.#become("reconnecting");
      } catch (error) {
        if (this.#stop.signal.reason === "other events") continue;
        this.#become(error.status === 401 ? "no key" : "reconnecting");
      }
      await this.#wait(pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  /** Try again at once: something has changed. */
  again() {
    this.#hurry();
  }

  #wait(milliseconds) {
    return new Promise((resolve) => {
      this.#hurry = resolve;
      setTimeout(resolve, milliseconds);
    });
  }

  async #follow(reader) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const silent = setTimeout(() => this.#stop.abort("silent"), SILENCE);
      const { done, value } = await reader.read().finally(() => clearTimeout(silent));
      if (done) return;
      const events = (text + decoder.decode(value, { stream: true })).replaceAll("\r\n", "\n").split("\n\n");
      text = events.pop();
      for (const event of events) this.#tell(event);
    }
  }

  #tell(event) {
    let kind = "message";
    let data = "";
    for (const line of event.split("\n")) {
      if (line.startsWith("event:")) kind = line.slice(6).trim();
      if (line.startsWith("data:")) data += line.slice(5);
    }
    if (!data) return; // a comment that keeps the connection
    this.last[kind] = JSON.parse(data);
    this.dispatchEvent(new CustomEvent(kind, { detail: this.last[kind] }));
  }

  #become(state) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}

export const live = new Live();
