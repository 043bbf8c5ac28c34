// Where a run samples, scores and learns: who is busy and who waits, each process, the age of what is learned from, faults.

import { get } from "./api.js";
import { ChartGroup } from "./chart_group.js";
import { h, put, wideTable } from "./dom.js";
import { count, number, plural, words } from "./format.js";
import { RunView } from "./run_view.js";

const CHARTS = [
  [
    "Age",
    "Steps between the weights that wrote a token and those that learn from it: the share of each.",
    (key) => key.startsWith("age_share_"),
  ],
  ["Waiting", "Seconds of a step in which the learner stood still for rows.", (key) => key === "waited"],
  [
    "Busy",
    "Share of the time in which those who sample and score worked.",
    (key) => key === "worker_busy" || key === "scoring_busy",
  ],
  ["Faults", "What went wrong and was mended, in a step.", (key) => key.startsWith("fault_")],
];
const percent = (value) => `${Math.round(value * 100)}%`;
const BARS = ["sampling", "scoring", "learning"];

/** Opens the workers of a run. */
export function open(root, params) {
  return new WorkersView(root, params).start();
}

class WorkersView extends RunView {
  view = "workers";
  title = "Workers";
  nothing = "Who samples and scores for a run appears here.";
  stepped = false;

  build() {
    this.busy = h("section", { class: "card" });
    this.table = h("section", { class: "card" });
    this.charts = new ChartGroup(CHARTS, this.view);
    return [this.busy, this.table, this.charts.element];
  }

  fetch() {
    return get("workers", { run: this.run });
  }

  more() {
    return this.charts.load(this.run);
  }

  show(found) {
    const measured = BARS.filter((name) => found.busy[name] !== null);
    put(
      this.busy,
      h("h2", {}, found.busy.step === null ? "No step yet" : `Who worked during step ${count(found.busy.step)}`),
      h("p", { class: "soft" }, "The longest bar is what the others wait for."),
      h("div", { class: "busy-bars" }, measured.map((name) => bar(name, found.busy[name]))),
    );
    const faults = Object.entries(found.faults);
    put(
      this.table,
      h("h2", {}, found.workers.length ? found.workers.length === 1 ? "1 process" : `${count(found.workers.length)} processes` : "One process does it all"),
      found.workers.length
        ? [workersTable(found.workers), h("p", {}, waiting(found.waiting))]
        : h("p", {}, "Runs with --workers sample in processes of their own; they are listed here."),
      faults.length > 0 &&
        h(
          "p",
          { class: "chips" },
          "Mended:",
          faults.map(([kind, times]) => h("span", { class: "chip" }, `${words(kind)} ${number(times)}`)),
        ),
    );
  }
}

function waiting({ sampling, scoring }) {
  const [assignments, calls] = [plural(sampling ?? 0, "assignment"), plural(scoring ?? 0, "call")];
  return scoring === null ? `${assignments} to be sampled.` : `${assignments} to be sampled, ${calls} of the reward to be made.`;
}

function bar(name, value) {
  const filled = h("span", { class: "busy-filled" });
  filled.style.width = percent(Math.min(1, Math.max(0, value)));
  return h(
    "div",
    { class: "busy-bar", role: "img", "aria-label": `${name}: ${percent(value)} of the step` },
    h("span", { class: "busy-name" }, name),
    h("span", { class: "busy-track" }, filled),
    h("span", { class: "busy-share" }, percent(value)),
  );
}

function workersTable(workers) {
  const heads = ["Process", "Does", "Now", "Weights of step", "Rows", "Rows a second", "Replaced"];
  const rows = workers.map((each) =>
    h(
      "tr",
      {},
      h("td", {}, `${each.number ?? "–"} (${each.pid ?? "–"})`),
      h("td", {}, each.kind),
      h("td", {}, each.doing || "–"),
      h("td", {}, each.version === null ? "–" : count(each.version)),
      h("td", {}, each.rows === null ? "–" : count(each.rows)),
      h("td", {}, number(each.rows_per_second)),
      h("td", {}, each.lost ? plural(each.lost, "time") : "–"),
    ),
  );
  return wideTable("Processes", heads, rows);
}
