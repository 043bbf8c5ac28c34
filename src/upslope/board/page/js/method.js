// A method as its slots, what it changes against its parent, its formula and paper; and how the run was asked for.

import { ApiError, get } from "./api.js";
import { datasetParts } from "./data.js";
import { copyable, empty, h, put, tick, wideTable } from "./dom.js";
import { exact } from "./format.js";
import { formula } from "./mathml.js";
import { link, note } from "./router.js";
import { likelyRun } from "./run_bits.js";
import { RunHead } from "./run_head.js";
import { choose, store, subscribe } from "./store.js";

/** Opens the method of a run, or one of the catalogue by name. */
export function open(root, params) {
  return new MethodView(root, params);
}

class MethodView {
  constructor(root, params) {
    Object.assign(this, { root, changedOnly: false });
    this.take(params);
    this.stop = subscribe((changed, gone) => this.heard(gone));
    this.begin();
  }

  take(params) {
    this.run = params.get("run");
    this.name = this.run ? null : params.get("name");
  }

  change(params) {
    this.take(params);
    this.begin();
  }

  close() {
    this.stop();
  }

  heard(gone) {
    if (!this.shown) this.begin();
    else if (this.run && gone.has(this.run))
      put(this.body, empty("Gone", h("p", {}, `Run ${this.run} is gone: its folder is no longer there.`)));
    this.runHead?.refresh();
  }

  async begin() {
    if (store.state === "loading") return;
    if (!this.name) this.run ??= likelyRun();
    if (!this.run && !this.name) {
      put(
        this.root,
        empty(
          "No run, so no method yet",
          h("p", {}, "Every method of the catalogue can be read in the terminal as well:"),
          copyable("upslope show dhpo"),
        ),
      );
      return;
    }
    this.shown = true;
    if (this.run) choose(this.run);
    this.runHead = new RunHead(this.run, (id) => {
      this.run = id;
      this.name = null;
      this.begin();
    });
    this.body = h("div", { class: "method" });
    put(this.root, ...this.runHead.elements, this.body);
    note("method", { run: this.run, name: this.name });
    const asked = this.run ?? this.name;
    try {
      const [method, settings] = await Promise.all([
        get("method", this.run ? { run: this.run } : { name: this.name }),
        this.run ? get("settings", { run: this.run }) : null,
      ]);
      if (asked !== (this.run ?? this.name)) return;
      this.show(method, settings);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked === (this.run ?? this.name))
        put(this.body, empty(error.status === 404 ? "Gone" : "This cannot be shown", h("p", {}, error.message)));
    }
  }

  show(method, settings) {
    put(
      this.body,
      this.head(method),
      this.slots(method),
      method.notes && h("section", { class: "card notes" }, h("h2", {}, "Notes"), h("p", {}, method.notes)),
      settings && this.settings(settings),
      settings?.dataset && h("section", { class: "card settings dataset" }, ...datasetParts(settings.dataset, store.runs.get(this.run))),
    );
  }

  head(method) {
    const { title, year, arxiv } = method.paper ?? {};
    const safe = /^[\w.\-/]+$/.test(arxiv ?? "");
    const paper =
      title &&
      h(
        "p",
        { class: "paper" },
        `${title}${year ? ` (${year})` : ""} `,
        safe && h("a", { href: `https://arxiv.org/abs/${arxiv}`, rel: "noreferrer noopener", target: "_blank" }, `arXiv ${arxiv}`),
      );
    const maths = formula(method.formula_mathml);
    return h(
      "section",
      { class: "card method-head" },
      h(
        "div",
        { class: "method-title" },
        h("h1", {}, method.name),
        method.family && h("span", { class: "chip" }, method.family),
        method.parent &&
          h("span", { class: "soft" }, "changes ", h("a", { href: link("method", { name: method.parent }) }, method.parent)),
      ),
      method.differs && h("p", { class: "differs" }, method.differs),
      method.formula &&
        h(
          "div",
          { class: "formula", tabindex: 0, role: "region", "aria-label": "Formula" },
          maths ?? h("code", {}, method.formula),
        ),
      maths && h("details", { class: "plain-formula" }, h("summary", {}, "as text"), h("code", {}, method.formula)),
      paper,
      method.use_when && h("p", { class: "soft" }, h("strong", {}, "Use it when "), method.use_when),
    );
  }

  slots(method) {
    const table = h("tbody");
    const changed = method.slots.filter((slot) => slot.changed).length;
    const fill = () =>
      put(
        table,
        method.slots.filter((slot) => slot.changed || !this.changedOnly).map((slot) => slotRow(slot)),
      );
    fill();
    return h(
      "section",
      { class: "card slots" },
      h(
        "header",
        {},
        h("h2", {}, "Slots"),
        h(
          "span",
          { class: "soft" },
          method.parent ? `${changed} of ${method.slots.length} differ from ${method.parent}` : `${method.slots.length} in use`,
        ),
        method.parent &&
          tick("Only what differs", this.changedOnly, (on) => {
            this.changedOnly = on;
            fill();
          }),
      ),
      wideTable("Slots", ["Slot", "Part", "What it does"], table),
    );
  }

  settings(found) {
    const rows = [
      ["task", found.task],
      ["model", found.model],
      ["reward", found.reward],
      ["test data", found.test_data],
      ...Object.entries(found.settings ?? {}).map(([key, value]) => [key.replaceAll("_", " "), value]),
    ];
    const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
    return h(
      "section",
      { class: "card settings" },
      h("h2", {}, "The run"),
      found.command && [h("p", { class: "soft" }, "To repeat it:"), copyable(found.command)],
      h(
        "dl",
        {},
        known.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, said(value)))),
      ),
      found.build && h("p", { class: "soft build" }, `made by ${said(found.build)}`),
    );
  }
}

function slotRow(slot) {
  const value = slot.changed
    ? [
        h("del", {}, h("span", { class: "unseen" }, "was "), slot.was || "none"),
        h("ins", {}, h("span", { class: "unseen" }, "is "), slot.value || "none"),
      ]
    : [h("span", { class: "same" }, slot.value || "none")];
  return h(
    "tr",
    { class: slot.changed ? "changed" : "", role: "row" },
    h("th", { scope: "row", role: "rowheader" }, slot.slot, slot.changed && h("span", { class: "chip good" }, "changed")),
    h("td", { class: "part", role: "cell", "data-label": "part" }, ...value),
    h("td", { class: "soft about", role: "cell", "data-label": "what it does" }, slot.about ?? ""),
  );
}

function said(value) {
  if (typeof value === "number") return exact(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value !== null && typeof value === "object")
    return Object.entries(value)
      .map(([key, item]) => `${key} ${said(item)}`)
      .join(", ");
  return String(value);
}
