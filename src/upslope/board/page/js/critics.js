// The critics of a run: what they say, how far they are from their targets, and what an episode then returned.

import { get } from "./api.js";
import { ChartGroup } from "./chart_group.js";
import { h, put } from "./dom.js";
import { number } from "./format.js";
import { link } from "./router.js";
import { RunView } from "./run_view.js";

/** Title, meaning, and which metrics. */
const CHARTS = [
  ["Values", "What the critics say of the actions learned from; rewards and discount bound what can be true.", (key) => /(^|_)value$/.test(key)],
  ["Targets", "The reward and the discounted value of what follows.", (key) => /_target$/.test(key)],
  ["TD error", "How far the critics are from their targets, without sign.", (key) => /_td_error$/.test(key)],
  ["Losses", "What their optimiser lowers; targets move, so a loss need not fall.", (key) => /_(loss|penalty)$/.test(key)],
  ["Temperature", "Weight of the entropy in rewards: learned, so that the policy keeps the wanted entropy.", (key) => key === "temperature"],
  ["Return", "What episodes came to: a critic that says more than this is wrong.", (key) => key === "episode_return" || key === "score"],
  ["Updates a second", "Of learning alone, without the time in which the policy acts.", (key) => key === "updates_per_second"],
];

/** Opens the critics of a run. */
export function open(root, params) {
  return new CriticsView(root, params).start();
}

class CriticsView extends RunView {
  view = "critics";
  title = "Critics";
  nothing = "What the critics of a run say appears here.";
  stepped = false;

  build() {
    this.summary = h("section", { class: "card" });
    this.charts = new ChartGroup(CHARTS, this.view);
    return [this.summary, this.charts.element];
  }

  /** The newest episode: where what a critic expected stands beside what came. */
  async fetch() {
    const { steps } = await get("episodes", { run: this.run });
    return steps.length ? get("episode", { run: this.run, step: steps.at(-1) }) : null;
  }

  more() {
    return this.charts.load(this.run);
  }

  show(episode) {
    const expected = episode?.values?.[0];
    const came = episode?.returns_to_go?.[0];
    const known = Number.isFinite(expected) && Number.isFinite(came);
    put(
      this.summary,
      h("h2", {}, known ? `At the start of the last episode: expected ${number(expected)}, came ${number(came)}` : "No episode with values yet"),
      h(
        "p",
        {},
        known
          ? ["Both are discounted. ", h("a", { href: link("rollouts", { run: this.run, step: episode.step }) }, "The episode, decision by decision")]
          : "Where a run with critics records an episode, what they expected stands beside what came.",
      ),
    );
  }
}
