// Curves that belong together, several to a chart: of a run, as far as it has them.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { look } from "./curve_data.js";
import { h, put } from "./dom.js";
import { words } from "./format.js";
import { swatch } from "./swatch.js";

const MOST_LINES = 8;

/** A grid of charts ([title, meaning, which metrics] each); `load(run)` fills it. Charts of one `name` share their cursor. */
export class ChartGroup {
  constructor(kinds, name) {
    Object.assign(this, { kinds, name, charts: new Map() });
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
      this.kinds.map(async ([title, meaning, belongs]) => {
        const own = all.filter(belongs).slice(0, MOST_LINES);
        const found = await Promise.all(own.map((key) => get("curves", { run, key, points: 600 })));
        const lines = found.map(({ curves: [curve] }, at) => lineOf(curve, own[at], at, run)).filter((line) => line.x.length);
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
      lines.map((line) => h("span", { class: "chip" }, swatch(line), line.name)),
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
    const place = this.kinds.findIndex(([name]) => name === title);
    const next = [...this.element.children].find((other) => this.kinds.findIndex(([name]) => name === other.dataset.chart) > place);
    this.element.insertBefore(card, next ?? null);
    return { chart: new Chart(host, title, { zoom: () => {}, reset: () => {} }, { sync: this.name }), names };
  }
}

/** A metric of steps, or else what evaluations say of it. */
function lineOf(curve, key, at, run) {
  const { x, y } = curve.x.length ? curve : (curve.evaluation ?? { x: [], y: [] });
  return { name: words(key), run, ...look(at), x, y };
}
