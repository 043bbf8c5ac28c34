// The box of metrics, in groups, each with a tick.

import { h, put, tick } from "./dom.js";
import { words } from "./format.js";
import { menu } from "./menu.js";
import { grouped, meaningOf } from "./metrics.js";

/** What is shown of a run unless asked for, by importance. */
const FIRST = [
  "score",
  "reward",
  "episode_return",
  "q_value",
  "q_td_error",
  "temperature",
  "preferred",
  "margin",
  "logp_chosen",
  "logp_rejected",
  "entropy",
  "kl_start",
  "clip_fraction",
  "learning",
  "grad_norm",
  "length",
  "constant_groups",
  "episode_length",
];

/** The keys as the menu lists them: the important ones, then the rest by name. */
export function inOrder(keys) {
  const all = new Set(keys);
  return [...first([...all]), ...[...all].filter((key) => !FIRST.includes(key)).sort()];
}

/** Those of the keys that are shown unless others are asked for. */
export function first(keys) {
  return FIRST.filter((key) => keys.includes(key));
}

/** `show` is called with the keys that are ticked from now on. Whoever made it calls close() in the end. */
export class MetricMenu {
  constructor(show) {
    Object.assign(this, { show, shown: [], known: null, ticks: new Map() }, menu("Metrics", "Metrics"));
  }

  /** Ticks are made anew only where there are other metrics, so that the one with the focus keeps it. */
  fill(known, shown) {
    this.shown = shown;
    if (this.known?.join() !== known.join()) this.make(known);
    for (const [key, label] of this.ticks) label.control.checked = shown.includes(key);
  }

  make(known) {
    this.known = known;
    this.ticks = new Map(known.map((key) => [key, tick(words(key), false, (on) => this.toggle(key, on), meaningOf(key) || undefined)]));
    put(
      this.body,
      grouped(known).flatMap(([title, keys]) => [
        title && h("p", { class: "menu-title" }, title, this.allOf(title, keys)),
        ...keys.map((key) => this.ticks.get(key)),
      ]),
    );
  }

  toggle(key, on) {
    this.show(on ? [...this.shown, key] : this.shown.filter((each) => each !== key));
  }

  /** Shows a whole group of metrics and nothing else. */
  allOf(title, keys) {
    const said = `Show only these: ${title.toLowerCase()}`;
    return h("button", { type: "button", class: "quiet", "aria-label": said, onclick: () => this.show(keys) }, "Show only these");
  }
}
