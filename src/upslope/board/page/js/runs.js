// The list of runs: filter, sort, group, tick, and go on from there.

import { ColumnMenu } from "./column_menu.js";
import { copyable, empty, h, put, select, typing } from "./dom.js";
import { factLabel } from "./facts.js";
import { filterBox } from "./filter_box.js";
import { plural } from "./format.js";
import { go, link, note } from "./router.js";
import { COLUMNS, columnOf, lines, matches, sorted } from "./run_list.js";
import { namesOf } from "./run_names.js";
import { rowHeight, Rows } from "./run_rows.js";
import { setTicked, store, subscribe, tickOnly } from "./store.js";

const HEADS = [
  ["status", "Status"],
  ["method", "Method"],
  ["task", "Task"],
  ["score", "Score"],
  [null, "Reward"],
  ["progress", "Steps"],
  ["seed", "Seed"],
  ["seconds", "Time"],
  ["began", "Started"],
];
const GROUPS = [
  ["", "nothing"],
  ["method", "method"],
  ["task", "task"],
  ["model", "model"],
  ["folder", "folder"],
  ["status", "status"],
  ["tag", "tag"],
];
/** Facts that have a column of their own, and need not be in a name. */
const SEEN = ["task", "model", "seed", "steps"];
const CLOCK_MS = 30_000;

/** Opens the list under `root`; `params` are what the address says (filter, sort, up, group). */
export function open(root, params) {
  return new RunsView(root, params);
}

class RunsView {
  constructor(root, params) {
    this.root = root;
    this.closed = new Set();
    this.anchor = null;
    this.take(params);
    this.build();
    this.stop = subscribe((changed) => this.refresh(changed));
    this.onkey = (event) => this.key(event);
    document.addEventListener("keydown", this.onkey);
    this.clock = setInterval(() => this.refresh(null), CLOCK_MS); // "3 min ago" grows old
    this.refresh(null);
  }

  take(params) {
    this.filter = params.get("filter") ?? "";
    this.columns = params.getAll("col");
    const sort = params.get("sort") ?? "";
    this.sort = sort in COLUMNS || this.columns.includes(sort) ? sort : "began";
    this.falling = params.has("up") ? params.get("up") !== "1" : columnOf(this.sort).falling;
    this.by = GROUPS.some(([value]) => value === params.get("group")) ? params.get("group") : "";
  }

  change(params) {
    this.take(params);
    this.search.value = this.filter;
    this.grouping.querySelector("select").value = this.by;
    this.refresh(null);
  }

  close() {
    this.stop();
    clearInterval(this.clock);
    this.rows.close();
    this.menu.close();
    document.removeEventListener("keydown", this.onkey);
  }

  build() {
    this.search = filterBox(
      this.filter,
      (text) => {
        this.filter = text;
        this.refresh(new Set());
      },
      { id: "filter" },
    );
    this.menu = new ColumnMenu((columns) => {
      this.columns = columns;
      if (!(this.sort in COLUMNS) && !columns.includes(this.sort)) this.sort = "began";
      this.refresh(new Set());
    });
    this.sorting = select("Sort by", [], this.sort, (value) => this.sortBy(value), { "aria-label": "Sort by" });
    this.sorting.classList.add("phone-only");
    this.grouping = select("Group by", GROUPS, this.by, (value) => {
      this.by = value;
      this.refresh(new Set());
    });
    this.counted = h("p", { class: "counted soft", role: "status" });
    this.picked = h("div", { class: "picked" });
    this.heads = new Map();
    const body = h("tbody", { role: "rowgroup" });
    this.headRow = h("tr", { role: "row" });
    this.table = h(
      "table",
      { class: "runs", role: "table", "aria-label": "Runs" },
      h("thead", { role: "rowgroup" }, this.headRow),
      body,
    );
    this.scroller = h("div", { class: "scroller" }, this.table);
    this.nothing = h("div", { class: "nothing", hidden: true });
    this.rows = new Rows(this.scroller, body, {
      tick: (id, range) => this.tick(id, range),
      tickAll: (runs, on) =>
        setTicked(
          runs.map((run) => run.id),
          on,
        ),
      fold: (name) => {
        if (!this.closed.delete(name)) this.closed.add(name);
        this.refresh(new Set());
      },
      focus: (at) => {
        if (this.rows.active !== at) {
          this.rows.active = at;
          this.rows.draw();
        }
      },
    });
    put(
      this.root,
      h("h1", { class: "unseen" }, "Runs"),
      h("div", { class: "toolbar" }, this.search, this.grouping, this.sorting, this.menu.element, this.counted, this.picked),
      this.scroller,
      this.nothing,
    );
  }

  tickHead() {
    this.allBox = h("input", {
      type: "checkbox",
      "aria-label": "Tick all listed runs",
      onclick: () =>
        setTicked(
          this.listed.map((run) => run.id),
          this.allBox.checked,
        ),
    });
    return h("th", { scope: "col", role: "columnheader", class: "tick-cell" }, this.allBox);
  }

  /** The heads of all columns, those of settings and knobs before the last. */
  layOut() {
    const own = [...HEADS.slice(0, -1), ...this.columns.map((key) => [key, factLabel(key)]), HEADS.at(-1)];
    const said = own.map(([column, text]) => `${column} ${text}`).join("\n");
    if (this.headRow.dataset.said === said) return;
    this.headRow.dataset.said = said;
    this.heads.clear();
    put(
      this.headRow,
      this.tickHead(),
      own.map(([column, text]) => this.head(column, text)),
    );
    this.table.style.setProperty("--further", this.columns.length);
    const options = own.filter(([column]) => column).map(([column, text]) => h("option", { value: column }, text));
    put(this.sorting.querySelector("select"), options);
  }

  head(column, text) {
    const kind = column in COLUMNS ? `c-${column}` : column ? "further" : "c-spark";
    if (!column) return h("th", { scope: "col", role: "columnheader", class: kind }, text);
    const button = h(
      "button",
      { type: "button", onclick: () => this.sortBy(column) },
      text,
      h("span", { class: "sort-mark", "aria-hidden": "true" }),
    );
    const figure = ["score", "seed", "seconds"].includes(column) ? " figure" : "";
    const cell = h("th", { scope: "col", role: "columnheader", class: `${kind}${figure}`, title: column in COLUMNS ? null : column }, button);
    this.heads.set(column, cell);
    return cell;
  }

  sortBy(column) {
    this.falling = this.sort === column ? !this.falling : columnOf(column).falling;
    this.sort = column;
    this.refresh(new Set());
  }

  refresh(changed) {
    const all = [...store.runs.values()];
    this.listed = sorted(
      all.filter((run) => matches(run, this.filter)),
      this.sort,
      this.falling,
    );
    const shown = lines(this.listed, this.by, this.closed);
    this.layOut();
    this.menu.offer(all, this.columns);
    this.sorting.querySelector("select").value = this.sort;
    for (const [column, cell] of this.heads) {
      const on = column === this.sort;
      cell.setAttribute("aria-sort", on ? (this.falling ? "descending" : "ascending") : "none");
      cell.querySelector(".sort-mark").textContent = on ? (this.falling ? " ↓" : " ↑") : "";
    }
    this.table.setAttribute("aria-rowcount", shown.length + 1);
    this.rows.show(shown, this.names(all, changed), this.columns, changed);
    if (shown.length && !this.painted) {
      this.painted = true;
      // After the frame that paints them: what "how fast is the list there" is measured by.
      requestAnimationFrame(() => setTimeout(() => performance.mark("runs-painted")));
    }
    this.tell(all);
    note("runs", {
      filter: this.filter,
      sort: this.sort === "began" && this.falling ? null : this.sort,
      up: this.falling === columnOf(this.sort).falling ? null : this.falling ? "0" : "1",
      group: this.by,
      col: this.columns,
    });
  }

  /** What sets every run apart from those of its method in its folder, worked out again when runs came or went. */
  names(all, changed) {
    if (changed === null || this.named?.size !== all.length || [...changed].some((id) => !this.named.has(id)))
      this.named = new Map([...Map.groupBy(all, (run) => run.group).values()].flatMap((runs) => [...namesOf(runs, SEEN)]));
    return this.named;
  }

  /** The words around the table: how many, how many ticked, or why there is nothing. */
  tell(all) {
    const counted =
      this.listed.length === all.length ? plural(all.length, "run") : `${this.listed.length} of ${plural(all.length, "run")}`;
    if (this.counted.textContent !== counted) this.counted.textContent = store.state === "loading" ? "" : counted;
    const ticked = this.listed.filter((run) => store.ticked.has(run.id)).length;
    this.allBox.checked = ticked > 0 && ticked === this.listed.length;
    this.allBox.indeterminate = ticked > 0 && ticked < this.listed.length;
    const size = store.ticked.size;
    if (this.picked.dataset.size !== String(size)) {
      this.picked.dataset.size = size;
      put(
        this.picked,
        size > 0 && [
          h("button", { type: "button", class: "quiet", onclick: () => tickOnly([]) }, "Untick all"),
          h("a", { class: "button main", href: link("curves") }, size === 1 ? "Show curves" : `Overlay ${size} runs`),
        ],
      );
    }
    const none = this.listed.length === 0;
    this.scroller.hidden = none && store.state !== "loading";
    this.nothing.hidden = !this.scroller.hidden;
    if (!none) return;
    if (all.length)
      put(
        this.nothing,
        empty(
          "No run matches",
          h("p", {}, `Nothing has all the words of “${this.filter}”.`),
          h(
            "button",
            {
              type: "button",
              class: "button",
              onclick: () => {
                this.search.value = this.filter = "";
                this.refresh(new Set());
                this.search.focus();
              },
            },
            "Clear the filter",
          ),
        ),
      );
    else if (store.state === "here")
      put(
        this.nothing,
        empty(
          `No runs in ${store.root || "the folder"} yet`,
          h("p", {}, "A run appears here as soon as it starts. The first one takes a minute or two:"),
          copyable("upslope train dhpo"),
        ),
      );
  }

  /** Ticks a run; with `range`, all from the last one ticked to it get what it gets. */
  tick(id, range) {
    const on = !store.ticked.has(id);
    const ids = this.listed.map((run) => run.id);
    const [from, to] = [ids.indexOf(this.anchor), ids.indexOf(id)];
    setTicked(range && from >= 0 && to >= 0 ? ids.slice(Math.min(from, to), Math.max(from, to) + 1) : [id], on);
    this.anchor = id;
  }

  key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowDown" && event.target === this.search) {
      event.preventDefault();
      this.rows.focus(0);
      return;
    }
    if (typing(event)) return;
    if (event.key === "/") {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "c" && store.ticked.size) go("curves");
    else if (["ArrowDown", "j"].includes(event.key) && [document.body, this.root].includes(event.target)) {
      event.preventDefault();
      this.rows.focus(0); // from a fresh page
    }
    else if (event.target.closest?.("tbody tr")) this.rowKey(event);
  }

  rowKey(event) {
    const at = this.rows.active;
    const line = this.rows.lines[at];
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / rowHeight()) - 2);
    const moves = {
      ArrowDown: at + 1,
      j: at + 1,
      ArrowUp: at - 1,
      k: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: Infinity,
    };
    const onRow = event.target.tagName === "TR";
    if (event.key in moves) this.rows.focus(moves[event.key]);
    else if (event.key === " " && onRow && line.kind === "run") this.tick(line.run.id, event.shiftKey);
    else if (event.key === " " && onRow)
      setTicked(
        line.runs.map((run) => run.id),
        !line.runs.every((run) => store.ticked.has(run.id)),
      );
    else if (event.key === "Enter" && onRow && line.kind === "run") go("curves", { run: line.run.id });
    else if (event.key === "Enter" && onRow) this.rows.actions.fold(line.name);
    else if (event.key === "r" && line.kind === "run") go("rollouts", { run: line.run.id });
    else if (event.key === "m" && line.kind === "run") go("method", { run: line.run.id });
    else return;
    event.preventDefault();
  }
}
