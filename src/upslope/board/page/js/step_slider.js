// The slider over the recorded steps of a run.

import { h, put } from "./dom.js";

/** `go(index of a step)` is called while it moves; with `arrows` there is a button at either end. */
export class StepSlider {
  constructor(go, { arrows = false } = {}) {
    this.steps = [];
    this.input = h("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      id: "step-slider",
      "aria-label": "Step",
      oninput: () => go(Number(this.input.value)),
    });
    this.text = h("output", { for: "step-slider", class: "step-text" });
    const move = (by, label, sign) => {
      const to = () => {
        const at = Number(this.input.value) + by;
        if (at >= 0 && at < this.steps.length) go(at);
      };
      return arrows && h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick: to }, sign);
    };
    this.element = h(
      "span",
      { class: "stepper" },
      move(-1, "Step before ([)", "‹"),
      this.input,
      move(1, "Step after (])", "›"),
      this.text,
    );
  }

  /** Which of the steps is shown; a note such as "following" stands behind. */
  show(steps, step, note = "") {
    this.steps = steps;
    this.element.hidden = !steps.length;
    this.input.max = Math.max(0, steps.length - 1);
    this.input.value = Math.max(0, steps.indexOf(step));
    this.input.setAttribute("aria-valuetext", `step ${step}`);
    put(this.text, h("strong", {}, `step ${step ?? "–"}`), ` of ${steps.at(-1) ?? "–"}${note && `, ${note}`}`);
  }
}
