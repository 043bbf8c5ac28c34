// The rows of the table of runs. Only those in sight exist: 1,000 runs cost no more than 30.

import { h } from "./dom.js";
import { factOf, factText } from "./facts.js";
import { ago, duration, number, plural } from "./format.js";
import { tagChips } from "./notes.js";
import { link } from "./router.js";
import { controls, progress, score, spark, status } from "./run_bits.js";
import { store } from "./store.js";

// A phone has a row's cells over one another; runs.css has the same heights.
const PHONE = matchMedia("(max-width: 700px)");
export const rowHeight = () => (PHONE.matches ? 104 : 52);
const SPARE = 8;
const CELLS = 10;
const ENDED_BADLY = ["broken", "crashed"];
// Rows once made are kept: scrolling back costs nothing.
const MOST_KEPT = 2000;

/** Keeps a table's body filled with the lines in sight of `scroller`. `actions`: tick(id, shift), fold, tickAll(runs, on), focus(at). */
export class Rows {
  constructor(scroller, body, actions) {
    Object.assign(this, { scroller, body, actions, lines: [], active: 0, made: new Map() });
    this.columns = [];
    this.names = new Map();
    this.above = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: CELLS }));
    this.below = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: CELLS }));
    this.turned = () => this.draw();
    PHONE.addEventListener("change", this.turned);
    scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(scroller);
  }

  /** New lines with the names of their runs and further columns; rows of runs in `changed` (null: all) are made anew. */
  show(lines, names, columns, changed) {
    for (const [id, name] of names) if (this.names.get(id) !== name) this.made.delete(`run ${id}`);
    if (this.columns.join() !== columns.join()) this.made.clear();
    Object.assign(this, { lines, names, columns });
    this.active = Math.max(0, Math.min(this.active, lines.length - 1));
    if (changed === null) this.made.clear();
    else for (const id of changed) this.made.delete(`run ${id}`);
    this.draw();
  }

  /** Moves the one tab stop of the table to a line, and the focus with it. */
  focus(at) {
    if (!this.lines.length) return;
    this.active = Math.max(0, Math.min(at, this.lines.length - 1));
    const head = this.body.parentElement.tHead.offsetHeight;
    const [top, bottom] = [this.active * rowHeight(), (this.active + 1) * rowHeight()];
    const view = this.scroller.clientHeight - head;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (bottom > this.scroller.scrollTop + view) this.scroller.scrollTop = bottom - view;
    this.draw();
    this.made.get(keyOf(this.lines[this.active]))?.focus({ preventScroll: true });
  }

  draw() {
    const row = rowHeight();
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / row) - SPARE);
    const last = Math.min(this.lines.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / row) + SPARE);
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const focusedKey = focused?.closest("tr")?.dataset.key;
    const wanted = new Map();
    for (let at = first; at < last; at++) {
      const line = this.lines[at];
      const key = keyOf(line);
      const element = this.kept(key, line) ?? (line.kind === "run" ? this.run(line.run) : this.group(line));
      element.setAttribute("aria-rowindex", at + 2);
      element.dataset.at = at;
      const stop = at === this.active ? 0 : -1;
      if (element.tabIndex !== stop) for (const part of [element, ...element.querySelectorAll("a, button, input")]) part.tabIndex = stop;
      element.classList.toggle("odd", at % 2 === 1);
      if (line.kind === "run") {
        const on = store.ticked.has(line.run.id);
        element.classList.toggle("ticked", on);
        element.querySelector("input").checked = on;
      }
      wanted.set(key, element);
    }
    for (const [key, element] of wanted) this.made.set(key, element);
    if (this.made.size > MOST_KEPT) this.made = wanted;
    this.above.firstChild.style.height = `${first * row}px`;
    this.below.firstChild.style.height = `${Math.max(0, this.lines.length - last) * row}px`;
    arrange(this.body, [this.above, ...wanted.values(), this.below]);
    if (focusedKey && !this.body.contains(document.activeElement)) {
      (focused.isConnected ? focused : wanted.get(focusedKey))?.focus({ preventScroll: true });
    }
  }

  /** The row made before, unless what a heading says has changed. */
  kept(key, line) {
    const row = this.made.get(key);
    return row && (line.kind === "run" || row.dataset.said === heading(line)) ? row : null;
  }

  run(run) {
    const box = h("input", { type: "checkbox", tabindex: -1, "aria-label": `Tick ${run.id}` });
    box.addEventListener("click", (event) => {
      event.stopPropagation();
      this.actions.tick(run.id, event.shiftKey);
    });
    const to = (view, text) =>
      h("a", { href: link(view, { run: run.id }), tabindex: -1, "aria-label": `${text} of ${run.id}` }, text);
    const name = this.names.get(run.id) ?? run.method ?? "unknown";
    const cell = (kind, ...inside) => h("td", { role: "cell", class: kind }, ...inside);
    const row = h(
      "tr",
      { class: "run", role: "row", tabindex: -1, "data-key": `run ${run.id}`, "aria-label": `${run.id}, ${run.status}` },
      cell("tick-cell", box),
      cell("c-status", status(run)),
      cell(
        "name",
        h("a", { href: link("curves", { run: run.id }), tabindex: -1, title: name }, name),
        h("small", { title: run.why || run.id }, run.why && ENDED_BADLY.includes(run.status) ? `${run.id}: ${run.why}` : run.id),
      ),
      cell("c-task", h("span", {}, run.task ?? "–"), h("small", {}, run.model || run.domain || "")),
      cell("figure c-score", score(run)),
      cell("c-spark", spark(run)),
      cell("c-progress", progress(run)),
      cell("figure c-seed", run.seed ?? "–"),
      cell("figure c-seconds", duration(run.seconds)),
      this.columns.map((column) => further(run, column)),
      cell(
        "last",
        h("span", { class: "soft when" }, ago(run.began)),
        h("span", { class: "row-links" }, run.recorded && to("rollouts", "Rollouts"), to("method", "Method"), controls(run, true)),
      ),
    );
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a, button, input")) this.actions.tick(run.id, event.shiftKey);
    });
    row.addEventListener("focus", () => this.actions.focus(Number(row.dataset.at)));
    return row;
  }

  group(line) {
    const box = h("input", { type: "checkbox", tabindex: -1, "aria-label": `Tick all of ${line.name}` });
    const on = line.runs.filter((run) => store.ticked.has(run.id)).length;
    box.checked = on === line.runs.length;
    box.indeterminate = on > 0 && on < line.runs.length;
    box.addEventListener("click", (event) => {
      event.stopPropagation();
      this.actions.tickAll(line.runs, box.checked);
    });
    const fold = h(
      "button",
      {
        type: "button",
        class: "fold",
        tabindex: -1,
        "aria-expanded": String(line.open),
        onclick: () => this.actions.fold(line.name),
      },
      h("span", { class: "fold-mark", "aria-hidden": "true" }, line.open ? "▾" : "▸"),
      line.name,
    );
    const mean = line.score ? `average ${line.score.name} ${number(line.score.mean)}` : "";
    const row = h(
      "tr",
      {
        class: "group",
        role: "row",
        tabindex: -1,
        "data-key": keyOf(line),
        "data-said": heading(line),
        "aria-label": `${line.name}, ${plural(line.runs.length, "run")}`,
      },
      h("td", { role: "cell", class: "tick-cell" }, box),
      h(
        "td",
        { role: "cell", colspan: CELLS - 1 + this.columns.length },
        fold,
        h("span", { class: "soft" }, plural(line.runs.length, "run")),
        h("span", { class: "soft mean" }, mean),
      ),
    );
    row.addEventListener("focus", () => this.actions.focus(Number(row.dataset.at)));
    return row;
  }

  close() {
    this.watcher.disconnect();
    PHONE.removeEventListener("change", this.turned);
  }
}

/** A setting, a knob or the tags of a run in a column of their own. */
function further(run, column) {
  if (column === "tags") return h("td", { role: "cell", class: "further" }, tagChips(run));
  const value = factOf(run, column);
  const text = factText(value);
  return h("td", { role: "cell", class: typeof value === "number" ? "further figure" : "further", title: text }, text);
}

function keyOf(line) {
  return line.kind === "run" ? `run ${line.run.id}` : `group ${line.name}`;
}

/** All that a group's heading shows, to see whether it must be made anew. */
function heading(line) {
  const ticked = line.runs.filter((run) => store.ticked.has(run.id)).length;
  return [line.name, line.runs.length, line.open, ticked, line.score?.mean].join(" ");
}

/** Puts children in order, moving only those out of place: a row that is taken out and put back under the mouse loses its click. */
function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, at) => {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  });
}
