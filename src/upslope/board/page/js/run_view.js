// What pages about one run have in common: which run, following it while it goes on, its head, a slider over its steps.

import { ApiError } from "./api.js";
import { empty, h, put } from "./dom.js";
import { note } from "./router.js";
import { likelyRun } from "./run_bits.js";
import { RunHead } from "./run_head.js";
import { StepSlider } from "./step_slider.js";
import { choose, store, subscribe } from "./store.js";

const PAUSE_MS = 1500;

/**
 * A page about a run. One of them has `view` (its name in the address and in what a run has), `title`, `nothing` (what to say
 * without runs), `build()` (its own elements, as a list; with charts, they are `charts`), `fetch()` and `show(found)`.
 */
export class RunView {
  stepped = true;

  constructor(root, params) {
    Object.assign(this, { root, timer: 0, last: 0, turn: 0, steps: [] });
    this.take(params);
  }

  start() {
    this.stop = subscribe((changed, gone) => this.heard(changed, gone));
    this.begin();
    return this;
  }

  take(params) {
    const step = Number(params.get("step"));
    this.run = params.get("run");
    this.step = params.has("step") && Number.isInteger(step) && step >= 0 ? step : null;
  }

  change(params) {
    const before = this.run;
    this.take(params);
    if (this.run === before && this.shown) this.load();
    else this.begin();
  }

  close() {
    this.stop();
    clearTimeout(this.timer);
    this.leave();
  }

  leave() {
    this.charts?.close();
  }

  heard(changed, gone) {
    if (!this.shown) this.begin();
    else if (gone.has(this.run)) put(this.body, empty("Gone", h("p", {}, `Run ${this.run} is gone: its folder is no longer there.`)));
    else if (changed === null || changed.has(this.run)) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), Math.max(0, this.last + PAUSE_MS - Date.now()));
    }
    this.head?.refresh();
  }

  begin() {
    if (store.state === "loading") return;
    this.run ??= likelyRun((run) => run.has.includes(this.view)) ?? likelyRun((run) => run.domain !== "control") ?? likelyRun();
    if (!this.run) {
      put(this.root, empty("No runs yet", h("p", {}, this.nothing)));
      return;
    }
    this.shown = true;
    choose(this.run);
    const pick = (id) => {
      Object.assign(this, { run: id, step: null });
      this.begin();
    };
    this.slider = new StepSlider((at) => {
      this.step = at === this.steps.length - 1 ? null : this.steps[at];
      this.load();
    });
    this.slider.element.hidden = true;
    this.head = new RunHead(this.run, pick, this.stepped && this.slider.element);
    this.leave();
    this.own = this.build();
    this.body = h("div", { class: `method ${this.view}` }, ...this.own);
    put(
      this.root,
      h("h1", { class: "unseen" }, this.title),
      ...this.head.elements,
      this.body,
    );
    this.load();
  }

  /** Which of its steps is shown. */
  at(steps, step) {
    this.steps = steps;
    this.slider.show(steps, step);
  }

  async load() {
    this.last = Date.now();
    const mine = ++this.turn;
    note(this.view, this.stepped ? { run: this.run, step: this.step } : { run: this.run });
    try {
      const found = await this.fetch();
      if (mine !== this.turn) return;
      if (!this.own[0].isConnected) put(this.body, ...this.own); // something else had to be said before
      this.show(found);
      await this.more?.();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (mine === this.turn && error.status)
        put(this.body, empty(error.status === 404 ? "Gone" : "This cannot be shown", h("p", {}, error.message)));
    }
  }
}
