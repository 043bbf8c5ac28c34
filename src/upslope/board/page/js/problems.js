// The problems of a run that chooses or makes them: shares of categories over time, a step's problems and why, those made.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { look } from "./curve_data.js";
import { h, put, wideTable } from "./dom.js";
import { count, number, plural, words } from "./format.js";
import { link } from "./router.js";
import { RunView } from "./run_view.js";
import { store } from "./store.js";
import { swatch } from "./swatch.js";

const SHARE = "share_";

/** Opens the problems of a run. */
export function open(root, params) {
  return new ProblemsView(root, params).start();
}

class ProblemsView extends RunView {
  view = "problems";
  title = "Problems";
  nothing = "What a curriculum chooses, and what a run makes, appears here.";

  leave() {
    this.chart?.close();
    this.chart = null;
  }

  build() {
    this.shares = h("section", { class: "card", hidden: true, "data-shares": true }, h("h2", {}, "Categories over time"), h("div"));
    this.taken = h("section", { class: "card" });
    this.made = h("section", { class: "card" });
    return [this.shares, this.taken, this.made];
  }

  async fetch() {
    const [found, keys] = await Promise.all([get("problems", { run: this.run, step: this.step }), get("keys", { run: this.run })]);
    const categories = keys.step.filter((key) => key.startsWith(SHARE));
    const curves = await Promise.all(categories.map((key) => get("curves", { run: this.run, key, points: 600 })));
    return { ...found, categories, curves: curves.map(({ curves: [curve] }) => curve) };
  }

  show(found) {
    this.draw(found.categories, found.curves);
    this.at(found.steps, found.step);
    if (!found.steps.length) {
      put(this.taken, h("h2", {}, "Nothing was chosen"), h("p", {}, "Only runs that choose their problems, or make some, say which."));
      this.made.hidden = true;
      return;
    }
    put(this.taken, h("h2", {}, `${plural(found.problems.length, "problem")} of step ${found.step}`), this.behind(found.step), takenTable(found.problems));
    this.made.hidden = !found.made_in_all;
    const most = found.made.length < found.made_in_all ? `, of which ${count(found.made.length)} are shown` : "";
    put(this.made, h("h2", {}, `${plural(found.made_in_all, "problem")} made during the run${most}`), madeTable(found.made));
  }

  /** The rollouts of this step, if there are any. */
  behind(step) {
    if (!store.runs.get(this.run)?.recorded) return null;
    return h("p", {}, h("a", { href: link("rollouts", { run: this.run, step }) }, "The rollouts of this step"));
  }

  /** The share of each category in the problems of a step, all in one chart. */
  draw(categories, curves) {
    this.shares.hidden = !categories.length;
    if (!categories.length) return;
    const name = (key) => words(key.slice(SHARE.length));
    this.chart ??= new Chart(this.shares.lastChild, "Share of each category in a step", { zoom: () => {}, reset: () => {} });
    const lines = curves.map((curve, at) => ({ name: name(categories[at]), run: this.run, ...look(at), x: curve.x, y: curve.y }));
    this.chart.show(lines, { xName: "step", logX: false, logY: false, range: null });
    this.names ??= this.shares.insertBefore(h("p", { class: "chips" }), this.shares.lastChild);
    if (!this.names.isConnected) this.shares.insertBefore(this.names, this.shares.lastChild);
    put(
      this.names,
      lines.map((line) => h("span", { class: "chip" }, swatch(line), line.name)),
    );
  }
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
  return wideTable("Problems of this step", ["Problem", "Answers", "Mean reward", "Chosen by"], rows);
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
  return wideTable("Problems that were made", ["Problem", "Made", "Generation", "Times taken", "Last reward", "Last chosen by"], rows);
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
