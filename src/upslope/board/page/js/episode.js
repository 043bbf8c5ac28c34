// A control run: the return over training, and one recorded episode with its pictures, rewards and actions.

import { address, ApiError, get } from "./api.js";
import { Chart } from "./chart.js";
import { nearest } from "./curve_data.js";
import { empty, h, put, select, typing } from "./dom.js";
import { number, plural } from "./format.js";

const FRAMES_PER_SECOND = 12;

/**
 * The episodes of `run` under `root`, opened at `step` (null: the newest, and then the newest ever after) and at a moment of it.
 * `onplace(step, moment)` is told where one is.
 */
export class Episodes {
  constructor(root, run, step, moment, onplace) {
    Object.assign(this, {
      root,
      run,
      step,
      moment,
      onplace,
      follow: step === null,
      steps: [],
      returns: null,
      episode: null,
      frame: 0,
      player: 0,
      turn: 0,
      sheet: null,
    });
    this.onkey = (event) => this.key(event);
    document.addEventListener("keydown", this.onkey);
    this.refresh();
  }

  close() {
    this.pause();
    document.removeEventListener("keydown", this.onkey);
    this.curve?.close();
    this.rewards?.close();
    this.values?.close();
  }

  async refresh() {
    try {
      const found = await get("episodes", { run: this.run });
      const grown = found.steps.length !== this.steps.length;
      Object.assign(this, { steps: found.steps, returns: found.returns });
      if (!this.steps.length) {
        put(
          this.root,
          empty(
            "No episode recorded yet",
            h("p", {}, "A control run records an episode at every evaluation: before, after, and in between with --eval-every."),
          ),
        );
        return;
      }
      if (!this.built) this.build();
      this.drawReturns();
      if (grown) this.fillSteps();
      const wanted = this.follow ? this.steps.at(-1) : this.steps[nearest(this.steps, this.step ?? 0)];
      if (this.episode?.step !== wanted) await this.load(wanted);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 0) return;
      this.built = false;
      put(this.root, empty(error.status === 404 ? "Gone" : "This cannot be shown", h("p", {}, error.message)));
    }
  }

  build() {
    this.built = true;
    const curveHost = h("div");
    const rewardHost = h("div");
    const valueHost = h("div");
    this.valueBox = h(
      "section",
      { class: "card chart-box", hidden: true },
      h("header", {}, h("h2", {}, "value beside return to go")),
      h("p", { class: "meaning soft" }, "Solid: what the critic expects. Dashed: the discounted return that came."),
      valueHost,
    );
    this.canvas = h("canvas", { class: "screen", role: "img", "aria-label": "The episode" });
    this.play = h("button", { type: "button", class: "button main", onclick: () => this.toggle() }, "Play");
    this.scrub = h("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      "aria-label": "Moment of the episode",
      oninput: () => {
        this.pause();
        this.seek(Number(this.scrub.value));
        this.onplace(this.step, this.time);
      },
    });
    this.where = h("output", { class: "soft figure" });
    this.facts = h("p", { class: "episode-facts" });
    this.missing = h("p", { class: "soft", role: "status", hidden: true });
    this.chooser = h("span");
    this.speed = 1;
    const speed = select(
      "Speed",
      [
        ["0.5", "½"],
        ["1", "1"],
        ["2", "2"],
        ["4", "4"],
      ],
      "1",
      (value) => (this.speed = Number(value)),
    );
    put(
      this.root,
      h(
        "div",
        { class: "episode", "data-episodes": true },
        h(
          "section",
          { class: "card stage" },
          h("header", {}, this.chooser, this.facts),
          this.canvas,
          this.missing,
          h("div", { class: "player" }, this.play, this.scrub, this.where, speed),
        ),
        h(
          "div",
          { class: "episode-side" },
          h("section", { class: "card chart-box" }, h("header", {}, h("h2", {}, "return over training")), curveHost),
          h("section", { class: "card chart-box" }, h("header", {}, h("h2", {}, "reward so far, along the episode")), rewardHost),
          this.valueBox,
        ),
      ),
    );
    this.curve = new Chart(curveHost, "Return over training", {}, { height: 190 });
    this.rewards = new Chart(rewardHost, "Reward so far along the episode", {}, { height: 190 });
    this.values = new Chart(valueHost, "Value beside return to go", {}, { height: 190 });
  }

  fillSteps() {
    const shown = String(this.episode?.step ?? this.steps.at(-1));
    put(
      this.chooser,
      select(
        "Episode after step",
        this.steps.map((step) => [String(step), String(step)]),
        shown,
        (value) => {
          Object.assign(this, { follow: false, step: Number(value) });
          this.refresh();
        },
      ),
    );
  }

  drawReturns() {
    // A step in which no episode ended has no return: the line goes on to the next that has.
    const { step, y } = this.returns ?? { step: [], y: [] };
    const known = step.map((each, at) => at).filter((at) => Number.isFinite(y[at]));
    const line = { name: "return", hue: "--line-0", dash: [], x: known.map((at) => step[at]), y: known.map((at) => y[at]) };
    this.curve.show(known.length ? [{ ...line, whiskers: known.length < 60 }] : [], { xName: "step" });
  }

  async load(step) {
    this.pause();
    this.say("Drawing the episode…");
    const mine = ++this.turn;
    const episode = await get("episode", { run: this.run, step });
    if (mine !== this.turn) return; // another one was chosen meanwhile
    Object.assign(this, { episode, step, sheet: null });
    this.onplace(this.follow ? null : step, this.moment);
    this.chooser.querySelector("select").value = String(step);
    put(
      this.facts,
      h("strong", {}, `return ${number(episode.return)}`),
      ` in ${plural(episode.length, "step")}, `,
      h("span", { class: "chip" }, episode.ended ?? "ended"),
      h("span", { class: "chip" }, `seed ${episode.seed}`),
      Object.entries(episode.level ?? {}).map(([name, value]) => h("span", { class: "chip" }, `${name} ${value}`)),
    );
    let sum = 0;
    this.sums = episode.rewards.map((reward) => (sum += reward ?? 0));
    this.rewards.show([{ name: "reward so far", hue: "--line-2", dash: [], x: this.sums.map((value, at) => at), y: this.sums }], {
      xName: "time",
    });
    this.drawValues(episode);
    const frames = episode.frames;
    this.say(frames ? "" : `There are no pictures of this episode: ${episode.why || "it could not be drawn."}`);
    this.scrub.max = Math.max(0, (frames?.count ?? episode.length) - 1);
    if (frames) await this.loadSheet(frames, step);
    await Promise.resolve(); // the chart takes its new numbers in a moment, and the mark in it needs them
    this.seek(Math.round((this.moment ?? 0) / (frames?.every ?? 1)));
    this.moment = null;
  }

  /** What the critic expected before each action, and what came: the same curve, if it is right. Hidden without a critic. */
  drawValues(episode) {
    const { values, returns_to_go: came } = episode;
    const known = Array.isArray(values) && Array.isArray(came) && values.length > 0;
    this.valueBox.hidden = !known;
    if (!known) return;
    const x = values.map((value, at) => at);
    this.values.show(
      [
        { name: "value", hue: "--line-0", dash: [], x, y: values },
        { name: `return to go, discounted by ${number(episode.gamma)}`, hue: "--line-2", dash: [6, 4], x, y: came },
      ],
      { xName: "time" },
    );
  }

  /** Words in place of the pictures; none when they are there. */
  say(text) {
    this.missing.textContent = text;
    this.missing.hidden = !text;
    this.canvas.hidden = Boolean(text);
  }

  loadSheet(frames, step) {
    this.canvas.width = frames.width;
    this.canvas.height = frames.height;
    this.canvas.style.aspectRatio = `${frames.width} / ${frames.height}`;
    return new Promise((done) => {
      const sheet = new Image();
      sheet.onload = () => {
        if (step === this.step) this.sheet = sheet;
        done();
      };
      sheet.onerror = () => {
        this.say("The pictures of this episode could not be loaded.");
        done();
      };
      sheet.src = address("frames", { run: this.run, step });
    });
  }

  /** Shows one frame, its moment in the numbers, and the reward up to it. */
  seek(frame) {
    const frames = this.episode.frames;
    this.frame = Math.max(0, Math.min(Number(this.scrub.max), frame));
    this.scrub.value = this.frame;
    const time = (this.time = Math.min(this.episode.length - 1, this.frame * (frames?.every ?? 1)));
    if (frames && this.sheet) {
      const [left, top] = [(this.frame % frames.columns) * frames.width, Math.floor(this.frame / frames.columns) * frames.height];
      this.canvas.getContext("2d").drawImage(this.sheet, left, top, frames.width, frames.height, 0, 0, frames.width, frames.height);
    }
    const action = this.episode.actions?.[time];
    const said = Array.isArray(action) ? action.map((value) => number(value)).join(", ") : number(action);
    const value = this.episode.values?.[time];
    const thought = Number.isFinite(value) ? `, value ${number(value)}` : "";
    const moment = `time ${time} of ${this.episode.length - 1}`;
    this.where.textContent = `${moment}, action ${said}, reward so far ${number(this.sums[time])}${thought}`;
    this.scrub.setAttribute("aria-valuetext", this.where.textContent);
    for (const { plot } of [this.rewards, this.values]) if (plot) plot.setCursor({ left: plot.valToPos(time, "x"), top: 0 }, false);
  }

  toggle() {
    if (this.player) this.pause();
    else {
      if (this.frame >= Number(this.scrub.max)) this.seek(0);
      this.play.textContent = "Pause";
      let before = performance.now();
      const tick = (now) => {
        if (now - before >= 1000 / (FRAMES_PER_SECOND * this.speed)) {
          before = now;
          if (this.frame >= Number(this.scrub.max)) {
            this.pause();
            return;
          }
          this.seek(this.frame + 1);
        }
        this.player = requestAnimationFrame(tick);
      };
      this.player = requestAnimationFrame(tick);
    }
  }

  pause() {
    cancelAnimationFrame(this.player);
    this.player = 0;
    if (this.play) this.play.textContent = "Play";
  }

  key(event) {
    if (
      event.key !== " " ||
      event.defaultPrevented ||
      typing(event) ||
      event.target.closest?.("button, select, summary, a") ||
      !this.episode
    )
      return;
    event.preventDefault();
    this.toggle();
  }
}
