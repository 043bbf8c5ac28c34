// The rows of the table of runs. Only those in sight exist: 500 runs cost no more than 30.

import { h } from "./dom.js";
import { ago, duration, number, plural } from "./format.js";
import { link } from "./router.js";
import { controls, progress, score, spark, status } from "./run_bits.js";
import { store } from "./store.js";

export const ROW = 52;
const SPARE = 8;
const CELLS = 10;
// Rows once made are kept: scrolling back costs nothing.
const MOST_KEPT = 2000;

/** Keeps a table's body filled with the lines in sight of `scroller`. `actions`: tick(id, shift), fold, tickAll(runs, on), focus(at). */
export class Rows {
  constructor(scroller, body, actions) {
    Object.assign(this, { scroller, body, actions, lines: [], active: 0, made: new Map() });
    this.above = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: CELLS }));
    this.below = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: CELLS }));
    scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(scroller);
  }

  /** New lines; rows of runs in `changed` (null: all) are made anew. */
  show(lines, changed) {
    this.lines = lines;
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
    const [top, bottom] = [this.active * ROW, (this.active + 1) * ROW];
    const view = this.scroller.clientHeight - head;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (bottom > this.scroller.scrollTop + view) this.scroller.scrollTop = bottom - view;
    this.draw();
    this.made.get(keyOf(this.lines[this.active]))?.focus({ preventScroll: true });
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - SPARE);
    const last = Math.min(this.lines.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / ROW) + SPARE);
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const focusedKey = focused?.closest("tr")?.dataset.key;
    const wanted = new Map();
    for (let at = first; at < last; at++) {
      const line = this.lines[at];
      const key = keyOf(line);
      const row = this.kept(key, line) ?? (line.kind === "run" ? this.run(line.run) : this.group(line));
      row.setAttribute("aria-rowindex", at + 2);
      row.dataset.at = at;
      const stop = at === this.active ? 0 : -1;
      if (row.tabIndex !== stop) for (const part of [row, ...row.querySelectorAll("a, button, input")]) part.tabIndex = stop;
      row.classList.toggle("odd", at % 2 === 1);
      if (line.kind === "run") {
        const on = store.ticked.has(line.run.id);
        row.classList.toggle("ticked", on);
        row.querySelector("input").checked = on;
      }
      wanted.set(key, row);
    }
    for (const [key, row] of wanted) this.made.set(key, row);
    if (this.made.size > MOST_KEPT) this.made = wanted;
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${Math.max(0, this.lines.length - last) * ROW}px`;
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
    const row = h(
      "tr",
      { class: "run", tabindex: -1, "data-key": `run ${run.id}`, "aria-label": `${run.id}, ${run.status}` },
      h("td", { class: "tick-cell" }, box),
      h("td", {}, status(run)),
      h(
        "td",
        { class: "name" },
        h("a", { href: link("curves", { run: run.id }), tabindex: -1 }, run.method || "unknown"),
        h("small", { title: run.id }, run.status === "broken" ? run.why : run.id),
      ),
      h("td", {}, h("span", {}, run.task ?? "–"), h("small", {}, run.model || run.domain || "")),
      h("td", { class: "figure" }, score(run)),
      h("td", {}, spark(run)),
      h("td", {}, progress(run)),
      h("td", { class: "figure" }, run.seed ?? "–"),
      h("td", { class: "figure" }, duration(run.seconds)),
      h(
        "td",
        { class: "last" },
        h("span", { class: "soft when" }, ago(run.began)),
        h("span", { class: "row-links" }, to("rollouts", "Rollouts"), to("method", "Method"), controls(run, true)),
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
        tabindex: -1,
        "data-key": keyOf(line),
        "data-said": heading(line),
        "aria-label": `${line.name}, ${plural(line.runs.length, "run")}`,
      },
      h("td", { class: "tick-cell" }, box),
      h(
        "td",
        { colspan: CELLS - 1 },
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
  }
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
