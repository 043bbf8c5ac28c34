// Small things said about a run in several views: its status, its score, its sparkline, its name, its buttons.

import { ApiError, post } from "./api.js";
import { h, svg } from "./dom.js";
import { number, share } from "./format.js";
import { matches, sorted } from "./run_list.js";
import { pollNow, store } from "./store.js";
import { askForTrust } from "./trust.js";

const MARKS = { running: "●", finished: "✓", stopped: "■", crashed: "✕", broken: "!" };

/** A status by colour, mark and word. */
export function status(run) {
  return h(
    "span",
    { class: `status ${run.status}`, title: run.why || null },
    h("span", { class: "mark", "aria-hidden": "true" }, MARKS[run.status] ?? "?"),
    run.status,
  );
}

/** Figures that suit the score: an accuracy has three decimals, a return has what it needs. */
export function scoreText(run, value) {
  return run.score_name === "accuracy" ? share(value) : number(value, 4);
}

/** From where to where, and the interval. */
export function score(run) {
  if (!Number.isFinite(run.score)) return h("span", { class: "soft" }, "–");
  const before = Number.isFinite(run.score_before)
    ? [h("span", { class: "soft" }, scoreText(run, run.score_before)), h("span", { class: "soft arrow" }, " → ")]
    : [h("span", { class: "soft" }, "start ")];
  const interval =
    Number.isFinite(run.low) && Number.isFinite(run.high)
      ? `${scoreText(run, run.low)} to ${scoreText(run, run.high)}`
      : run.score_name;
  return h(
    "span",
    { class: "score" },
    h("span", {}, ...before, h("strong", {}, scoreText(run, run.score))),
    h("small", {}, interval),
  );
}

/** The reward so far, as a line without axes. */
export function spark(run, width = 120, height = 26) {
  const values = (run.spark ?? []).filter((value) => Number.isFinite(value));
  if (values.length < 2) return h("span", { class: "soft" }, "–");
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const y = (value) => (high === low ? height / 2 : height - 3 - ((value - low) / (high - low)) * (height - 6));
  const points = values.map((value, at) => `${((at / (values.length - 1)) * (width - 6) + 2).toFixed(1)},${y(value).toFixed(1)}`);
  const last = points.at(-1).split(",");
  const name = run.domain === "control" ? "Return" : "Reward";
  return svg(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${name} from ${number(values[0])} to ${number(values.at(-1))}`,
    },
    svg("polygon", { class: "spark-fill", points: `2,${height} ${points.join(" ")} ${last[0]},${height}` }),
    svg("polyline", { class: "spark-line", points: points.join(" ") }),
    svg("circle", { class: "spark-end", cx: last[0], cy: last[1], r: 2.2 }),
  );
}

/** How far it is. */
export function progress(run) {
  const share = run.steps ? Math.min(1, run.step / run.steps) : 0;
  const bar = h("span", { class: "bar-fill" });
  bar.style.width = `${(share * 100).toFixed(1)}%`;
  return h(
    "span",
    { class: `progress ${run.status}` },
    h("span", { class: "bar", "aria-hidden": "true" }, bar),
    h("small", {}, `${run.step ?? 0} / ${run.steps ?? "?"}`),
  );
}

/** Stop or resume, where the server allows it; otherwise nothing. */
export function controls(run, inRow = false) {
  if (!store.allowControl || run.status === "finished" || run.status === "broken") return null;
  const what = run.status === "running" ? "stop" : "resume";
  const button = h(
    "button",
    {
      type: "button",
      class: "quiet",
      tabindex: inRow ? -1 : null,
      "aria-label": `${what === "stop" ? "Stop" : "Resume"} ${run.id}`,
    },
    what === "stop" ? "Stop" : "Resume",
  );
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    button.disabled = true;
    try {
      const done = what === "stop" ? await post("stop", { run: run.id }) : await resume(run.id);
      if (done) await pollNow();
      else button.disabled = false;
    } catch (error) {
      button.disabled = false;
      button.title = error.message;
      button.textContent = `${what === "stop" ? "Stop" : "Resume"}: ${error.message}`;
    }
  });
  return button;
}

/** Resumes, and gives null if the reader did not want to after all; where that would run code this machine did not write, it is asked. */
async function resume(run) {
  let trust = [];
  for (;;) {
    try {
      return await post("resume", { run, trust });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 409 || !error.body?.code) throw error;
      if (!(await askForTrust(run, error.message, error.body.code))) return null;
      trust = error.body.code.map((each) => each.digest);
    }
  }
}

/** A drop-down of all runs, newest first, for the views that show one. */
export function runPicker(current, onchange, suits = () => true) {
  const box = h("select", { "aria-label": "Run", class: "run-picker", onchange: () => onchange(box.value) });
  const refill = () => {
    const offered = [...store.runs.values()].filter((run) => suits(run) && matches(run, store.pickFilter));
    const ids = sorted(offered, "began", true).map((run) => run.id);
    if (current && !ids.includes(current)) ids.unshift(current);
    if (box.dataset.ids !== ids.join("\n")) {
      box.replaceChildren(...ids.map((id) => h("option", { value: id }, id)));
      box.dataset.ids = ids.join("\n");
    }
    box.value = current ?? "";
  };
  refill();
  return {
    element: box,
    refill,
    choose: (id) => {
      current = id;
      refill();
    },
  };
}

/** The run a view shows when the address names none: the one looked at last, else the first ticked one, else the newest. */
export function likelyRun(suits = () => true) {
  const first = [store.current, ...store.ticked].map((id) => store.runs.get(id)).find((run) => run && suits(run));
  if (first) return first.id;
  const all = [...store.runs.values()].filter(suits).sort((a, b) => (b.began ?? 0) - (a.began ?? 0));
  return all[0]?.id ?? null;
}
