// The preferences of a run: likelihoods and margin over time, a step's contests side by side, what a judge was asked, search trees.

import { get } from "./api.js";
import { contestCard, judgeCard } from "./contests.js";
import { empty, h, put } from "./dom.js";
import { count, plural } from "./format.js";
import { ChartGroup } from "./chart_group.js";
import { RunView } from "./run_view.js";
import { treeCard } from "./search_tree.js";

/** Title, meaning, and which metrics. */
const CHARTS = [
  [
    "Log-likelihood of both sides",
    "Losses of preferences ask for a difference alone: both may fall.",
    (key) => key === "logp_chosen" || key === "logp_rejected",
  ],
  ["Margin", "By how much the winner's score is above the loser's.", (key) => key === "margin"],
  ["Preferred", "Share of contests in which the margin is on the right side.", (key) => key === "preferred"],
  ["Preference gap", "Chance that the best answer of a group beats its worst, over one half.", (key) => key === "preference_gap"],
  ["Exploitability", "What the best reply to the policy wins beyond one half.", (key) => key === "exploitability"],
  ["Chance of each answer", "The policy's own, where there are few answers.", (key) => key.startsWith("chance_")],
  ["Verdicts that failed", "Of the pairs put to the judge in a step.", (key) => key.startsWith("judge_")],
];

/** Opens the preferences of a run. */
export function open(root, params) {
  return new PreferencesView(root, params).start();
}

class PreferencesView extends RunView {
  view = "preferences";
  title = "Preferences";
  nothing = "What a run of preferences compares appears here.";

  build() {
    this.charts = new ChartGroup(CHARTS, this.view);
    this.contests = h("section", { class: "contests", "aria-label": "Contests" });
    return [this.charts.element, this.contests];
  }

  fetch() {
    return get("contests", { run: this.run, step: this.step });
  }

  more() {
    return this.charts.load(this.run);
  }

  show(found) {
    this.at(found.steps, found.step);
    const told = found.contests.length + found.trees.length + found.judged.length;
    if (!told) {
      const why = found.steps.length
        ? "The recorded rows of this step were neither given sides nor compared."
        : "This run kept no rollouts: it was trained with --record none, or has not made a step yet.";
      put(this.contests, empty("No contests", h("p", {}, why)));
      return;
    }
    const most = found.contests.length < found.contests_in_all ? `, of which ${count(found.contests.length)} are shown` : "";
    put(
      this.contests,
      h("h2", {}, `${plural(found.contests_in_all, "recorded contest")} of step ${found.step}${most}`),
      found.contests.map((each) => contestCard(each, this.run, found.step)),
      found.trees.map(treeCard),
      found.judged.length > 0 && judgeCard(found.judged),
    );
  }
}
