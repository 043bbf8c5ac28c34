// The line above a recorded step: moving between steps, and jumping to what stands out.

import { h, segmented } from "./dom.js";
import { JUMPS } from "./rollout_data.js";
import { StepSlider } from "./step_slider.js";

const RANGES = [
  ["step", "this step"],
  ["run", "whole run"],
];

/** `actions`: go(index of a step), jump(kind, range). */
export class StepBar {
  constructor(actions) {
    this.range = "step";
    this.slider = new StepSlider(actions.go, { arrows: true });
    this.status = h("p", { class: "soft said-line", role: "status" });
    const jumps = Object.entries(JUMPS).map(([kind, { label }]) =>
      h("button", { type: "button", class: "quiet", "data-jump": kind, onclick: () => actions.jump(kind, this.range) }, label),
    );
    this.element = h(
      "div",
      { class: "toolbar" },
      this.slider.element,
      h(
        "span",
        { class: "jumps", role: "group", "aria-label": "Jump to" },
        h("span", { class: "soft" }, "Jump in"),
        segmented("jump-range", "Jump within", RANGES, this.range, (value) => (this.range = value)),
        jumps,
      ),
      this.status,
    );
  }

  /** Where one is. */
  show(steps, step, following) {
    this.slider.show(steps, step, following ? "following" : "");
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }
}
