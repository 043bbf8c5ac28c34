// An answer token by token: coloured, readable by mouse and by keys, and always as text whatever a model wrote.

import { h } from "./dom.js";
import { exact, number } from "./format.js";

const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
// Letters that cannot be seen or that turn the writing around: shown by number, so that nothing hides and nothing moves.
export const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/u;
const ROWS = [
  ["logp", "log-probability"],
  ["entropy", "entropy"],
  ["ratio", "ratio"],
  ["advantages", "advantage"],
  ["weight", "weight"],
  ["clipped", "clipped"],
];
const PREVIEW = 160;
// Letters of a token and of any other text that are set: a model, or whoever wrote the record, may have written megabytes.
const LONGEST_TOKEN = 240;
const LONGEST_TEXT = 20_100;
/** Tokens of a sample that are set. */
export const MOST_TOKENS = 32_768;
const CLIPS = { 1: "at the upper bound", "-1": "at the lower bound", 0: "no" };

/** A text as nodes: letters as they are, blanks and line ends as marks, what cannot be seen by its number; the beginning of it. */
export function visible(whole, longest = LONGEST_TEXT) {
  const text = whole.length > longest ? `${whole.slice(0, longest)}…` : whole;
  const nodes = [];
  let [plain, marks] = ["", ""]; // at any time one of them is empty; thousands of blanks are one mark to the browser
  const flush = () => {
    if (plain) nodes.push(plain);
    if (marks) nodes.push(h("span", { class: "sign" }, marks));
    [plain, marks] = ["", ""];
  };
  for (const letter of text) {
    const mark =
      MARKS[letter] ?? (HIDDEN.test(letter) ? `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}` : "");
    if (mark ? plain : marks) flush();
    if (mark) marks += mark;
    else plain += letter;
    if (letter === "\n") {
      flush();
      nodes.push(h("br"));
    }
  }
  flush();
  return nodes.length ? nodes : [h("span", { class: "sign" }, "∅")];
}

/** What a token's card says, as [name, value] pairs, with the numbers as they were recorded. */
export function facts(sample, at) {
  const rows = [
    ["position", String(at)],
    ["id", sample.ids ? String(sample.ids[at]) : "–"],
  ];
  if (sample.turn) rows.push(["turn", String(sample.turn[at])]);
  if (sample.sampled?.[at] === 0) return [...rows, ["written by", "not the policy"]];
  for (const [key, name] of ROWS) {
    if (!Array.isArray(sample[key])) continue;
    const value = sample[key][at];
    rows.push([name, key === "clipped" ? (CLIPS[value] ?? "–") : exact(value)]);
    if (key === "logp" && Number.isFinite(value)) rows.push(["probability", number(Math.exp(value), 4)]);
  }
  return rows;
}

/** One sample's tokens under `card`, the card of numbers all strips share. */
export class Strip {
  constructor(sample, label, card) {
    Object.assign(this, { sample, card, tokens: [] });
    this.element = h("div", {
      class: "strip",
      role: "listbox",
      "aria-label": label,
      "aria-orientation": "horizontal",
      tabindex: -1,
    });
    this.fill();
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("focusin", (event) => this.focused(event.target));
    this.element.addEventListener("focusout", () => this.card.hide());
    this.element.addEventListener("mouseover", (event) => this.over(event.target.closest(".token")));
    this.element.addEventListener("mouseleave", () => this.card.hide());
    this.element.addEventListener("click", (event) => event.target.closest(".token")?.focus());
  }

  fill() {
    const { pieces, sampled, turn, clipped } = this.sample;
    let holder = this.element;
    pieces.forEach((piece, at) => {
      const theirs = sampled?.[at] === 0;
      if (turn && (at === 0 || turn[at] !== turn[at - 1])) {
        holder = this.element;
        holder.append(h("span", { class: "turn", role: "presentation" }, `turn ${turn[at]}`));
      }
      if (theirs && !holder.classList.contains("others")) {
        holder = h("span", { class: "others", role: "group", "aria-label": "Not written by the policy" });
        this.element.append(holder);
      } else if (!theirs) holder = this.element;
      const nodes = visible(piece, LONGEST_TOKEN);
      // A line ends behind the token, and may be broken before a word: the marks for blanks are no blanks to the browser.
      const ends = nodes.at(-1).tagName === "BR" ? nodes.pop() : null;
      if (/^\s/.test(piece)) holder.append(h("wbr"));
      const token = h(
        "span",
        { class: "token", role: "option", "aria-selected": "false", tabindex: at === 0 ? 0 : -1, "data-at": at, dir: "auto" },
        ...nodes,
      );
      if (!theirs && clipped?.[at] > 0) token.classList.add("clip-high");
      if (!theirs && clipped?.[at] < 0) token.classList.add("clip-low");
      this.tokens.push(token);
      holder.append(token, ...(ends ? [ends] : []));
    });
    if (!pieces.length) this.element.append(h("span", { class: "soft" }, "an empty answer"));
  }

  paint(scale) {
    paintTokens(this.tokens, this.sample, scale);
  }

  over(token) {
    if (token) this.card.show(token, this.sample);
  }

  focused(token) {
    if (!token.classList.contains("token")) return;
    for (const each of this.tokens)
      if (each.tabIndex === 0) {
        each.tabIndex = -1;
        each.setAttribute("aria-selected", "false");
      }
    token.tabIndex = 0;
    token.setAttribute("aria-selected", "true");
    const at = Number(token.dataset.at);
    // The numbers become the token's name when it is reached: thousands of names made ahead would only slow the page.
    token.setAttribute(
      "aria-label",
      `“${this.sample.pieces[at].slice(0, LONGEST_TOKEN)}” ${facts(this.sample, at)
        .map(([name, value]) => `${name} ${value}`)
        .join(", ")}`,
    );
    this.card.show(token, this.sample);
  }

  key(event) {
    const token = event.target.closest(".token");
    if (!token || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = Number(token.dataset.at);
    const moves = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      Home: () => 0,
      End: () => this.tokens.length - 1,
      ArrowDown: () => this.line(at, 1),
      ArrowUp: () => this.line(at, -1),
    };
    if (event.key === "Escape") this.card.hide();
    else if (event.key in moves) this.go(moves[event.key]());
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Moves to a token, staying inside. */
  go(at) {
    this.tokens[Math.max(0, Math.min(this.tokens.length - 1, at))]?.focus();
  }

  /** The nearest token on the written line above or below. */
  line(at, way) {
    const from = this.tokens[at].getBoundingClientRect();
    let best = at;
    let target = null;
    for (let other = at + way; other >= 0 && other < this.tokens.length; other += way) {
      const box = this.tokens[other].getBoundingClientRect();
      if (target === null && (box.top - from.top) * way > 4) target = box.top;
      if (target === null) continue;
      if (Math.abs(box.top - target) > 4) break;
      const nearer =
        best === at || Math.abs(box.left - from.left) < Math.abs(this.tokens[best].getBoundingClientRect().left - from.left);
      if (nearer) best = other;
    }
    return best;
  }
}

/** The beginning of an answer in one line, coloured like the answer but not to be walked through. */
export class Preview {
  constructor(sample) {
    this.sample = sample;
    this.tokens = sample.pieces.slice(0, PREVIEW).map((piece, at) => {
      const clip = sample.clipped?.[at] ?? 0;
      const looks = `token ${clip > 0 ? "clip-high" : clip < 0 ? "clip-low" : ""} ${sample.sampled?.[at] === 0 ? "theirs" : ""}`;
      return h("span", { class: looks }, ...visible(piece, LONGEST_TOKEN).filter((node) => node.tagName !== "BR"));
    });
    this.element = h("div", { class: "preview", "aria-hidden": "true" }, this.tokens);
  }

  paint(scale) {
    paintTokens(this.tokens, this.sample, scale);
  }
}

/** Colours tokens by a scale; what others wrote stays plain. */
function paintTokens(tokens, sample, scale) {
  const values = sample[scale.key];
  tokens.forEach((token, at) => {
    const strength = sample.sampled?.[at] === 0 ? null : scale.strength(values?.[at]);
    token.classList.toggle("up", strength !== null && (strength > 0 || scale.measure.sides === 1));
    token.classList.toggle("down", strength !== null && strength < 0 && scale.measure.sides === 2);
    token.style.setProperty("--v", strength === null ? "0" : Math.abs(strength).toFixed(3));
  });
}

/** The card of numbers beside the token that is pointed at or focused. */
export class Card {
  constructor() {
    this.element = h("div", { class: "token-card", role: "tooltip", id: "token-card", hidden: true });
  }

  show(token, sample) {
    const at = Number(token.dataset.at);
    this.element.replaceChildren(
      h("div", { class: "token-said" }, h("bdi", {}, ...visible(sample.pieces[at], LONGEST_TOKEN).filter((node) => node.tagName !== "BR"))),
      h("dl", {}, ...facts(sample, at).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { "data-fact": name }, value)])),
    );
    this.element.hidden = false;
    const box = token.getBoundingClientRect();
    const [wide, high] = [this.element.offsetWidth, this.element.offsetHeight];
    const top = box.bottom + 8 + high > innerHeight ? Math.max(8, box.top - high - 8) : box.bottom + 8;
    const left = Math.max(8, Math.min(box.left, innerWidth - wide - 8));
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  hide() {
    this.element.hidden = true;
  }
}
