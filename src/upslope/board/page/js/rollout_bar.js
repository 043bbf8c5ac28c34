// The line above a recorded step: moving between steps, and jumping to what stands out.

import { h, put, segmented } from "./dom.js";
import { JUMPS } from "./rollout_data.js";

const RANGES = [
  ["step", "this step"],
  ["run", "whole run"],
];

/** `actions`: go(index of a step), move(by), jump(kind, range). */
export class StepBar {
  constructor(actions) {
    this.range = "step";
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      id: "step-slider",
      "aria-label": "Step",
      oninput: () => actions.go(Number(this.slider.value)),
    });
    this.text = h("output", { for: "step-slider", class: "step-text" });
    this.status = h("p", { class: "soft said-line", role: "status" });
    const move = (by, label, text) =>
      h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick: () => actions.move(by) }, text);
    const jumps = Object.entries(JUMPS).map(([kind, { label }]) =>
      h("button", { type: "button", class: "quiet", "data-jump": kind, onclick: () => actions.jump(kind, this.range) }, label),
    );
    this.element = h(
      "div",
      { class: "toolbar" },
      h("span", { class: "stepper" }, move(-1, "Step before ([)", "‹"), this.slider, move(1, "Step after (])", "›"), this.text),
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
    this.slider.max = Math.max(0, steps.length - 1);
    this.slider.value = Math.max(0, steps.indexOf(step));
    this.slider.setAttribute("aria-valuetext", `step ${step}`);
    put(this.text, h("strong", {}, `step ${step ?? "–"}`), ` of ${steps.at(-1) ?? "–"}${following ? ", following" : ""}`);
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }
}
