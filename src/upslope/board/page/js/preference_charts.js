// Curves of preferences, those that belong together in one chart: both likelihoods, the margin, exploitability, a judge's failures.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { look } from "./curve_data.js";
import { h, put } from "./dom.js";
import { words } from "./format.js";

/** Title, meaning, and which metrics: names, or the beginning of names. */
const CHARTS = [
  [
    "Log-likelihood of both sides",
    "Losses of preferences ask for a difference alone: both may fall.",
    (key) => key === "logp_chosen" || key === "logp_rejected",
  ],
  ["Margin", "By how much the winner's score is above the loser's.", (key) => key === "margin"],
  ["Preferred", "Share of contests in which the margin is on the right side.", (key) => key === "preferred"],
  ["Preference gap", "Chance that the best answer of a group beats its worst, over one half.", (key) => key === "preference_gap"],
  ["Exploitability", "What the best reply to the policy wins beyond one half.", (key) => key === "exploitability"],
  ["Chance of each answer", "The policy's own, where there are few answers.", (key) => key.startsWith("chance_")],
  ["Verdicts that failed", "Of the pairs put to the judge in a step.", (key) => key.startsWith("judge_")],
];
const MOST_LINES = 8;

/** A grid of charts; `load(run)` fills it with what that run has. */
export class PreferenceCharts {
  constructor() {
    this.charts = new Map();
    this.element = h("div", { class: "charts", hidden: true });
  }

  close() {
    for (const { chart } of this.charts.values()) chart.close();
    this.charts.clear();
  }

  async load(run) {
    const keys = await get("keys", { run });
    const all = [...new Set([...keys.step, ...keys.evaluation])];
    await Promise.all(
      CHARTS.map(async ([title, meaning, belongs]) => {
        const own = all.filter(belongs).slice(0, MOST_LINES);
        const found = await Promise.all(own.map((key) => get("curves", { run, key, points: 600 })));
        const lines = found.map(({ curves: [curve] }, at) => lineOf(curve, own[at], at)).filter((line) => line.x.length);
        if (lines.length && this.element) this.draw(title, meaning, lines);
      }),
    );
    this.element.hidden = this.charts.size === 0;
  }

  draw(title, meaning, lines) {
    this.element.hidden = false;
    if (!this.charts.has(title)) this.charts.set(title, this.made(title, meaning));
    const { chart, names } = this.charts.get(title);
    chart.show(lines, { xName: "step", logX: false, logY: false, range: null });
    names.hidden = lines.length < 2;
    put(
      names,
      lines.map(({ name, hue }) => {
        const mark = h("span", { class: "share-mark", "aria-hidden": "true" });
        mark.style.background = `var(${hue})`;
        return h("span", { class: "chip" }, mark, name);
      }),
    );
  }

  made(title, meaning) {
    const [host, names] = [h("div"), h("p", { class: "chips" })];
    const card = h(
      "section",
      { class: "card chart-box", "data-chart": title },
      h("header", {}, h("h2", {}, title)),
      h("p", { class: "meaning soft" }, meaning),
      names,
      host,
    );
    const place = CHARTS.findIndex(([name]) => name === title);
    const next = [...this.element.children].find((other) => CHARTS.findIndex(([name]) => name === other.dataset.chart) > place);
    this.element.insertBefore(card, next ?? null);
    return { chart: new Chart(host, title, { zoom: () => {}, reset: () => {} }, { sync: "preferences" }), names };
  }
}

/** A metric of steps, or else what evaluations say of it. */
function lineOf(curve, key, at) {
  const { x, y } = curve.x.length ? curve : (curve.evaluation ?? { x: [], y: [] });
  return { name: words(key), ...look(at), x, y };
}
