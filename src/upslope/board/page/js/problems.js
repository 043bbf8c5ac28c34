// The problems of a run that chooses or makes them: shares of categories over time, a step's problems and why, those made.

import { ApiError, get } from "./api.js";
import { Chart } from "./chart.js";
import { look } from "./curve_data.js";
import { empty, h, put } from "./dom.js";
import { count, number, plural, words } from "./format.js";
import { link, note } from "./router.js";
import { likelyRun, runPicker } from "./run_bits.js";
import { store, subscribe } from "./store.js";

const SHARE = "share_";
const PAUSE_MS = 1500;

/** Opens the problems of a run. */
export function open(root, params) {
  return new ProblemsView(root, params);
}

class ProblemsView {
  constructor(root, params) {
    Object.assign(this, { root, timer: 0, last: 0 });
    this.take(params);
    this.stop = subscribe((changed, gone) => this.heard(changed, gone));
    this.begin();
  }

  take(params) {
    this.run = params.get("run");
    this.step = params.has("step") ? Number(params.get("step")) : null;
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
    this.chart?.close();
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
    this.run ??= likelyRun((run) => run.domain !== "control") ?? likelyRun();
    if (!this.run) {
      put(this.root, empty("No runs yet", h("p", {}, "What a curriculum chooses, and what a run makes, appears here.")));
      return;
    }
    this.shown = true;
    store.current = this.run;
    this.picker = runPicker(this.run, (id) => {
      Object.assign(this, { run: id, step: null });
      this.begin();
    });
    this.chart?.close();
    this.chart = null;
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      id: "problem-step",
      "aria-label": "Step",
      oninput: () => {
        const at = Number(this.slider.value);
        this.step = at === this.steps.length - 1 ? null : this.steps[at];
        this.load();
      },
    });
    this.where = h("output", { for: "problem-step", class: "step-text" });
    this.shares = h("section", { class: "card", hidden: true, "data-shares": true }, h("h2", {}, "Categories over time"), h("div"));
    this.taken = h("section", { class: "card" });
    this.made = h("section", { class: "card" });
    this.body = h("div", { class: "method problems" }, this.shares, this.taken, this.made);
    put(
      this.root,
      h("h1", { class: "unseen" }, "Problems"),
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
    const mine = this.run;
    note("problems", { run: this.run, step: this.step });
    try {
      const [found, keys] = await Promise.all([get("problems", { run: mine, step: this.step }), get("keys", { run: mine })]);
      const categories = keys.step.filter((key) => key.startsWith(SHARE));
      const curves = await Promise.all(categories.map((key) => get("curves", { run: mine, key, points: 600 })));
      if (mine !== this.run) return;
      this.show(found);
      this.draw(
        categories,
        curves.map(({ curves: [curve] }) => curve),
      );
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (mine === this.run) put(this.body, empty(error.status === 404 ? "Gone" : "This cannot be shown", h("p", {}, error.message)));
    }
  }

  show(found) {
    this.steps = found.steps;
    this.slider.parentElement.hidden = !found.steps.length;
    this.slider.max = Math.max(0, found.steps.length - 1);
    this.slider.value = Math.max(0, found.steps.indexOf(found.step));
    this.slider.setAttribute("aria-valuetext", `step ${found.step}`);
    put(this.where, h("strong", {}, `step ${found.step ?? "–"}`), ` of ${found.steps.at(-1) ?? "–"}`);
    if (!found.steps.length) {
      put(this.taken, h("h2", {}, "Nothing was chosen"), h("p", {}, "Only runs that choose their problems, or make some, say which."));
      this.made.hidden = true;
      return;
    }
    put(this.taken, h("h2", {}, `${plural(found.problems.length, "problem")} of step ${found.step}`), takenTable(found.problems));
    this.made.hidden = !found.made_in_all;
    const most = found.made.length < found.made_in_all ? `, of which ${count(found.made.length)} are shown` : "";
    put(this.made, h("h2", {}, `${plural(found.made_in_all, "problem")} made during the run${most}`), madeTable(found.made));
  }

  /** The share of each category in the problems of a step, all in one chart. */
  draw(categories, curves) {
    this.shares.hidden = !categories.length;
    if (!categories.length) return;
    const name = (key) => words(key.slice(SHARE.length));
    this.chart ??= new Chart(this.shares.lastChild, "Share of each category in a step", { zoom: () => {}, reset: () => {} });
    const lines = curves.map((curve, at) => ({ name: name(categories[at]), ...look(at), x: curve.x, y: curve.y }));
    this.chart.show(lines, { xName: "step", logX: false, logY: false, range: null });
    this.names ??= this.shares.insertBefore(h("p", { class: "chips" }), this.shares.lastChild);
    if (!this.names.isConnected) this.shares.insertBefore(this.names, this.shares.lastChild);
    put(
      this.names,
      lines.map(({ name, hue }) => {
        const mark = h("span", { class: "share-mark", "aria-hidden": "true" });
        mark.style.background = `var(${hue})`;
        return h("span", { class: "chip" }, mark, name);
      }),
    );
  }
}

/** Rows under heads, in a box that scrolls sideways where it must. */
function table(heads, rows) {
  const head = h("tr", {}, ...heads.map((each) => h("th", { scope: "col" }, each)));
  return h("div", { class: "wide-table" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
}

function takenTable(problems) {
  const rows = problems.map((each) =>
    h(
      "tr",
      {},
      h("td", { class: "part" }, prompt(each)),
      h("td", {}, number(each.answers)),
      h("td", {}, number(each.reward)),
      h("td", {}, reasons(each.chosen)),
    ),
  );
  return table(["Problem", "Answers", "Mean reward", "Chosen by"], rows);
}

function madeTable(problems) {
  const rows = problems.map((each) =>
    h(
      "tr",
      {},
      h("td", { class: "part" }, prompt(each)),
      h("td", {}, `${each.made_by || "–"}, step ${each.step}`),
      h("td", {}, number(each.generation)),
      h("td", {}, number(each.taken)),
      h("td", {}, number(each.reward)),
      h("td", {}, reasons(each.chosen)),
    ),
  );
  return table(["Problem", "Made", "Generation", "Times taken", "Last reward", "Last chosen by"], rows);
}

/** A problem, and under it those it was made from, the nearest first. */
function prompt({ prompt: text, made_from: before }) {
  const line = before.length > 0 && h("ol", { class: "ancestors soft", "aria-label": "made from" }, before.map((each) => h("li", {}, each)));
  return [h("span", { class: "prompt-text" }, text), line];
}

function reasons(chosen) {
  const facts = Object.entries(chosen).filter(([name]) => name !== "answers");
  return facts.map(([name, value]) => `${words(name)} ${typeof value === "number" ? number(value) : (value ?? "–")}`).join(", ") || "–";
}
