// Curves of several runs over one another: which metrics, against what, how smooth, single runs or bands over seeds.

import { ApiError, get } from "./api.js";
import { notice } from "./crash.js";
import { lineOf, lineOfBand, look, looks, MOST_LOOKS } from "./curve_data.js";
import { Legend } from "./curve_legend.js";
import { Chart } from "./chart.js";
import { copyable, empty, h, put, segmented, tick } from "./dom.js";
import { plural, words } from "./format.js";
import { first, inOrder, MetricMenu } from "./metric_menu.js";
import { meaningOf, titleOf } from "./metrics.js";
import { notesLine } from "./notes.js";
import { link, note } from "./router.js";
import { likelyRun } from "./run_bits.js";
import { namesOf } from "./run_names.js";
import { choose, setTicked, store, subscribe } from "./store.js";

const CHARTS = 6;
const MOST = MOST_LOOKS;
const AXES = [
  ["step", "steps"],
  ["samples", "samples"],
  ["tokens", "tokens"],
  ["seconds", "seconds"],
];
const PAUSE_MS = 900;
const FAULT = "fault_";

/** Opens the curves of the runs in the address, or of those that are ticked. */
export function open(root, params) {
  return new CurvesView(root, params);
}

class CurvesView {
  constructor(root, params) {
    Object.assign(this, { root, charts: new Map(), keys: new Map(), timer: 0, last: 0, notice: "", asked: new Map(), marks: [], behind: new Set() });
    this.take(params);
    this.build();
    this.stop = subscribe((changed, gone) => this.heard(changed, gone));
    this.choose();
  }

  take(params) {
    this.wanted = params.getAll("run");
    this.shown = params.getAll("key");
    this.x = AXES.some(([value]) => value === params.get("x")) ? params.get("x") : "step";
    this.smoothing = Math.min(0.99, Math.max(0, Number(params.get("smooth")) || 0));
    this.bands = params.has("bands");
    this.logX = params.has("logx");
    this.logY = params.has("logy");
    this.filter = params.get("filter") ?? "";
    this.order = params.get("sort") ?? "";
    const [from, to] = [params.get("from"), params.get("to")].map((text) => (text === null ? NaN : Number(text)));
    this.range = Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null;
  }

  change(params) {
    this.take(params);
    this.build();
    this.choose();
  }

  close() {
    this.stop();
    clearTimeout(this.timer);
    this.menu.close();
    for (const chart of this.charts.values()) chart.chart.close();
  }

  build() {
    for (const chart of this.charts.values()) chart.chart.close();
    this.charts.clear();
    this.axis = segmented("x-axis", "Against", AXES, this.x, (value) => {
      this.x = value;
      this.range = null;
      this.again();
    });
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      value: this.smoothing,
      id: "smoothing",
      oninput: () => {
        this.smoothing = Number(this.slider.value);
        this.draw();
      },
    });
    this.menu?.close();
    this.menu = new MetricMenu((keys) => this.show(keys));
    this.reset = h("button", { type: "button", class: "button", hidden: true, onclick: () => this.zoom(null) }, "Whole range");
    const actions = {
      highlight: (name) => this.charts.forEach(({ chart }) => chart.highlight(name)),
      drop: (id) => this.drop(id),
      change: () => {
        Object.assign(this, { filter: this.legend.filter, order: this.legend.order });
        if (this.bands) this.again();
        else this.draw();
      },
    };
    this.legend = new Legend(actions, { filter: this.filter, order: this.order });
    this.notices = h("div", { class: "run-trouble" });
    this.grid = h("div", { class: "charts" });
    this.said = h("p", { class: "soft", role: "status" });
    this.bandTick = tick(
      "Seeds as bands",
      this.bands,
      (on) => {
        this.bands = on;
        this.again();
      },
      "Mean over seeds with a 95% interval; an interquartile mean from four seeds on",
    );
    put(
      this.root,
      h("h1", { class: "unseen" }, "Curves"),
      h(
        "div",
        { class: "toolbar" },
        this.menu.element,
        this.axis,
        h("label", { class: "field" }, h("span", {}, "Smooth"), this.slider),
        this.bandTick,
        tick("Log x", this.logX, (on) => {
          this.logX = on;
          this.draw();
        }),
        tick("Log y", this.logY, (on) => {
          this.logY = on;
          this.draw();
        }),
        this.reset,
        this.said,
      ),
      this.notices,
      h("div", { class: "curves-body" }, this.legend.element, this.grid),
    );
  }

  /** Which runs: those of the address that are there, else the ticked ones, else the newest. */
  choose() {
    if (store.state === "loading") return;
    const asked = this.wanted.length ? this.wanted : store.ticked.size ? [...store.ticked] : [likelyRun()].filter(Boolean);
    const there = asked.filter((id) => store.runs.has(id));
    const missing = asked.filter((id) => !there.includes(id));
    if (missing.length && store.state === "here")
      this.notice = `${missing.join(", ")}: ${missing.length === 1 ? "this run is" : "these runs are"} gone.`;
    this.ids = there.slice(0, MOST);
    this.wanted = there;
    if (there.length && !there.includes(store.current)) choose(there[0]);
    if (there.length > MOST) this.notice = `The first ${MOST} of ${there.length} runs are shown.`;
    if (!this.ids.length) {
      put(
        this.root,
        empty(
          this.notice ? "Gone" : "Nothing to draw yet",
          h("p", {}, this.notice || "A run's curves appear as soon as it starts."),
          store.runs.size ? h("a", { href: link("runs") }, "All runs") : copyable("upslope train dhpo"),
        ),
      );
      return;
    }
    if (!this.grid.isConnected) this.build();
    this.again();
  }

  async again() {
    this.note();
    await this.learnKeys();
    this.menu.fill(this.known, this.shown);
    this.layOut();
    await this.fetch();
  }

  /** Which metrics the runs have; asked once per run, and again while it goes on or has none. */
  async learnKeys() {
    const unknown = this.ids.filter(
      (id) => !this.keys.get(id)?.length || this.behind.has(id) || store.runs.get(id)?.status === "running",
    );
    await Promise.all(
      unknown.map(async (id) => {
        try {
          const found = await get("keys", { run: id });
          this.keys.set(id, [...(found.evaluation.length ? ["score"] : []), ...found.step]);
          if (found.behind) this.behind.add(id);
          else this.behind.delete(id);
        } catch (error) {
          if (!(error instanceof ApiError)) throw error;
        }
      }),
    );
    const all = new Set(this.ids.flatMap((id) => this.keys.get(id) ?? []));
    this.known = inOrder(all);
    if (!this.shown.length) this.shown = first(this.known).slice(0, CHARTS);
  }

  show(keys) {
    this.shown = keys.slice(0, MOST);
    this.again();
  }

  layOut() {
    for (const [key, { card, chart }] of this.charts) {
      if (this.shown.includes(key)) continue;
      chart.close();
      card.remove();
      this.charts.delete(key);
    }
    for (const key of this.shown) {
      if (this.charts.has(key)) continue;
      const host = h("div");
      const drop = h(
        "button",
        {
          type: "button",
          class: "quiet close",
          "aria-label": `Take away ${words(key)}`,
          title: "Take away",
          onclick: () => this.show(this.shown.filter((each) => each !== key)),
        },
        "×",
      );
      const card = h(
        "section",
        { class: "card chart-box", "data-key": key },
        h("header", {}, h("h2", { title: meaningOf(key) || null }, this.titleOf(key)), drop),
        meaningOf(key) && h("p", { class: "meaning soft" }, meaningOf(key)),
        host,
      );
      this.grid.append(card);
      const chart = new Chart(
        host,
        `${words(key)} of ${plural(this.ids.length, "run")}`,
        { zoom: (from, to) => this.zoom([from, to]), reset: () => this.zoom(null) },
        { sync: "curves" },
      );
      this.charts.set(key, { card, chart, data: null });
    }
  }

  titleOf(key) {
    const names = new Set(this.ids.map((id) => store.runs.get(id)?.score_name).filter(Boolean));
    return key === "score"
      ? `${[...names].join(", ") || "score"} on held-out ${names.has("mean return") ? "episodes" : "problems"}`
      : titleOf(key, words(key));
  }

  /** Asks for every chart's numbers; a drag re-asks for its range, so that what thinning hid comes into sight. */
  async fetch() {
    this.last = Date.now();
    const [from, to] = this.range ?? [null, null];
    const troubles = new Set();
    await Promise.all(
      [...this.charts].map(async ([key, entry]) => {
        this.asked.get(key)?.abort();
        const asking = new AbortController();
        this.asked.set(key, asking);
        try {
          const question = { run: this.shownIds(), key, x: this.x, points: 600, from, to };
          entry.data = await get(this.bands ? "bands" : "curves", question, asking.signal);
        } catch (error) {
          if (error.name === "AbortError") return;
          if (!(error instanceof ApiError)) throw error;
          if (error.status) troubles.add(error.message);
        }
      }),
    );
    this.notice = [...troubles].join(" ") || this.notice;
    this.marks = await this.faults(from, to).catch((error) => {
      if (!(error instanceof ApiError)) throw error;
      return [];
    });
    this.draw();
  }

  /** The runs to ask for. A band is of the runs that the filter leaves; of single runs those left out are only not drawn. */
  shownIds() {
    if (!this.bands || !this.filter) return this.ids;
    const left = this.legend.arrange(this.ids.map((id) => store.runs.get(id)).filter(Boolean)).map((run) => run.id);
    return left.length ? left : this.ids;
  }

  /** What went wrong and was mended, as marks on every curve. */
  async faults(from, to) {
    const kinds = this.known.filter((key) => key.startsWith(FAULT));
    const found = await Promise.all(kinds.map((key) => get("curves", { run: this.ids, key, x: this.x, points: 600, from, to })));
    return found.flatMap(({ curves }, at) =>
      curves.flatMap(({ x, y, high }) =>
        (high ?? y).flatMap((times, place) =>
          times > 0 ? [{ x: x[place], text: `${words(kinds[at].slice(FAULT.length))}${times > 1 ? ` ×${times}` : ""}` }] : [],
        ),
      ),
    );
  }

  draw() {
    this.note();
    this.reset.hidden = !this.range;
    this.said.textContent = this.notice;
    const all = this.ids.map((id) => store.runs.get(id)).filter(Boolean);
    this.legend.offer(all);
    const [runs, styles, names] = [this.legend.arrange(all), looks(all), namesOf(all)];
    const bandNames = namesOf(all, ["seed"]);
    const bandName = (band) => `${bandNames.get(band.runs[0]) ?? band.label} (${plural(band.runs.length, "seed")})`;
    const axes = { xName: this.x, logX: this.logX, logY: this.logY, range: this.range, marks: this.marks };
    const drawn = new Set(runs.map((run) => run.id));
    for (const [key, { chart, data }] of this.charts) {
      if (!data) continue;
      const lines = data.bands
        ? data.bands.map((band, at) => lineOfBand(band, key, bandName(band), look(at), this.smoothing))
        : data.curves
            .filter((curve) => drawn.has(curve.run))
            .map((curve) => lineOf(curve, key, names.get(curve.run), styles.get(curve.run), this.smoothing));
      chart.show(
        lines.filter((line) => line.x.length),
        axes,
      );
    }
    const bands = this.bands && [...this.charts.values()].map(({ data }) => data?.bands).find((found) => found?.length);
    if (bands) this.legend.showBands(bands, bandName, look);
    else this.legend.showRuns(runs, names, styles, all);
    this.tell(all);
  }

  /** What went wrong with these runs, or that there is nothing of them; of a single one also what people wrote on it. */
  tell(runs) {
    const said = JSON.stringify([runs.map((run) => [run.id, run.status, run.why, run.step > 0, run.tags, run.note]), store.allowControl]);
    if (this.notices.dataset.said === said) return;
    this.notices.dataset.said = said;
    put(this.notices, runs.length === 1 && notesLine(runs[0]), runs.map(notice));
  }

  drop(id) {
    this.wanted = this.wanted.filter((each) => each !== id);
    if (store.ticked.has(id)) setTicked([id], false);
    this.choose();
  }

  zoom(range) {
    this.range = range && range[0] < range[1] ? (this.x === "step" ? [Math.floor(range[0]), Math.ceil(range[1])] : range) : null;
    this.again();
  }

  heard(changed, gone) {
    if (!this.ids) this.choose();
    else if (this.ids.some((id) => gone.has(id)) || !this.ids.length) this.choose();
    else if (changed === null || this.ids.some((id) => changed.has(id))) this.soon();
  }

  /** New numbers are there: asks at once, but not more than about once a second. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.again(), Math.max(0, this.last + PAUSE_MS - Date.now()));
  }

  note() {
    note("curves", {
      run: this.wanted,
      key: this.shown,
      x: this.x === "step" ? null : this.x,
      smooth: this.smoothing || null,
      bands: this.bands,
      logx: this.logX,
      logy: this.logY,
      from: this.range?.[0] ?? null,
      to: this.range?.[1] ?? null,
      filter: this.filter,
      sort: this.order,
    });
  }
}
