// The pieces of the rollout view: the list of groups, a group's heading, a sample's card.

import { h } from "./dom.js";
import { count, number, plural, words } from "./format.js";
import { clippedShare, written } from "./rollout_data.js";
import { Preview, visible } from "./tokens.js";

/** Groups of a step and samples of a group that are listed; the others are reached by their number and by keys. */
const MOST_LISTED = 1000;
const MOST_PIPS = 64;
/** Rewards of a sample that have a column of their own; its card names them all. */
const MOST_PARTS = 6;

/** The groups of a step as a list; `choose(row)` opens a sample. */
export function groupList(step, current, choose) {
  const rewards = step.groups.flatMap((group) => group.samples.map((sample) => sample.reward)).filter(Number.isFinite);
  const low = rewards.reduce((one, other) => Math.min(one, other), 0);
  const high = rewards.reduce((one, other) => Math.max(one, other), 1);
  const listed = step.groups.filter((group) => group.samples.length).slice(0, MOST_LISTED);
  return h(
    "ul",
    { class: "groups" },
    listed.map((group) => {
      const mean = average(group.samples.map((sample) => sample.reward));
      const open = group.group === current;
      return h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            class: "group-button",
            "data-group": group.group,
            "data-place": `group-${group.group}`,
            "aria-current": open ? "true" : null,
            onclick: () => choose(group.samples[0].row),
          },
          h(
            "span",
            { class: "group-top" },
            h("span", { class: "group-number" }, `#${group.group}`),
            h("bdi", { class: "group-prompt" }, oneLine(group.prompt)),
          ),
          h(
            "span",
            { class: "group-bottom" },
            h(
              "span",
              { class: "pips", "aria-hidden": "true" },
              group.samples.slice(0, MOST_PIPS).map((sample) => pip(sample, low, high)),
            ),
            h("small", {}, group.constant ? "no variance" : `mean ${number(mean)}`),
          ),
        ),
      );
    }),
  );
}

function pip(sample, low, high) {
  const element = h("span", { class: "pip" });
  element.style.setProperty("--v", Number.isFinite(sample.reward) ? ((sample.reward - low) / (high - low || 1)).toFixed(2) : "0");
  return element;
}

function oneLine(text) {
  return (text ?? "").slice(0, 1000).replace(/\s+/g, " ").trim().slice(0, 120);
}

function average(values) {
  const known = values.filter(Number.isFinite);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** The prompt and the expected answer. */
export function groupHead(group) {
  const known = group.answer !== null && group.answer !== undefined;
  return h(
    "section",
    { class: "group-head" },
    h("h2", {}, `Group ${group.group}`),
    h(
      "div",
      { class: "prompt" },
      h("span", { class: "label" }, "prompt"),
      h("bdi", { class: "said" }, ...visible(group.prompt ?? "")),
    ),
    known &&
      h(
        "div",
        { class: "prompt" },
        h("span", { class: "label" }, "expected"),
        h("bdi", { class: "said" }, ...visible(String(group.answer))),
      ),
    group.gate && h("span", { class: "chip" }, gateWords(group.gate)),
    group.chosen && h("span", { class: "chip" }, chosenWords(group.chosen)),
    group.made_from && h("span", { class: "chip" }, `made from ${[].concat(group.made_from).map(oneLine).join(", ")}`),
    group.constant && !taught(group) && h("span", { class: "chip warn" }, "zero variance: no signal"),
  );
}

/** Whether a gate gave the group a demonstration to learn from. */
function taught({ gate }) {
  return gate !== undefined && (gate.imitation > 0 || gate.off_policy > 0);
}

/** What a gate lets a group learn from, in words. */
function gateWords({ solved, own, off_policy: reinforced, imitation }) {
  const sources = [
    [own, "its samples"],
    [reinforced, "its demonstration, reinforced"],
    [imitation, "its demonstration, imitated"],
  ];
  const open = sources.filter(([weight]) => weight > 0);
  const said = open.map(([weight, what]) => (weight === 1 ? what : `${what} (${number(weight)})`));
  return `${plural(solved, "right answer")}: learns from ${said.join("; ") || "nothing"}`;
}

/** Why a curriculum chose the problem, in words. */
function chosenWords(chosen) {
  const facts = Object.entries(chosen).map(([name, value]) => `${words(name)} ${typeof value === "number" ? number(value) : value}`);
  return `chosen: ${facts.join(", ")}`;
}

/** The named parts of these samples' reward, a column each: the task's own is the reward itself. */
function rewardParts(samples) {
  const names = new Set(samples.flatMap((sample) => Object.keys(sample.components ?? {})));
  names.delete("task");
  return [...names].slice(0, MOST_PARTS);
}

/** The samples of a group in a line each, with the beginning of what was written. */
export function sampleLines(all, row, beside, actions) {
  const samples = all.filter((sample, at) => at < MOST_LISTED || sample.row === row || sample.row === beside);
  const strips = samples.map((sample) => new Preview(sample));
  const several = samples.length > 1;
  const parts = rewardParts(samples);
  const element = h(
    "table",
    { class: "card sample-lines", role: "table", "aria-label": "Samples of this group" },
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        [
          ["c-sample", "Sample"],
          ["figure c-reward", "Reward"],
          ...parts.map((name) => ["figure c-part", name]),
          ["figure c-advantage", "Advantage"],
          ["figure c-tokens", "Tokens"],
          ["c-answer", "Answer"],
          ["c-beside", several ? "Beside" : ""],
        ].map(([kind, text]) => (text ? h("th", { scope: "col", role: "columnheader", class: kind, title: text }, text) : h("td", { class: kind }))),
      ),
    ),
    h(
      "tbody",
      { role: "rowgroup" },
      samples.map((sample, at) => {
        const open = sample.row === row;
        const pick = h(
          "button",
          {
            type: "button",
            class: "sample-pick",
            "data-row": sample.row,
            "data-place": `sample-${sample.row}`,
            "aria-pressed": String(open),
            "aria-label": `Sample ${sample.row}`,
            onclick: () => actions.pick(sample.row),
          },
          String(sample.row),
        );
        const by =
          several &&
          !open &&
          h("input", {
            type: "checkbox",
            checked: sample.row === beside,
            "data-place": `beside-${sample.row}`,
            "aria-label": `Sample ${sample.row} side by side`,
            title: "Side by side",
            onchange: () => actions.beside(sample.row === beside ? null : sample.row),
          });
        return h(
          "tr",
          {
            role: "row",
            class: open ? "open" : sample.row === beside ? "beside" : "",
            onclick: (event) => {
              if (!event.target.closest("button, input")) actions.pick(sample.row);
            },
          },
          h("th", { scope: "row", role: "rowheader" }, pick),
          cell("figure c-reward", "reward", number(sample.reward)),
          parts.map((name) => cell("figure soft c-part", name, number(sample.components?.[name]))),
          cell("figure c-advantage", "advantage", number(sample.advantage)),
          cell("figure soft c-tokens", "tokens", count(written(sample))),
          cell("preview-cell", "", strips[at].element),
          cell("beside-cell", several && !open ? "beside" : "", by),
        );
      }),
    ),
  );
  return { element, strips };
}

/** A cell; a phone, which has no heads, says what it is. */
function cell(kind, label, ...inside) {
  return h("td", { role: "cell", class: kind, "data-label": label }, ...inside);
}

const SOURCES = { further: "sampled in a further turn" };
const LEARNED_IN = { asked: "learned from there", problem: "learned behind the plain prompt", nothing: "not learned from" };

/** The prompt that an answer was sampled in, where that is not the problem's own, and where it was learned from. */
function sampledIn(sample) {
  return h(
    "div",
    { class: "prompt" },
    h("span", { class: "label" }, "sampled in"),
    h("bdi", { class: "said" }, ...visible(sample.asked)),
    h("span", { class: "chip" }, LEARNED_IN[sample.turn] ?? sample.turn),
  );
}

/** What is known of one sample, above its tokens. */
export function sampleHead(sample) {
  const clipped = clippedShare(sample);
  const components = Object.entries(sample.components ?? {});
  return h(
    "header",
    { class: "sample-head" },
    h("h3", {}, `Sample ${sample.row}`),
    h("span", { class: "big-reward" }, h("small", {}, "reward "), h("strong", {}, number(sample.reward))),
    h("span", {}, h("small", {}, "advantage "), h("strong", {}, number(sample.advantage))),
    (components.length > 1 || (components.length === 1 && components[0][1] !== sample.reward)) &&
      components.map(([name, value]) => h("span", { class: "chip" }, `${name} ${number(value)}`)),
    h("span", { class: "chip" }, `${count(written(sample))} tokens`),
    sample.tokens_left_out && h("span", { class: "chip warn" }, `${count(sample.tokens_left_out)} more not shown`),
    clipped > 0 && h("span", { class: "chip" }, `${Math.round(clipped * 100)}% clipped`),
    sample.finish &&
      h(
        "span",
        { class: `chip ${sample.finish === "length" ? "warn" : ""}` },
        sample.finish === "length" ? "cut at the length limit" : `ended: ${sample.finish}`,
      ),
    sample.source && sample.source !== "fresh" && h("span", { class: "chip warn" }, SOURCES[sample.source] ?? sample.source),
    sample.hint_level > 0 && h("span", { class: "chip" }, `hint level ${count(sample.hint_level)}`),
    sample.asked && sampledIn(sample),
    sample.kept === false && h("span", { class: "chip bad" }, "dropped by a filter"),
  );
}
