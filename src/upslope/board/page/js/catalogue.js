// The catalogue on a page: a question, filters, a table whose rows open to the formula, the claim and the command. The board and the
// site show the same; what differs (where links lead, where pictures lie, where the state is kept) comes with `places`.

import { commandFor, comparison, ORDERS, search, together } from "./catalogue_search.js";
import { copyable, h, put, svg } from "./dom.js";
import { formula } from "./mathml.js";

const FILTERS = ["family", "slot", "needs", "verdict", "from", "to"];
const COLUMNS = [
  ["name", "Method", "name"],
  ["change", "What it changes", null],
  ["family", "Family", "family"],
  ["year", "Year", "year"],
  ["needs", "Needs", null],
  ["claim", "Claim, measured here", "claim"],
];

/** Shows the catalogue in an element. `places` has methodLink(name), claimLink(page), picture(page), all of which may give null, and
 * keep(state), told of every change; `state` is what was kept. */
export function showCatalogue(root, data, places, state = {}) {
  return new Catalogue(root, data, places, state);
}

class Catalogue {
  constructor(root, data, places, state) {
    Object.assign(this, { root, data, places });
    this.state = { q: "", task: "", sort: "", down: "", open: "", ...state };
    this.lines = new Map(data.methods.map((method) => [method.name, { method, row: null, detail: null }]));
    this.body = h("tbody", { role: "rowgroup" });
    this.said = h("p", { class: "cat-said", role: "status", "aria-live": "polite" });
    this.pair = h("details", { class: "cat-together" });
    this.heads = h("tr", { role: "row" });
    const table = h("table", { class: "cat-table", role: "table", "aria-label": "Methods" });
    table.append(h("thead", { role: "rowgroup" }, this.heads), this.body);
    put(root, this.asking(), this.filters(), this.said, this.pair, h("div", { class: "cat-box" }, table));
    root.classList.add("catalogue");
    this.show();
  }

  /** Takes over a state from elsewhere: a link, the way back. */
  change(state) {
    this.state = { q: "", task: "", sort: "", down: "", open: "", ...Object.fromEntries(FILTERS.map((name) => [name, ""])), ...state };
    this.question.value = this.state.q;
    this.task.value = this.state.task;
    for (const [name, box] of Object.entries(this.boxes)) box.value = this.state[name] ?? "";
    this.show();
  }

  set(changes) {
    Object.assign(this.state, changes);
    this.places.keep?.(Object.fromEntries(Object.entries(this.state).filter(([, value]) => value)));
    this.show();
  }

  // -- what is asked -------------------------------------------------------------------------------------------------------

  asking() {
    this.question = h("input", {
      type: "search",
      id: "cat-question",
      value: this.state.q,
      placeholder: "my rewards are noisy and I reuse rollouts",
      autocomplete: "off",
      oninput: () => this.set({ q: this.question.value, open: "" }),
    });
    this.task = h("input", {
      type: "text",
      id: "cat-task",
      value: this.state.task,
      placeholder: "gym:Hopper-v5, mine.py:task, a dataset",
      list: "cat-tasks",
      autocomplete: "off",
      oninput: () => this.set({ task: this.task.value }),
    });
    const names = h("datalist", { id: "cat-tasks" }, this.data.tasks.map((name) => h("option", { value: name })));
    this.chips = this.data.situations.map(({ name }) =>
      h("button", { type: "button", class: "cat-chip", "aria-pressed": "false", onclick: () => this.toggle(name) }, name),
    );
    return h(
      "div",
      { class: "cat-ask" },
      h("div", {}, h("label", { for: "cat-question" }, "What is your situation, or which method?"), this.question),
      h("div", {}, h("label", { for: "cat-task" }, "My task, for the commands"), this.task, names),
      h(
        "details",
        { class: "cat-situations" },
        h("summary", {}, "Situations to choose from"),
        h("div", { role: "group", "aria-label": "Situations" }, this.chips),
      ),
    );
  }

  toggle(name) {
    const now = this.question.value;
    const without = now.replace(name, "").replace(/\s*;\s*;?\s*/g, "; ").replace(/^; |; $/g, "").trim();
    this.question.value = now.includes(name) ? without : now.trim() ? `${now.trim()}; ${name}` : name;
    this.set({ q: this.question.value, open: "" });
  }

  filters() {
    const { data } = this;
    const years = data.methods.map((method) => method.year);
    const since = [...new Set(years)].sort((one, other) => other - one).map((year) => [String(year), String(year)]);
    const needs = Object.keys(data.needs);
    const options = {
      family: ["Family", [["", "all"], ...data.families.map((name) => [name, name])]],
      slot: ["Changes", [["", "any slot"], ...data.slots.map((name) => [name, name])]],
      needs: ["Needs", [["", "anything"], ...needs.map((name) => [name, name]), ...needs.map((name) => [`-${name}`, `no ${name}`])]],
      verdict: ["Claim", [["", "any"], ...Object.keys(data.verdicts).map((name) => [name, name])]],
      from: ["From", [["", "any year"], ...since]],
      to: ["To", [["", "any year"], ...since]],
      sort: ["Order", [["", "as asked"], ...Object.entries(ORDERS).map(([name, { label }]) => [name, label])]],
    };
    this.boxes = {};
    const fields = Object.entries(options).map(([name, [label, choices]]) => {
      const box = h("select", { id: `cat-${name}`, onchange: () => this.set({ [name]: box.value, ...(name === "sort" && { down: "" }) }) });
      box.append(...choices.map(([value, text]) => h("option", { value }, text)));
      box.value = this.state[name] ?? "";
      this.boxes[name] = box;
      return h("label", {}, h("span", {}, label), box);
    });
    const clear = h("button", { type: "button", class: "cat-clear", onclick: () => this.clear() }, "Clear");
    return h("div", { class: "cat-filters", role: "group", "aria-label": "Filters and order" }, fields, clear);
  }

  clear() {
    this.change({ task: this.state.task });
    this.set({});
    this.question.focus();
  }

  // -- what is found -------------------------------------------------------------------------------------------------------

  show() {
    const { state } = this;
    const result = search(this.data, {
      question: state.q,
      filters: Object.fromEntries(FILTERS.map((name) => [name, state[name]])),
      order: state.sort,
      descending: state.down === "" ? null : state.down === "1",
    });
    this.say(result);
    this.suggest(result);
    put(this.heads, COLUMNS.map(([, label, order]) => this.head(label, order, result)));
    const children = [];
    for (const { method, matched } of result.found) {
      const line = this.lines.get(method.name);
      line.row ??= this.row(method);
      this.mark(line, matched);
      children.push(line.row);
      if (state.open === method.name) children.push((line.detail = this.detail(method)));
    }
    if (!children.length) {
      const words = "No method answers that. Try other words, or clear the filters.";
      children.push(h("tr", { role: "row" }, h("td", { role: "cell", colspan: COLUMNS.length, class: "cat-none" }, words)));
    }
    put(this.body, children);
  }

  say({ found, asked, unknown }) {
    const count = `${found.length} of ${this.data.methods.length} methods`;
    const meant = asked.situations.length ? ` for: ${asked.situations.join(" · ")}` : "";
    const lost = unknown.length ? ` Nothing is known of “${unknown.join("”, “")}”.` : "";
    const text = `${count}${meant}.${lost}`;
    if (this.said.textContent !== text) this.said.textContent = text;
    for (const chip of this.chips) chip.setAttribute("aria-pressed", String(asked.situations.includes(chip.textContent)));
  }

  suggest(result) {
    const both = together(this.data, result);
    const beside = comparison(this.data, result, this.state.task);
    const words = both && `No method whose claims held answers all of it; ${both.first.name} with what ${both.second.name} changes might (not measured together):`;
    const about = both ? "The best answer beside the plain method; two that answer all of it" : "The best answer beside the plain method";
    put(
      this.pair,
      (beside || both) && h("summary", {}, about),
      beside && h("p", {}, "Whether it pays on your task, in the same situation:"),
      beside && copyable(beside),
      both && h("p", {}, words),
      both && copyable(`upslope train ${both.first.name}+${both.second.name} --task ${this.state.task.trim() || "reverse"}`),
    );
  }

  head(label, order, result) {
    const ordered = order && order === result.order;
    const sort = ordered ? (result.descending ? "descending" : "ascending") : order ? "none" : null;
    const turn = () => this.set({ sort: order, down: ordered ? (result.descending ? "0" : "1") : "" });
    const mark = ordered ? (result.descending ? " ↓" : " ↑") : "";
    const inside = order ? h("button", { type: "button", onclick: turn }, label, h("span", { "aria-hidden": "true" }, mark)) : label;
    return h("th", { role: "columnheader", scope: "col", "aria-sort": sort }, inside);
  }

  row(method) {
    const { claim } = method;
    const link = this.places.methodLink(method.name);
    const toggle = h(
      "button",
      {
        type: "button",
        class: "cat-open",
        "aria-expanded": "false",
        "aria-label": `${method.name}: formula, claim, command`,
        onclick: () => this.set({ open: this.state.open === method.name ? "" : method.name }),
      },
      "▸",
    );
    const cells = {
      name: [
        h("div", { class: "cat-name" }, toggle, h("a", { href: link }, method.name)),
        h("small", {}, method.title),
        h("div", { class: "cat-matched" }),
      ],
      change: [
        h("p", {}, method.differs),
        h("p", { class: "cat-when" }, h("strong", {}, "Use it when "), method.use_when),
        h("div", { class: "cat-slots" }, method.slots.map((slot) => h("code", {}, slot))),
      ],
      family: [method.family],
      year: [String(method.year)],
      needs: [method.needs.length ? h("ul", {}, method.needs.map((need) => h("li", { title: this.data.needs[need] }, need))) : "a reward"],
      claim: [
        h(
          "span",
          { class: `cat-verdict ${claim.verdict.replaceAll(" ", "-")}`, title: this.data.verdicts[claim.verdict] },
          claim.verdict,
          claim.of ? `: ${claim.held} of ${claim.of} held` : "",
          claim.refuted ? `, ${claim.refuted} did not` : "",
        ),
        this.curve(method, 132, 44),
      ],
    };
    return h(
      "tr",
      { class: "cat-row", role: "row" },
      COLUMNS.map(([key]) => h(key === "name" ? "th" : "td", cellAttributes(key), ...cells[key])),
    );
  }

  mark(line, matched) {
    const open = this.state.open === line.method.name;
    line.row.classList.toggle("open", open);
    const toggle = line.row.querySelector(".cat-open");
    toggle.setAttribute("aria-expanded", String(open));
    toggle.textContent = open ? "▾" : "▸";
    put(line.row.querySelector(".cat-matched"), matched.map((name) => h("span", { class: "cat-badge" }, name)));
  }

  // -- one method ----------------------------------------------------------------------------------------------------------

  detail(method) {
    const maths = method.formula_mathml.map(formula).filter(Boolean);
    const link = this.places.methodLink(method.name);
    const safe = /^[\w.\-/]+$/.test(method.arxiv);
    const arxiv = safe && h("a", { href: `https://arxiv.org/abs/${method.arxiv}`, rel: "noreferrer noopener" }, `arXiv ${method.arxiv}`);
    const parent = method.parent && h("a", { href: this.places.methodLink(method.parent) }, method.parent);
    return h(
      "tr",
      { class: "cat-detail", role: "row" },
      h(
        "td",
        { role: "cell", colspan: COLUMNS.length },
        h("p", {}, `${method.title} (${method.year}) `, arxiv, parent && " · derived from ", parent, " · ", h("a", { href: link }, "all of it")),
        h("h3", {}, "Formula"),
        h(
          "div",
          { class: "cat-formula", tabindex: 0, role: "region", "aria-label": `Formula of ${method.name}` },
          maths.length ? maths : h("code", {}, method.formula),
        ),
        h("h3", {}, this.state.task.trim() ? "Try it on my task" : "Try it"),
        h("div", { class: "cat-commands" }, commandFor(method, this.state.task).map((line) => copyable(line))),
        h("h3", {}, "Its claim, measured here"),
        this.claims(method),
      ),
    );
  }

  claims(method) {
    const { claim } = method;
    if (!claim.pages.length) return h("p", {}, "Nothing was measured yet.");
    return h(
      "div",
      { class: "cat-claims" },
      claim.pages.map((page) => {
        const lines = claim.lines.filter((line) => line.page === page);
        const link = this.places.claimLink(page);
        const title = this.data.claims[page].title;
        const picture = this.data.claims[page].picture && this.places.picture(page);
        return h(
          "section",
          {},
          h("h4", {}, link ? h("a", { href: link }, title) : title),
          picture ? h("img", { src: picture, alt: `Curves of: ${title}`, loading: "lazy" }) : this.curve(method, 420, 150, page),
          h("ul", {}, lines.map(said)),
        );
      }),
    );
  }

  curve(method, width, height, page = method.claim.pages.find((each) => this.data.claims[each]?.curve)) {
    const curve = this.data.claims[page]?.curve;
    if (!curve) return h("span", { class: "cat-no-curve" }, method.claim.of ? "no curve" : "");
    const names = Object.keys(curve.lines);
    const label = `${curve.of}, ${curve.where}: ${names.join(", ")}, between ${curve.low} and ${curve.high}`;
    const order = names.map((name, place) => [name, place]).sort(([one]) => (one === method.name ? 1 : -1)); // ours over the others
    const picture = svg("svg", { class: "cat-curve", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    picture.append(svg("title", {}, label));
    for (const [name, place] of order) {
      const values = curve.lines[name];
      const at = (value, index) => `${round(2 + (index * (width - 4)) / Math.max(values.length - 1, 1))},${round(height - 3 - (value * (height - 6)) / 100)}`;
      const points = values.map((value, index) => (value === null ? null : at(value, index))).filter(Boolean);
      picture.append(svg("polyline", { points: points.join(" "), class: `cat-line line-${place}${name === method.name ? " ours" : ""}` }));
    }
    const link = this.places.claimLink(page);
    return link ? h("a", { class: "cat-curve-link", href: link, "aria-label": `The claim: ${this.data.claims[page].title}` }, picture) : picture;
  }
}

function cellAttributes(key) {
  const label = COLUMNS.find(([name]) => name === key)[1];
  return { class: `cat-${key}-cell`, role: key === "name" ? "rowheader" : "cell", "data-label": label, scope: key === "name" ? "row" : null };
}

function said(line) {
  const about = `${line.variant ? `${line.variant}: ` : ""}${line.words}`;
  const where = line.where && line.where !== "in this setting" ? ` (${line.where})` : "";
  const verdict = h("span", { class: `cat-verdict ${VERDICT_CLASS[line.verdict]}` }, line.verdict);
  return h("li", {}, verdict, ` ${about}${where} `, line.numbers && h("small", {}, line.numbers));
}

const VERDICT_CLASS = { held: "held", "did not hold": "did-not-hold", "not shown at this scale": "not-shown" };

function round(value) {
  return Math.round(value * 10) / 10;
}
