// The list beside the charts: which run or band has which colour; sorted and filtered by anything, with ways on from there.

import { h, put, select } from "./dom.js";
import { differing, factLabel, factOf, factText } from "./facts.js";
import { filterBox } from "./filter_box.js";
import { plural } from "./format.js";
import { notesButton, tagChips } from "./notes.js";
import { link } from "./router.js";
import { controls, scoreText, status } from "./run_bits.js";
import { columnOf, matches, sorted } from "./run_list.js";
import { swatch } from "./swatch.js";

const ORDERS = [
  ["", "as chosen"],
  ["score", "score"],
  ["method", "method"],
  ["seed", "seed"],
  ["tags", "tags"],
  ["status", "status"],
  ["began", "start"],
];
const NAMED = ["curves", "runs"];

/** `actions`: highlight(name or null), drop(id), change() when the order or the filter did. */
export class Legend {
  constructor(actions, { filter = "", order = "" } = {}) {
    Object.assign(this, { actions, filter, order });
    this.title = h("h2", {});
    this.list = h("ul", {});
    this.box = filterBox(
      filter,
      (text) => {
        this.filter = text;
        actions.change();
      },
      { label: "Filter the runs shown", placeholder: "Filter: lr<1e-3 tag:keep" },
    );
    this.sorting = select("Sort", ORDERS, order, (value) => {
      this.order = value;
      actions.change();
    });
    this.tools = h("div", { class: "legend-tools" }, this.box, this.sorting);
    this.element = h("aside", { class: "legend card", "aria-label": "Runs shown", tabindex: 0 }, this.title, this.tools, this.list);
  }

  /** The runs that the filter leaves, in the chosen order. */
  arrange(runs) {
    const left = runs.filter((run) => matches(run, this.filter));
    return this.order ? sorted(left, this.order, columnOf(this.order).falling) : left;
  }

  /** Offers to sort by what these runs differ in. */
  offer(runs) {
    this.tools.hidden = runs.length < 2;
    const keys = runs.length > 1 ? differing(runs).filter((key) => key !== "seed") : [];
    const options = [...ORDERS, ...keys.map((key) => [key, factLabel(key)])];
    if (this.order && !options.some(([value]) => value === this.order)) options.push([this.order, factLabel(this.order)]);
    const box = this.sorting.querySelector("select");
    const said = options.map(([value]) => value).join();
    if (box.dataset.said !== said) put(box, options.map(([value, text]) => h("option", { value }, text)));
    box.dataset.said = said;
    box.value = this.order;
  }

  /** Runs in this order with their names and looks, of `all` that were chosen. */
  showRuns(runs, names, styles, all) {
    const rows = runs.map((run) => this.run(run, names.get(run.id), styles.get(run.id), all.length > 1));
    this.put(runs.length === all.length ? plural(all.length, "run") : `${runs.length} of ${plural(all.length, "run")}`, rows);
  }

  /** Bands over seeds. */
  showBands(bands, nameOf, lookOf) {
    this.put(
      plural(bands.length, "band"),
      bands.map((band, at) => this.row(nameOf(band), lookOf(at), null, [h("small", {}, band.runs.join(", "))], null)),
    );
  }

  put(title, rows) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    this.title.textContent = title;
    put(this.list, rows);
    if (focused) [...this.list.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
  }

  run(run, name, style, several) {
    const score = Number.isFinite(run.score) ? h("strong", {}, scoreText(run, run.score)) : null;
    const to = (view) => h("a", { href: link(view, { run: run.id }), "aria-label": `${view} of ${run.id}` }, view);
    const views = ["rollouts", "method", ...run.has].filter((view, at, all) => all.indexOf(view) === at && !NAMED.includes(view));
    const sortedBy = this.order && factOf(run, this.order);
    const rest = [
      h("small", { title: run.id }, run.id),
      sortedBy !== undefined && sortedBy !== "" && h("small", {}, `${factLabel(this.order)} ${factText(sortedBy)}`),
      h(
        "span",
        { class: "legend-links" },
        status(run),
        views.filter((view) => view !== "rollouts" || run.recorded).map(to),
        tagChips(run),
        controls(run),
        notesButton(run),
      ),
    ];
    const close =
      several &&
      h(
        "button",
        {
          type: "button",
          class: "quiet close",
          "aria-label": `Take away ${run.id}`,
          title: "Take away",
          onclick: () => this.actions.drop(run.id),
        },
        "×",
      );
    return this.row(name, style, score, rest, close);
  }

  row(name, style, score, rest, close) {
    return h(
      "li",
      { onmouseenter: () => this.actions.highlight(name), onmouseleave: () => this.actions.highlight(null) },
      h("div", { class: "legend-name" }, swatch(style), h("span", {}, name), score, close),
      ...rest,
    );
  }
}
