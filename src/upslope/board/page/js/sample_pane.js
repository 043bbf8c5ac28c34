// A group and its samples: all of them in a line each, one or two of them token by token, in one scale of colours.

import { h, put, segmented } from "./dom.js";
import { plural } from "./format.js";
import { parting } from "./rollout_data.js";
import { groupHead, sampleHead, sampleLines } from "./rollout_panels.js";
import { MEASURES, measuresOf, Scale } from "./token_scale.js";
import { MOST_TOKENS, Strip } from "./tokens.js";
import { Profile } from "./token_profile.js";

function tokensOf(sample) {
  return sample.pieces?.slice(0, MOST_TOKENS) ?? [...(sample.response ?? "").slice(0, MOST_TOKENS)];
}

/** `actions`: pick(row), beside(row or null), colour(key). `switcher` is where the choice of colours goes. */
export class SamplePane {
  constructor(group, row, beside, by, card, switcher, actions) {
    this.samples = group.samples.map((each) => ({ ...each, pieces: tokensOf(each) }));
    const shown = [row, beside].map((wanted) => this.samples.find((each) => each.row === wanted)).filter(Boolean);
    const measures = Object.keys(MEASURES).filter((key) => this.samples.some((each) => measuresOf(each).includes(key)));
    this.by = measures.includes(by) ? by : (measures[0] ?? "logp");
    this.strips = shown.map((each) => new Strip(each, `Sample ${each.row}, ${plural(each.pieces.length, "token")}`, card));
    this.profiles = shown.map((each, at) => new Profile(each, (token) => this.strips[at].go(token)));
    this.lines = sampleLines(this.samples, row, beside, actions);
    this.legend = h("span", { class: "legend-place" });
    const choice = segmented(
      "colour",
      "Colour tokens by",
      measures.map((key) => [key, MEASURES[key].label, MEASURES[key].title]),
      this.by,
      (key) => {
        this.paint(key);
        actions.colour(key);
      },
    );
    put(switcher, h("span", { class: "soft" }, "Colour by"), choice, this.legend);
    this.element = h(
      "div",
      { class: "rollout-main" },
      groupHead(group),
      this.lines.element,
      shown.length === 2 && this.apart(shown),
      h(
        "div",
        { class: `strips ${shown.length === 2 ? "two" : ""}` },
        shown.map((each, at) =>
          h(
            "section",
            { class: "card sample", "data-row": each.row },
            sampleHead(each),
            this.profiles[at].element,
            this.strips[at].element,
          ),
        ),
      ),
    );
    this.paint(this.by);
  }

  /** One scale for the whole group, so that the same colour is the same number in every answer. */
  paint(key) {
    const scale = new Scale(key, this.samples);
    put(this.legend, scale.legend());
    for (const strip of [...this.strips, ...this.lines.strips, ...this.profiles]) strip.paint(scale);
  }

  /** Goes to the first decision that was held at a bound. */
  toClipped() {
    const at = this.strips[0]?.sample.clipped?.findIndex(Boolean) ?? -1;
    if (at >= 0) this.strips[0].go(at);
  }

  apart([one, other]) {
    const at = parting(one, other);
    const same = at >= one.pieces.length && at >= other.pieces.length;
    return h(
      "p",
      { class: "soft parting" },
      same
        ? "The two answers are the same."
        : [
            "The two answers part at ",
            h("button", { type: "button", class: "quiet", onclick: () => this.strips[0].go(at) }, `token ${at}`),
          ],
    );
  }

  close() {
    for (const profile of this.profiles) profile.close();
  }
}
