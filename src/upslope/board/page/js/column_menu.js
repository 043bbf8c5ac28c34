// Which settings, knobs and tags have a column of their own in the list of runs.

import { h, put, tick } from "./dom.js";
import { differing, factKeys, factLabel } from "./facts.js";
import { menu } from "./menu.js";

const MOST = 200;

/** `onchange(columns)` is told the chosen ones in their order. */
export class ColumnMenu {
  constructor(onchange) {
    this.onchange = onchange;
    this.chosen = [];
    this.search = h("input", {
      type: "search",
      class: "filter",
      placeholder: "Find a setting or knob",
      "aria-label": "Find a setting or knob",
      oninput: () => this.fill(),
    });
    this.list = h("div", { class: "column-list" });
    this.menu = menu("Columns", "Columns of settings and knobs");
    this.menu.body.classList.add("one-column");
    this.menu.body.append(this.search, this.list);
    this.menu.element.addEventListener("toggle", () => this.menu.element.open && this.fill());
    this.element = this.menu.element;
  }

  /** What there is to choose from: known when the menu is opened. */
  offer(runs, chosen) {
    Object.assign(this, { runs, chosen });
  }

  fill() {
    const apart = this.runs.length ? differing(this.runs) : [];
    const rest = [...factKeys(this.runs)].filter((key) => !apart.includes(key));
    const wanted = this.search.value.trim().toLowerCase();
    const fits = (key) => key.toLowerCase().includes(wanted) || factLabel(key).toLowerCase().includes(wanted);
    const part = (title, keys) => {
      const found = keys.filter(fits);
      return found.length > 0 && [h("p", { class: "menu-title" }, title), found.slice(0, MOST).map((key) => this.box(key))];
    };
    put(this.list, part("Own", ["tags"]), part("In which runs differ", apart), part("The same in all", rest));
  }

  box(key) {
    return tick(
      key,
      this.chosen.includes(key),
      (on) => this.onchange(on ? [...this.chosen, key] : this.chosen.filter((each) => each !== key)),
      key,
    );
  }

  close() {
    this.menu.close();
  }
}
