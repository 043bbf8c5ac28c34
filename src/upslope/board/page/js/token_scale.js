// What tokens are coloured by: each measure's list, scale and legend. The colours themselves are in the style sheet.

import { h } from "./dom.js";
import { number } from "./format.js";

/** Every measure in the order of the switch. `middle` is where a two-sided scale has no colour; a one-sided scale begins there. */
export const MEASURES = {
  logp: {
    label: "log-prob",
    title: "Log-probability when it was sampled: the more colour, the more surprising",
    middle: 0,
    least: 1,
    sides: 1,
  },
  entropy: {
    label: "entropy",
    title: "Entropy of the choice in nats: the more colour, the more open it was",
    middle: 0,
    least: 0.5,
    sides: 1,
  },
  ratio: {
    label: "ratio",
    title: "Current to behaviour policy in the row's last update: blue above one, orange below",
    middle: 1,
    least: 0.01,
    sides: 2,
    log: true,
  },
  advantages: { label: "advantage", title: "Advantage: blue above zero, orange below", middle: 0, least: 0.1, sides: 2 },
  weight: {
    label: "weight",
    title: "The method's weight of the decision: blue above one, orange below",
    middle: 1,
    least: 0.1,
    sides: 2,
  },
  clipped: {
    label: "clipped",
    title: "Held at a bound: solid underline at the upper, dotted at the lower",
    middle: 0,
    least: 1,
    sides: 2,
  },
};

/** The measures a sample has. */
export function measuresOf(sample) {
  return Object.keys(MEASURES).filter((key) => Array.isArray(sample[key]));
}

/** A scale that fits all of the samples shown, so that colours compare between them. */
export class Scale {
  constructor(key, samples) {
    this.key = key;
    this.measure = MEASURES[key];
    this.reach = this.measure.least;
    for (const sample of samples) {
      for (const [at, value] of (sample[key] ?? []).entries()) {
        if (Number.isFinite(value) && sample.sampled?.[at] !== 0) this.reach = Math.max(this.reach, Math.abs(this.distance(value)));
      }
    }
  }

  distance(value) {
    return this.measure.log ? Math.log(Math.max(value, 1e-12)) : value - this.measure.middle;
  }

  /** From -1 to 1, 0 without colour; null for no number. */
  strength(value) {
    if (!Number.isFinite(value)) return null;
    return Math.max(-1, Math.min(1, this.distance(value) / this.reach));
  }

  /** The value at a strength, for the legend's ends. */
  at(strength) {
    return this.measure.log ? Math.exp(strength * this.reach) : this.measure.middle + strength * this.reach;
  }

  /** The colours with the numbers they stand for. */
  legend() {
    if (this.key === "clipped") {
      return h(
        "div",
        { class: "scale clips" },
        h("span", { class: "token clip-high" }, "upper"),
        h("span", { class: "token clip-low" }, "lower"),
        h("span", { class: "token" }, "free"),
      );
    }
    const bar = h("span", { class: `scale-bar ${this.measure.sides === 2 ? "two-sided" : "one-sided"}`, "aria-hidden": "true" });
    const ends =
      this.measure.sides === 2
        ? [this.at(-1), this.at(0), this.at(1)]
        : [this.measure.middle, this.key === "logp" ? this.at(-1) : this.at(1)];
    return h(
      "div",
      {
        class: "scale",
        role: "img",
        "aria-label": `Colour scale of ${this.measure.label} from ${number(ends[0])} to ${number(ends.at(-1))}`,
      },
      h("span", {}, number(ends[0])),
      bar,
      ends.length === 3 ? h("span", { class: "scale-middle" }, number(ends[1])) : null,
      h("span", {}, number(ends.at(-1))),
    );
  }
}
