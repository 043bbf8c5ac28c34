// The preferences of a run: likelihoods and margin over time, a step's contests side by side, what a judge was asked, search trees.

import { ApiError, get } from "./api.js";
import { contestCard, judgeCard } from "./contests.js";
import { empty, h, put } from "./dom.js";
import { count, plural } from "./format.js";
import { PreferenceCharts } from "./preference_charts.js";
import { link, note } from "./router.js";
import { likelyRun, runPicker } from "./run_bits.js";
import { treeCard } from "./search_tree.js";
import { store, subscribe } from "./store.js";

const PAUSE_MS = 1500;

/** Opens the preferences of a run. */
export function open(root, params) {
  return new PreferencesView(root, params);
}

class PreferencesView {
  constructor(root, params) {
    Object.assign(this, { root, timer: 0, last: 0, turn: 0, steps: [] });
    this.take(params);
    this.stop = subscribe((changed, gone) => this.heard(changed, gone));
    this.begin();
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
    this.charts?.close();
  }

  heard(changed, gone) {
    if (!this.shown) this.begin();
    else if (gone.has(this.run)) put(this.body, empty("Gone", h("p", {}, `Run ${this.run} is gone: its folder is no longer there.`)));
    else if (changed === null || changed.has(this.run)) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), Math.max(0, this.last + PAUSE_MS - Date.now()));
    }
    this.picker?.refill();
  }

  begin() {
    if (store.state === "loading") return;
    this.run ??= likelyRun((run) => run.family === "preference") ?? likelyRun((run) => run.domain !== "control") ?? likelyRun();
    if (!this.run) {
      put(this.root, empty("No runs yet", h("p", {}, "What a run of preferences compares appears here.")));
      return;
    }
    this.shown = true;
    store.current = this.run;
    this.picker = runPicker(this.run, (id) => {
      Object.assign(this, { run: id, step: null });
      this.begin();
    });
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      id: "contest-step",
      "aria-label": "Step",
      oninput: () => {
        const at = Number(this.slider.value);
        this.step = at === this.steps.length - 1 ? null : this.steps[at];
        this.load();
      },
    });
    this.where = h("output", { for: "contest-step", class: "step-text" });
    this.charts?.close();
    this.charts = new PreferenceCharts();
    this.contests = h("section", { class: "contests", "aria-label": "Contests" });
    this.body = h("div", { class: "method preferences" }, this.charts.element, this.contests);
    put(
      this.root,
      h("h1", { class: "unseen" }, "Preferences"),
      h(
        "div",
        { class: "toolbar run-line" },
        this.picker.element,
        h("a", { href: link("curves", { run: this.run }) }, "curves"),
        h("a", { href: link("rollouts", { run: this.run }) }, "rollouts"),
        h("span", { class: "stepper" }, this.slider, this.where),
      ),
      this.body,
    );
    this.load();
  }

  async load() {
    this.last = Date.now();
    const mine = ++this.turn;
    note("preferences", { run: this.run, step: this.step });
    try {
      const found = await get("contests", { run: this.run, step: this.step });
      if (mine !== this.turn) return;
      this.show(found);
      await this.charts.load(this.run);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (mine === this.turn && error.status)
        put(this.contests, empty(error.status === 404 ? "Gone" : "This cannot be shown", h("p", {}, error.message)));
    }
  }

  show(found) {
    this.steps = found.steps;
    this.slider.parentElement.hidden = !found.steps.length;
    this.slider.max = Math.max(0, found.steps.length - 1);
    this.slider.value = Math.max(0, found.steps.indexOf(found.step));
    this.slider.setAttribute("aria-valuetext", `step ${found.step}`);
    put(this.where, h("strong", {}, `step ${found.step ?? "–"}`), ` of ${found.steps.at(-1) ?? "–"}`);
    const told = found.contests.length + found.trees.length + found.judged.length;
    if (!told) {
      const why = found.steps.length
        ? "The recorded rows of this step were neither given sides nor compared."
        : "This run kept no rollouts: it was trained with --record none, or has not made a step yet.";
      put(this.contests, empty("No contests", h("p", {}, why)));
      return;
    }
    const most = found.contests.length < found.contests_in_all ? `, of which ${count(found.contests.length)} are shown` : "";
    put(
      this.contests,
      h("h2", {}, `${plural(found.contests_in_all, "recorded contest")} of step ${found.step}${most}`),
      found.contests.map((each) => contestCard(each, this.run, found.step)),
      found.trees.map(treeCard),
      found.judged.length > 0 && judgeCard(found.judged),
    );
  }
}
