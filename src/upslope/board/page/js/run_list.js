// Which runs are listed and in which order: filter, sort, group. No elements here.

import { factKeys, factOf } from "./facts.js";

const ORDER = { running: 0, crashed: 1, broken: 2, stopped: 3, finished: 4 };

/** What a column sorts by, and whether its first click puts the largest on top. */
export const COLUMNS = {
  status: { of: (run) => ORDER[run.status] ?? 9, falling: false },
  method: { of: (run) => run.method ?? "", falling: false },
  task: { of: (run) => run.task ?? "", falling: false },
  score: { of: (run) => run.score, falling: true },
  progress: { of: (run) => (run.steps ? run.step / run.steps : null), falling: true },
  seed: { of: (run) => run.seed, falling: false },
  seconds: { of: (run) => run.seconds, falling: true },
  began: { of: (run) => run.began, falling: true },
  tags: { of: (run) => (run.tags ?? []).join(" ") || null, falling: false },
};

/** A column of the table, or any setting or knob as one. */
export function columnOf(name) {
  return COLUMNS[name] ?? { of: (run) => factOf(run, name), falling: false };
}

const FIELDS = ["method", "parent", "family", "task", "model", "status", "seed", "domain"];
const WORD = /^([^\s:=<>]+)(:|<=|>=|=|<|>)(.+)$/;

/**
 * Whether a run has every word of the filter. A word stands anywhere in it; `task:sum` in one field, setting, knob or tag only;
 * `lr=3e-4`, `lr<1e-3` compare numbers; `-word` keeps out.
 */
export function matches(run, filter) {
  return filter
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => {
      const without = word.length > 1 && word.startsWith("-");
      const asked = without ? word.slice(1) : word;
      const [, name, sign, wanted] = asked.match(WORD) ?? [];
      const values = name === undefined ? null : valuesOf(run, name);
      const has = values ? values.some((value) => compares(value, sign, wanted)) : everything(run).includes(asked);
      return has !== without;
    });
}

/** All values that a run has under a name; null if nothing is called that. */
function valuesOf(run, name) {
  if (name === "tag") return run.tags ?? [];
  if (name === "folder") return [run.group];
  if (name === "note") return [run.note];
  if (FIELDS.includes(name)) return [run[name]];
  const keys = [...factKeys([run])].filter((key) => key.toLowerCase() === name || key.toLowerCase().endsWith(`.${name}`));
  return keys.length ? keys.map((key) => factOf(run, key)) : null;
}

function compares(value, sign, wanted) {
  if (value === undefined || value === null) return false;
  const [number, other] = [Number(value), Number(wanted)];
  const numbers = typeof value === "number" && Number.isFinite(other);
  if (sign === "<") return numbers && number < other;
  if (sign === ">") return numbers && number > other;
  if (sign === "<=") return numbers && number <= other;
  if (sign === ">=") return numbers && number >= other;
  if (numbers) return number === other;
  const text = String(value).toLowerCase();
  return sign === "=" ? text === wanted : text.includes(wanted);
}

function everything(run) {
  return [run.id, ...FIELDS.map((field) => run[field]), ...(run.tags ?? []), run.note].join(" ").toLowerCase();
}

/** The runs in order. What has no value stands last either way; equal ones stand by age, then by name. */
export function sorted(runs, column, falling) {
  const { of } = columnOf(column);
  const sign = falling ? -1 : 1;
  const keyed = runs.map((run) => [run, of(run)]);
  keyed.sort(([a, one], [b, other]) => {
    const lacking = (one === null || one === undefined) - (other === null || other === undefined);
    if (lacking) return lacking;
    if (one < other) return -sign;
    if (one > other) return sign;
    return (b.began ?? 0) - (a.began ?? 0) || (a.id < b.id ? -1 : 1);
  });
  return keyed.map(([run]) => run);
}

/** The lines of the table: runs, with a heading before each group; `closed` holds the names of folded groups. */
export function lines(runs, by, closed) {
  if (!by) return runs.map((run) => ({ kind: "run", run }));
  const groups = new Map();
  for (const run of runs)
    for (const name of groupsOf(run, by)) {
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(run);
    }
  return [...groups].flatMap(([name, members]) => [
    { kind: "group", name, runs: members, open: !closed.has(name), score: shared(members) },
    ...(closed.has(name) ? [] : members.map((run) => ({ kind: "run", run }))),
  ]);
}

function groupsOf(run, by) {
  if (by === "folder") return [run.group || "no folder"];
  if (by === "tag") return [run.tags?.[0] ?? "no tag"];
  return [run[by] || "unknown"];
}

/** The mean score of runs that can be averaged: same task, same score. */
function shared(runs) {
  const scored = runs.filter((run) => Number.isFinite(run.score));
  if (!scored.length || new Set(scored.map((run) => `${run.task} ${run.score_name}`)).size > 1) return null;
  return { name: scored[0].score_name, mean: scored.reduce((sum, run) => sum + run.score, 0) / scored.length, runs: scored.length };
}
