// The rollout inspector: a recorded step, its groups, and one or two samples token by token. Control runs show an episode instead.

import { ApiError, get } from "./api.js";
import { empty, h, put, typing } from "./dom.js";
import { Episodes } from "./episode.js";
import { nearest } from "./curve_data.js";
import { plural } from "./format.js";
import { link, note } from "./router.js";
import { StepBar } from "./rollout_bar.js";
import { allSamples, findRow, jumpInRun, jumpInStep } from "./rollout_data.js";
import { groupList } from "./rollout_panels.js";
import { likelyRun } from "./run_bits.js";
import { RunHead } from "./run_head.js";
import { SamplePane } from "./sample_pane.js";
import { choose, store, subscribe } from "./store.js";
import { MEASURES } from "./token_scale.js";
import { Card } from "./tokens.js";

const PAUSE_MS = 1500;

/** Opens the run of the address, or a likely one. */
export function open(root, params) {
  return new RolloutsView(root, params);
}

class RolloutsView {
  constructor(root, params) {
    Object.assign(this, {
      root,
      steps: [],
      jumps: [],
      data: null,
      episodes: null,
      timer: 0,
      last: 0,
      turn: 0,
      pane: null,
      card: new Card(),
    });
    this.take(params);
    this.stop = subscribe((changed, gone) => this.heard(changed, gone));
    this.onkey = (event) => this.key(event);
    document.addEventListener("keydown", this.onkey);
    this.begin();
  }

  take(params) {
    const numberOf = (name) => (params.has(name) && Number.isFinite(Number(params.get(name))) ? Number(params.get(name)) : null);
    this.run = params.get("run");
    this.step = numberOf("step");
    this.row = numberOf("row");
    this.group = null;
    this.beside = numberOf("beside");
    this.at = numberOf("at");
    this.by = params.get("by") in MEASURES ? params.get("by") : "logp";
    this.follow = this.step === null;
  }

  change(params) {
    const before = this.run;
    this.take(params);
    if (this.run !== null && this.run === before && this.data) this.load();
    else this.begin();
  }

  close() {
    this.stop();
    clearTimeout(this.timer);
    this.episodes?.close();
    this.pane?.close();
    this.card.element.remove();
    document.removeEventListener("keydown", this.onkey);
  }

  /** A run from the start: what was recorded of it, then the step asked for. */
  begin() {
    if (store.state === "loading") return;
    this.episodes?.close();
    this.episodes = null;
    this.data = null;
    this.run ??= likelyRun((run) => run.recorded) ?? likelyRun();
    if (!this.run) {
      put(
        this.root,
        empty(
          "No rollouts yet",
          h("p", {}, "Runs record a few rollouts of every step; start one and they appear here."),
          h("a", { href: link("runs") }, "All runs"),
        ),
      );
      return;
    }
    this.build();
    choose(this.run);
    const run = store.runs.get(this.run);
    if (run?.domain === "control")
      this.episodes = new Episodes(this.body, this.run, this.step, this.at, (step, at) => {
        Object.assign(this, { step, at, follow: step === null });
        this.note();
      });
    else this.refresh();
    this.note();
  }

  build() {
    this.bar = new StepBar({
      go: (at) => this.goTo({ step: this.steps[at], follow: at === this.steps.length - 1 }),
      jump: (kind, range) => this.jump(kind, range),
    });
    this.colourBy = h("div", { class: "colour-by" });
    this.body = h("div", { class: "rollout-body" });
    this.body.addEventListener("focusin", (event) => this.stay(event.target));
    const textual = store.runs.get(this.run)?.domain !== "control";
    const pick = (id) => {
      Object.assign(this, { run: id, step: null, row: null, beside: null, at: null, follow: true });
      this.begin();
    };
    this.head = new RunHead(this.run, pick, textual && this.colourBy);
    put(
      this.root,
      h("h1", { class: "unseen" }, "Rollouts"),
      ...this.head.elements,
      textual && this.bar.element,
      this.body,
      this.card.element,
    );
  }

  async refresh() {
    this.last = Date.now();
    const mine = this.run;
    try {
      const found = await get("rollouts", { run: mine });
      if (mine !== this.run) return;
      Object.assign(this, { steps: found.steps, jumps: found.jumps ?? [] });
    } catch (error) {
      this.fail(error);
      return;
    }
    if (!this.steps.length) {
      this.bar.element.hidden = this.colourBy.hidden = true;
      const running = store.runs.get(this.run)?.status === "running";
      put(
        this.body,
        empty(
          "Nothing recorded",
          h(
            "p",
            {},
            running || !store.runs.get(this.run)?.step
              ? "A recorded step appears here as soon as there is one."
              : "This run kept no rollouts: it was trained with --record none, or before rollouts were recorded.",
          ),
        ),
      );
      return;
    }
    this.bar.element.hidden = this.colourBy.hidden = false;
    const wanted = this.follow || this.step === null ? this.steps.at(-1) : this.steps[nearest(this.steps, this.step)];
    if (this.data === null) {
      this.step = wanted;
      await this.load(); // the row of the address, if it named one
    } else if (this.data.step !== wanted) await this.goTo({ step: wanted, follow: this.follow });
    else this.showStep();
  }

  /** A step and perhaps a row of it. Following the newest step ends with the first thing chosen by hand. */
  goTo({ step = this.step, row = null, group = null, follow = false }) {
    Object.assign(this, { step, row, group, at: null, beside: row === null || row !== this.row ? null : this.beside, follow });
    return this.load();
  }

  async load() {
    this.showStep();
    const mine = ++this.turn;
    if (this.data?.step !== this.step || this.data.run !== this.run) {
      try {
        const data = await get("rollout", { run: this.run, step: this.step });
        if (mine !== this.turn) return;
        this.data = { ...data, run: this.run };
      } catch (error) {
        if (mine === this.turn) this.fail(error);
        return;
      }
    }
    this.show();
  }

  fail(error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 0) return;
    put(
      this.body,
      empty(
        error.status === 404 ? "Gone" : "This cannot be shown",
        h("p", {}, error.message),
        h("a", { href: link("runs") }, "All runs"),
      ),
    );
  }

  showStep() {
    this.bar.show(this.steps, this.step, this.follow && store.runs.get(this.run)?.status === "running");
  }

  show() {
    const { data } = this;
    const samples = allSamples(data);
    if (!samples.length) {
      put(this.body, empty("No sample of this step was recorded"));
      return;
    }
    const found = this.found(data);
    this.bar.say(
      found || (this.row === null && this.group === null)
        ? `${samples.length} of ${plural(data.rows ?? samples.length, "row")} recorded`
        : `${this.row === null ? `Group ${this.group}` : `Row ${this.row}`} of this step was not recorded.`,
    );
    const { group, sample } = found ?? this.usual(data, samples);
    this.row = sample.row;
    this.group = group.group;
    if (this.beside === this.row || !group.samples.some((each) => each.row === this.beside)) this.beside = null;
    this.note();
    this.draw(data, group);
  }

  /** The sample of the row or group asked for, if it was recorded. */
  found(data) {
    if (this.row !== null) return findRow(data, this.row);
    const group = data.groups.find((each) => each.group === this.group && each.samples.length);
    return group ? { group, sample: group.samples[0] } : null;
  }

  draw(data, group) {
    const focused = document.activeElement;
    const place = this.body.contains(focused) ? focused.dataset.place : null;
    const scrolled = this.body.querySelector(".group-side")?.scrollTop ?? 0;
    this.pane?.close();
    this.card.hide();
    this.pane = new SamplePane(group, this.row, this.beside, this.by, this.card, this.colourBy, {
      pick: (row) => this.goTo({ row }),
      beside: (row) => {
        Object.assign(this, { beside: row, follow: false });
        this.show();
      },
      colour: (key) => {
        this.by = key;
        this.note();
      },
    });
    const side = h(
      "aside",
      { class: "group-side card", "aria-label": "Groups of this step" },
      h("h2", {}, plural(data.groups.length, "group")),
      groupList(data, group.group, (row) => this.goTo({ row })),
    );
    put(this.body, side, this.pane.element);
    side.scrollTop = scrolled;
    side.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    if (place) this.body.querySelector(`[data-place="${place}"]`)?.focus({ preventScroll: true });
    else if (this.at !== null && !this.follow) this.pane.strips[0]?.go(this.at);
  }

  /** What to open when nothing was asked for: a group that teaches something. */
  usual(data, samples) {
    const telling = data.groups.find((group) => !group.constant && group.samples.length);
    return telling ? { group: telling, sample: telling.samples[0] } : samples[0];
  }

  /** Whoever reads a token does not want the next step to take it away, and can send it to somebody. */
  stay(target) {
    if (!target.closest(".strip")) return;
    if (target.closest(`.sample[data-row="${this.row}"]`)) this.at = Number(target.dataset.at);
    if (this.follow) {
      this.follow = false;
      this.showStep();
    }
    this.note();
  }

  move(by) {
    const at = this.steps.indexOf(this.step) + by;
    if (at >= 0 && at < this.steps.length) this.goTo({ step: this.steps[at], follow: at === this.steps.length - 1 });
  }

  jump(kind, range) {
    if (!this.data) return;
    const { group } = this;
    const place = range === "step" ? jumpInStep(this.data, kind, group) : jumpInRun(this.jumps, kind, { step: this.step, group });
    if (place) this.goTo(place).then(() => kind === "clipped" && this.pane?.toClipped());
    else
      this.bar.say(
        { constant: "No recorded group has zero variance.", clipped: "Nothing was clipped." }[kind] ??
          "There are no numbers for that.",
      );
  }

  key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event) || this.episodes || !this.data)
      return;
    const samples = allSamples(this.data).map(({ sample }) => sample.row);
    const at = samples.indexOf(this.row);
    if (event.key === "[") this.move(-1);
    else if (event.key === "]") this.move(1);
    else if (event.key === "n" && at < samples.length - 1) this.goTo({ row: samples[at + 1] });
    else if (event.key === "p" && at > 0) this.goTo({ row: samples[at - 1] });
    else return;
    event.preventDefault();
  }

  heard(changed, gone) {
    if (this.run && gone.has(this.run)) {
      put(
        this.body,
        empty(
          "Gone",
          h("p", {}, `Run ${this.run} is gone: its folder is no longer there.`),
          h("a", { href: link("runs") }, "All runs"),
        ),
      );
      return;
    }
    if (!this.run || !this.body) {
      this.begin();
      return;
    }
    this.head.refresh();
    if (changed !== null && !changed.has(this.run)) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(
      () => (this.episodes ? this.episodes.refresh() : this.refresh()),
      Math.max(0, this.last + PAUSE_MS - Date.now()),
    );
  }

  note() {
    note("rollouts", {
      run: this.run,
      step: this.follow ? null : this.step,
      row: this.follow ? null : this.row,
      at: this.follow ? null : this.at,
      beside: this.beside,
      by: this.by === "logp" ? null : this.by,
    });
  }
}
