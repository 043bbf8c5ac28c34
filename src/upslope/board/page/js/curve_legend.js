// The list beside the charts: which run or band has which colour, with ways on from there.

import { h, put } from "./dom.js";
import { plural } from "./format.js";
import { link } from "./router.js";
import { controls, scoreText, status } from "./run_bits.js";

/** `actions`: highlight(name or null), drop(id). */
export class Legend {
  constructor(actions) {
    this.actions = actions;
    this.element = h("aside", { class: "legend card", "aria-label": "Runs shown" });
  }

  /** Runs with their names and looks; `drop` says whether one may be taken away. */
  showRuns(runs, names, styles) {
    const rows = runs.map((run) => this.run(run, names.get(run.id), styles.get(run.id), runs.length > 1));
    this.put(plural(runs.length, "run"), rows);
  }

  /** Bands over seeds. */
  showBands(bands, nameOf, lookOf) {
    this.put(
      plural(bands.length, "band"),
      bands.map((band, at) => this.row(nameOf(band), lookOf(at), null, [h("small", {}, band.runs.join(", "))], null)),
    );
  }

  put(title, rows) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    put(this.element, h("h2", {}, title), h("ul", {}, rows));
    if (focused)
      [...this.element.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
  }

  run(run, name, style, several) {
    const score = Number.isFinite(run.score) ? h("strong", {}, scoreText(run, run.score)) : null;
    const to = (view) => h("a", { href: link(view, { run: run.id }), "aria-label": `${view} of ${run.id}` }, view);
    const rest = [
      h("small", { title: run.id }, run.id),
      h("span", { class: "legend-links" }, status(run), to("rollouts"), to("method"), controls(run)),
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
    const key = h("span", { class: "swatch", "data-dashed": style.dash.length ? "" : null });
    key.style.setProperty("--hue", `var(${style.hue})`);
    return h(
      "li",
      { onmouseenter: () => this.actions.highlight(name), onmouseleave: () => this.actions.highlight(null) },
      h("div", { class: "legend-name" }, key, h("span", {}, name), score, close),
      ...rest,
    );
  }
}
