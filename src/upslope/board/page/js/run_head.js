// The head of every page about one run: which one, how it stands, what people wrote on it, and what went wrong.

import { notice } from "./crash.js";
import { h, put } from "./dom.js";
import { filterBox } from "./filter_box.js";
import { notesButton, notesLine } from "./notes.js";
import { controls, runPicker, status } from "./run_bits.js";
import { store } from "./store.js";

/** `choose(id)` is called when another run is picked; `rest` stands at the end of its line. */
export class RunHead {
  constructor(run, choose, ...rest) {
    this.run = run;
    this.picker = runPicker(run, choose);
    this.filter = filterBox(
      store.pickFilter,
      (text) => {
        store.pickFilter = text;
        this.picker.refill();
      },
      { label: "Filter the runs to choose from", placeholder: "Filter runs" },
    );
    this.standing = h("span", { class: "standing" });
    this.notes = h("div", { class: "run-notes" });
    this.trouble = h("div", { class: "run-trouble" });
    this.line = h("div", { class: "toolbar run-line" }, this.picker.element, this.filter, this.standing, ...rest);
    this.elements = [this.line, this.notes, this.trouble];
    this.refresh();
  }

  /** What the list says of the run now. */
  refresh() {
    this.picker.refill();
    const run = store.runs.get(this.run);
    const said = JSON.stringify([run?.status, run?.why, run?.step > 0, run?.tags, run?.note, store.allowControl]);
    if (said === this.said) return;
    this.said = said;
    put(this.standing, run && [status(run), controls(run), notesButton(run)]);
    put(this.notes, run && notesLine(run));
    put(this.trouble, notice(run));
  }
}
