// The dataset that a run learned from: its card, and where its returns lie against random actions, the expert and the run itself.

import { get } from "./api.js";
import { copyable, h, put, svg } from "./dom.js";
import { count, number } from "./format.js";
import { RunView } from "./run_view.js";
import { scoreText } from "./run_bits.js";
import { store } from "./store.js";

/** Opens the dataset of a run. */
export function open(root, params) {
  return new DataView(root, params).start();
}

class DataView extends RunView {
  view = "data";
  title = "Data";
  nothing = "What a run learned from appears here.";
  stepped = false;

  build() {
    this.card = h("section", { class: "card settings dataset" });
    return [this.card];
  }

  fetch() {
    return get("settings", { run: this.run });
  }

  show({ dataset }) {
    if (!dataset)
      put(this.card, h("h2", {}, "No dataset"), h("p", {}, "This run learned from what it did itself; runs with --data learn from what is stored."));
    else put(this.card, ...datasetParts(dataset, store.runs.get(this.run)));
  }
}

/** The card of a dataset as it was when the run began. */
export function datasetParts({ source, digest, card }, run) {
  const rows = [
    ["name", card.name],
    ["read from", source],
    ["environment", card.env],
    ["recipe", card.recipe],
    ["made by", card.origin],
    ["episodes", Number.isFinite(card.episodes) ? count(card.episodes) : ""],
    ["decisions", Number.isFinite(card.decisions) ? count(card.decisions) : ""],
    ["returns (least, quartiles, most)", Array.isArray(card.returns) ? card.returns.map((value) => number(value)).join(" · ") : ""],
    ["random actions return", Number.isFinite(card.random) ? number(card.random) : ""],
    ["the expert returns", Number.isFinite(card.expert) ? number(card.expert) : ""],
    ["digest", digest],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return [
    h("h2", {}, "The dataset"),
    !Object.keys(card).length &&
      h("p", { class: "soft" }, "This run did not keep its card; 'upslope data describe' says more, if it is still there."),
    returns(card, run),
    h(
      "dl",
      {},
      rows.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, String(value)))),
    ),
    source && copyable(`upslope data describe ${source}`),
  ];
}

/** Returns on one line: the stored ones as a box from quartile to quartile, and marks for what they can be held against. */
function returns(card, run) {
  const stored = Array.isArray(card.returns) && card.returns.length === 5 && card.returns.every(Number.isFinite) ? card.returns : null;
  if (!stored) return null;
  const marks = [
    ["random", card.random],
    ["expert", card.expert],
    ["this run", run?.score_name === "accuracy" ? NaN : run?.score],
  ].filter(([, value]) => Number.isFinite(value));
  const all = [...stored, ...marks.map(([, value]) => value)];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => 20 + (high === low ? 0.5 : (value - low) / (high - low)) * 560;
  const [least, first, middle, third, most] = stored;
  const said = `stored returns from ${number(least)} to ${number(most)}, half of them between ${number(first)} and ${number(third)}`;
  return h(
    "figure",
    { class: "returns" },
    svg(
      "svg",
      { viewBox: "0 0 600 44", role: "img", "aria-label": `${said}${marks.map(([name, value]) => `; ${name} ${number(value)}`).join("")}` },
      svg("line", { class: "whisker", x1: x(least), x2: x(most), y1: 22, y2: 22 }),
      svg("rect", { class: "quartiles", x: x(first), width: Math.max(2, x(third) - x(first)), y: 10, height: 24, rx: 3 }),
      svg("line", { class: "middle", x1: x(middle), x2: x(middle), y1: 10, y2: 34 }),
      marks.map(([, value], at) => svg("circle", { class: `mark-${at}`, cx: x(value), cy: 22, r: 6 })),
    ),
    h(
      "figcaption",
      {},
      h("span", { class: "chip" }, said),
      marks.map(([name, value], at) =>
        h("span", { class: `chip mark-${at}` }, `● ${name} ${name === "this run" ? scoreText(run, value) : number(value)}`),
      ),
    ),
  );
}
