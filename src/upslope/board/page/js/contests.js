// A contest: its answers side by side with the place where they part, and the matrix of chances between them.

import { h } from "./dom.js";
import { number, plural } from "./format.js";
import { link } from "./router.js";
import { visible } from "./tokens.js";

const SIDES = { 1: ["won", "good"], "-1": ["lost", "bad"], 0: ["took no part", ""] };
const GIVEN = { 1: ["chosen", "good"], "-1": ["rejected", "bad"], 0: ["under another prompt", ""] };

/** One contest as a card. */
export function contestCard(contest, run, step) {
  const answers = contest.answers.map((each, at) => answerCard(each, letter(at), run, step));
  const left = contest.answers_in_all - contest.answers.length;
  return h(
    "article",
    { class: "card contest", "data-contest": contest.group },
    h(
      "header",
      { class: "group-head" },
      h("h3", {}, `Contest ${contest.group ?? "–"}`),
      said("prompt", contest.prompt),
      contest.answer !== null && said("expected", contest.answer),
      facts(contest),
      left > 0 && h("span", { class: "chip warn" }, `${plural(left, "answer")} not recorded`),
    ),
    h("div", { class: `sides ${answers.length === 1 ? "one" : ""}` }, answers),
    contest.matrix && matrix(contest),
  );
}

function facts({ margin, chance, sure, answers }) {
  const given = answers.some((each) => each.given);
  return [
    margin !== null && h("span", { class: `chip ${margin > 0 ? "good" : "bad"}`, "data-margin": true }, `margin ${number(margin)}`),
    chance !== null && h("span", { class: "chip", "data-chance": true }, `wins with chance ${number(chance)}`),
    chance === null && given && margin !== null && h("span", { class: "chip" }, "sides as given"),
    sure !== null && sure < 1 && h("span", { class: "chip" }, `learned as won with chance ${number(sure)}`),
  ];
}

function said(label, text) {
  return h("div", { class: "prompt" }, h("span", { class: "label" }, label), h("bdi", { class: "said" }, ...visible(text)));
}

/** An answer; from where it leaves its rivals its text is marked. */
function answerCard(answer, name, run, step) {
  const [side, tone] = (answer.given ? GIVEN : SIDES)[answer.side];
  const parts = answer.side !== 0;
  return h(
    "section",
    { class: `side side-${answer.side === 1 ? "won" : answer.side === -1 ? "lost" : "out"}` },
    h(
      "header",
      { class: "sample-head" },
      h("strong", {}, name),
      h("span", { class: `chip ${tone}` }, side),
      answer.logp !== null && h("span", { class: "chip" }, `log-likelihood ${number(answer.logp)}`),
      answer.win_rate !== null && h("span", { class: "chip" }, `win rate ${number(answer.win_rate)}`),
      !answer.given && h("span", { class: "chip" }, `reward ${number(answer.reward)}`),
      !answer.kept && h("span", { class: "chip" }, "not learned from"),
      answer.row !== null && h("a", { class: "soft", href: link("rollouts", { run, step, row: answer.row }) }, "tokens"),
    ),
    h(
      "bdi",
      { class: "said answer-text" },
      parts
        ? [
            answer.shared !== "" && h("span", { class: "shared-text", title: "the same in both" }, ...visible(answer.shared)),
            h("mark", { class: "own-text", title: "from here on they differ" }, ...own(answer.own)),
          ]
        : visible(answer.shared + answer.own),
    ),
  );
}

/** An answer that ends where its rival goes on has an end to mark. */
function own(text) {
  return text === "" ? [h("span", { class: "sign" }, "ends here")] : visible(text);
}

/** The chance that the answer of a row beats that of a column. */
function matrix({ matrix: rows, answers }) {
  const names = answers.map((each, at) => letter(at));
  const known = rows.flat().filter((chance) => chance !== null).length;
  return h(
    "div",
    { class: "wide-table", tabindex: 0, role: "region", "aria-label": "Chances" },
    h(
      "table",
      { class: "chances" },
      h("caption", {}, "Chance that the answer on the left wins against the one above"),
      h("thead", {}, h("tr", {}, h("td", {}), names.map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, "win rate"))),
      h(
        "tbody",
        {},
        rows.map((row, at) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, names[at]),
            row.map((chance, other) => cell(chance, at === other)),
            h("td", { class: "rate" }, number(answers[at].win_rate)),
          ),
        ),
      ),
    ),
    known < rows.length ** 2 &&
      h("p", { class: "soft" }, "Rows keep their chances against the best and the worst answer alone; verdicts of a judge are all kept."),
  );
}

function cell(chance, own) {
  const element = h("td", { class: own ? "own" : chance > 0.5 ? "up" : "down" }, own ? "" : number(chance));
  if (!own && chance !== null) element.style.setProperty("--v", Math.min(1, Math.abs(chance - 0.5) * 2).toFixed(2));
  return element;
}

/** What the policy was asked as its own judge, and what it said. */
export function judgeCard(judged) {
  return h(
    "article",
    { class: "card contest", "data-judge": true },
    h("h3", {}, `${plural(judged.length, "question")} to the judge`),
    judged.map(({ asked, said: answer }) => h("div", { class: "asked" }, said("asked", asked), said("said", answer))),
  );
}

function letter(at) {
  return String.fromCharCode(65 + at);
}
