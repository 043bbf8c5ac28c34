// One chart: uPlot with our colours, a card of values under the cursor, zoom by dragging, and keys.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { forLog, nearest } from "./curve_data.js";
import { h, put } from "./dom.js";
import { compact, number } from "./format.js";
import { link } from "./router.js";
import { store } from "./store.js";
import { swatch } from "./swatch.js";
import { colour, faded, onTheme } from "./theme.js";

const MOST_ROWS = 12;
// Steps, samples and tokens come whole.
const WHOLE = Array.from({ length: 15 }, (none, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

/** Draws lines in `host`. `actions`: zoom(from, to), reset(). `sync` names charts whose cursors move together. */
export class Chart {
  constructor(host, label, actions, { sync = null, height = 230 } = {}) {
    Object.assign(this, { host, label, actions, sync, height, plot: null, model: null, shape: "", reading: false });
    this.summary = h("ul", { class: "unseen" });
    this.card = h("div", { class: "chart-card", role: "status", hidden: true });
    host.classList.add("chart");
    host.append(this.summary);
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.setAttribute("aria-label", `${label}. Arrow keys read values, Enter leads to rollouts, plus and minus zoom, 0 shows all.`);
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("focusout", (event) => {
      if (host.contains(event.relatedTarget)) return;
      this.reading = false;
      this.unpin();
    });
    this.watcher = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: this.height }));
    this.watcher.observe(host);
    this.unTheme = onTheme(() => this.model && this.rebuild());
  }

  width() {
    return Math.max(200, this.host.clientWidth);
  }

  /**
   * New lines ({name, hue, dash, x, y, and perhaps faint, low, high, whiskers, band}) on axes {xName, logX, logY, range}, perhaps
   * with marks ({x, text} each): moments at which something happened.
   */
  show(lines, axes) {
    this.model = { lines: lines.map((line) => forLog(line, axes.logX, axes.logY)), axes };
    const shape = JSON.stringify([
      lines.map((line) => [line.name, line.hue, line.dash, !!line.faint, !!line.low, !!line.whiskers]),
      axes.xName,
      axes.logX,
      axes.logY,
    ]);
    if (this.plot && shape === this.shape) this.plot.setData(this.columns());
    else this.rebuild();
    this.shape = shape;
    this.summarise();
  }

  /** The same for those who do not see it: where every line stands now. */
  summarise() {
    put(
      this.summary,
      this.model.lines.map(({ name, x, y }) => {
        const last = y.findLastIndex((value) => Number.isFinite(value));
        return h(
          "li",
          {},
          last < 0 ? `${name}: nothing yet` : `${name}: ${number(y[last], 4)} at ${this.model.axes.xName} ${number(x[last])}`,
        );
      }),
      (this.model.axes.marks ?? []).map(({ x, text }) => h("li", {}, `${text} at ${this.model.axes.xName} ${number(x)}`)),
    );
  }

  columns() {
    const tables = this.model.lines.map((line) => [line.x, ...parts(line).map((part) => line[part])]);
    return tables.length ? uPlot.join(tables) : [[], []];
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), this.columns(), this.host);
    this.plot.over.append(this.card);
    this.plot.over.addEventListener("click", (event) => this.clicked(event));
    this.plot.over.addEventListener("mouseenter", () => (this.hovered = true));
    this.plot.over.addEventListener("mouseleave", () => {
      this.hovered = false;
      if (!this.pinned) this.card.hidden = true;
    });
  }

  options() {
    const { axes } = this.model;
    const [series, bands] = this.series();
    const axis = {
      stroke: colour("--soft"),
      font: '11px "Inter", system-ui, sans-serif',
      grid: { stroke: colour("--rule"), width: 1 },
      ticks: { show: false },
      values: (plot, splits) => splits.map((value) => (value === null ? "" : tickText(value))),
    };
    return {
      width: this.width(),
      height: this.height,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      focus: { alpha: 0.18 },
      series,
      bands,
      axes: [
        { ...axis, size: 26, gap: 5, incrs: axes.xName === "seconds" ? undefined : WHOLE },
        { ...axis, size: 52, gap: 6, space: 34 },
      ],
      scales: {
        x: { time: false, distr: axes.logX ? 3 : 1, range: (plot, low, high) => this.xRange(low, high) },
        y: { distr: axes.logY ? 3 : 1, range: (plot, low, high) => yRange(low, high, axes.logY) },
      },
      cursor: {
        y: false,
        // Lines that only carry a band or a faint trace get no dot.
        points: {
          size: (plot, at) => (this.main.includes(at) ? 7 : 0),
          width: (plot, at) => (this.main.includes(at) ? 2 : 0),
          fill: colour("--card"),
        },
        drag: { x: true, y: false, setScale: false },
        sync: this.sync ? { key: this.sync, setSeries: false, scales: ["x", null] } : undefined,
        bind: {
          dblclick: () => () => {
            this.actions.reset?.();
            return null;
          },
        },
      },
      hooks: {
        setCursor: [() => this.read()],
        setSelect: [() => this.selected()],
        draw: [(plot) => this.whiskers(plot), (plot) => this.marks(plot)],
      },
    };
  }

  series() {
    const series = [{}];
    const bands = [];
    this.main = [];
    for (const line of this.model.lines) {
      const ink = colour(line.hue);
      for (const part of parts(line)) {
        if (part === "y") {
          this.main.push(series.length);
          series.push({
            stroke: ink,
            width: line.band ? 2.2 : 1.8,
            dash: line.dash,
            points: { show: line.whiskers || line.x.length < 2, size: 6, fill: ink, stroke: ink },
          });
        } else if (part === "faint") series.push({ stroke: faded(ink, 0.28), width: 1, points: { show: false } });
        else series.push({ stroke: "transparent", width: 0, points: { show: false } });
        if (part === "high" && !line.whiskers)
          bands.push({ series: [series.length - 1, series.length - 2], fill: faded(ink, 0.15) });
      }
    }
    return [series.length > 1 ? series : [{}, {}], bands];
  }

  xRange(low, high) {
    const { range, logX } = this.model.axes;
    if (range) return range;
    if (low === null || high === null) return logX ? [1, 10] : [0, 1];
    if (logX) return [low / 1.1, high * 1.1];
    const pad = (high - low) * 0.015 || 0.5;
    return [low - pad, high + pad];
  }

  /** Evaluations have intervals of their own: a stroke from low to high through each point. */
  whiskers(plot) {
    const { ctx } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    ctx.clip();
    for (const line of this.model.lines.filter((each) => each.whiskers && each.low)) {
      ctx.strokeStyle = faded(colour(line.hue), 0.55);
      ctx.lineWidth = 2 * devicePixelRatio;
      for (const [at, x] of line.x.entries()) {
        if (line.low[at] === null || line.high[at] === null) continue;
        const left = plot.valToPos(x, "x", true);
        ctx.beginPath();
        ctx.moveTo(left, plot.valToPos(line.low[at], "y", true));
        ctx.lineTo(left, plot.valToPos(line.high[at], "y", true));
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  /** What happened: a stroke from top to bottom, with a flag that is seen where strokes are many. */
  marks(plot) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const flag = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = faded(colour("--bad"), 0.6);
    ctx.fillStyle = colour("--bad");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const { x } of this.model.axes.marks ?? []) {
      const at = plot.valToPos(x, "x", true);
      if (!(at >= left && at <= left + width)) continue;
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(at - flag, top);
      ctx.lineTo(at + flag, top);
      ctx.lineTo(at, top + 1.5 * flag);
      ctx.fill();
    }
    ctx.restore();
  }

  selected() {
    const { left, width } = this.plot.select;
    if (width < 5) return;
    const [from, to] = [this.plot.posToVal(left, "x"), this.plot.posToVal(left + width, "x")];
    this.plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.dragged = Boolean(this.actions.zoom);
    this.actions.zoom?.(from, to);
  }

  /** Says what every line has nearest to the cursor. */
  read() {
    const left = this.plot.cursor.left;
    if (this.pinned) return;
    if (!(this.hovered || this.reading) || left === null || left < 0) {
      this.card.hidden = true;
      return;
    }
    const x = this.plot.posToVal(left, "x");
    const slack = Math.abs(this.plot.scales.x.max - this.plot.scales.x.min) * 0.03;
    const rows = this.model.lines
      .map((line) => ({ line, at: nearest(line.x, x) }))
      .filter(({ line, at }) => at >= 0 && Number.isFinite(line.y[at]) && x >= line.x[0] - slack && x <= line.x.at(-1) + slack);
    this.card.hidden = !rows.length;
    if (!rows.length) return;
    const said = rows.reduce((best, row) =>
      Math.abs(row.line.x[row.at] - x) < Math.abs(best.line.x[best.at] - x) ? row : best,
    ).line;
    rows.sort((one, other) => other.line.y[other.at] - one.line.y[one.at]);
    put(
      this.card,
      h("strong", {}, `${this.model.axes.xName} ${compact(said.x[nearest(said.x, x)])}`),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          rows.slice(0, MOST_ROWS).map(({ line, at }) => this.row(line, at)),
        ),
      ),
      rows.length > MOST_ROWS && h("small", {}, `and ${rows.length - MOST_ROWS} more`),
      rows.some(({ line }) => recorded(line)) && h("small", { class: "pin-hint" }, "click, or Enter: rollouts behind this"),
      this.marksNear(x, slack / 3).map(({ text }) => h("p", { class: "mark-text" }, text)),
    );
    this.card.hidden = false;
    const wide = this.card.offsetWidth;
    const beside = left + 16 + wide > this.plot.over.clientWidth ? left - wide - 16 : left + 16;
    this.card.style.transform = `translate(${Math.round(Math.max(-40, beside))}px, 4px)`;
  }

  marksNear(x, slack) {
    return (this.model.axes.marks ?? []).filter((mark) => Math.abs(mark.x - x) <= slack);
  }

  row(line, at) {
    const beside =
      line.low && Number.isFinite(line.low[at]) && Number.isFinite(line.high[at])
        ? `${number(line.low[at])} to ${number(line.high[at])}`
        : line.faint
          ? `raw ${number(line.faint[at])}`
          : "";
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, swatch(line), line.name),
      h("td", {}, number(line.y[at], 4)),
      h("td", { class: "soft" }, beside),
      recorded(line) && h("td", { class: "behind" }, h("a", { href: behind(line, at, this.model.axes.xName) }, "rollouts")),
    );
  }

  /** Holds the card where it is, so that its links can be reached: from a point of a curve to the rollouts behind it. */
  pin() {
    if (this.card.hidden) return;
    this.pinned = true;
    this.card.classList.add("pinned");
  }

  unpin() {
    this.pinned = false;
    this.card.classList.remove("pinned");
    this.card.hidden = true;
  }

  clicked(event) {
    if (this.card.contains(event.target)) return;
    if (this.dragged) {
      this.dragged = false; // the end of a drag is no click
      return;
    }
    const was = this.pinned;
    this.unpin();
    if (was) return;
    this.hovered = true;
    this.read();
    this.pin();
  }

  /** Puts one line in front, or (null) all of them. */
  highlight(name) {
    if (!this.plot) return;
    const at = this.model.lines.findIndex((line) => line.name === name);
    this.plot.setSeries(at < 0 ? null : this.main[at], { focus: at >= 0 });
  }

  key(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const wide = this.plot.over.clientWidth;
    const left = this.plot.cursor.left >= 0 ? this.plot.cursor.left : wide / 2;
    const moves = { ArrowLeft: left - wide / 50, ArrowRight: left + wide / 50, Home: 0, End: wide };
    if (event.key in moves) {
      this.unpin();
      this.reading = true;
      this.plot.setCursor({ left: Math.max(0, Math.min(wide, moves[event.key])), top: 10 });
    } else if (event.key === "Enter" && event.target === this.host) {
      this.pin();
      this.card.querySelector("a")?.focus();
    } else if (event.key === "Escape" && this.pinned) {
      this.unpin();
      this.host.focus();
    } else if (event.key === "+" || event.key === "=") this.actions.zoom?.(...this.around(left, wide / 4));
    else if (event.key === "-") this.actions.zoom?.(...this.around(left, wide));
    else if (event.key === "0") this.actions.reset?.();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  around(left, reach) {
    const wide = this.plot.over.clientWidth;
    const whole = reach >= wide;
    return [
      this.plot.posToVal(whole ? -wide / 2 : Math.max(0, left - reach), "x"),
      this.plot.posToVal(whole ? wide * 1.5 : Math.min(wide, left + reach), "x"),
    ];
  }

  close() {
    this.watcher.disconnect();
    this.unTheme();
    this.plot?.destroy();
  }
}

/** Whether there are rollouts behind a line. */
function recorded(line) {
  return Boolean(line.run && store.runs.get(line.run)?.recorded);
}

/** The address of the rollouts behind a point. */
function behind(line, at, axis) {
  return link("rollouts", { run: line.run, step: axis === "step" ? line.x[at] : line.step?.[at] });
}

/** Which lists of a line become series, in which order; the main one last so that it lies on top. */
function parts(line) {
  return [line.low && line.high && "low", line.low && line.high && "high", line.faint && "faint", "y"].filter(Boolean);
}

function yRange(low, high, log) {
  if (low === null || high === null) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low * 0.8, high * 1.25];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
  return [low - (low >= 0 && low - pad < 0 ? low : pad), high + pad];
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e4) return compact(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(0).replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}
