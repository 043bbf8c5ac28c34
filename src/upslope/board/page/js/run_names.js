// Names by which runs are told apart: the method, and the fewest settings and knobs in which it differs from its neighbours.

import { differing, factLabel, factOf, factText } from "./facts.js";

const MOST_KEYS = 4;

/** A name for every run, short, and none twice. `without` are facts that the reader sees beside the name. */
export function namesOf(runs, without = []) {
  const several = (of) => new Set(runs.map(of)).size > 1;
  const shown = (key) => !without.includes(key);
  const [tasks, models] = [shown("task") && several((run) => run.task), shown("model") && several((run) => run.model)];
  const seeds = shown("seed") && (runs.length === 1 || several((run) => run.seed));
  const names = new Map();
  for (const group of Map.groupBy(runs, (run) => run.method).values()) {
    const keys = telling(group, ["task", "model", "seed", ...without]);
    for (const run of group)
      names.set(
        run.id,
        [
          run.method || "unknown",
          tasks && run.task,
          models && run.model,
          ...keys.map((key) => `${factLabel(key)} ${factText(factOf(run, key))}`),
          seeds && `seed ${run.seed ?? "?"}`,
        ]
          .filter(Boolean)
          .join(" · "),
      );
  }
  return without.length ? names : apart(names);
}

/** The fewest facts by which these runs of one method are told apart as far as they can be. */
export function telling(runs, without) {
  if (runs.length < 2) return [];
  const candidates = differing(runs).filter((key) => !without.includes(key));
  const count = (keys) => new Set(runs.map((run) => keys.map((key) => String(factOf(run, key))).join("\n"))).size;
  const most = count(candidates);
  let chosen = [];
  while (chosen.length < MOST_KEYS && count(chosen) < most) {
    const scored = candidates.filter((key) => !chosen.includes(key)).map((key) => [key, count([...chosen, key])]);
    chosen.push(scored.reduce((best, each) => (better(each, best) ? each : best))[0]);
  }
  for (const key of [...chosen]) {
    const rest = chosen.filter((each) => each !== key);
    if (count(rest) === count(chosen)) chosen = rest;
  }
  return chosen.sort((one, other) => one.includes(".") - other.includes("."));
}

/** More runs apart; else what stands higher, else the shorter name. */
function better([key, apart], [other, others]) {
  const [depth, depths] = [key.split(".").length, other.split(".").length];
  if (apart !== others) return apart > others;
  return depth === depths ? key.length < other.length : depth < depths;
}

/** Runs with nothing to tell them by have the last part of their folder added, and where that is not enough all of it. */
function apart(names) {
  const counts = new Map();
  for (const name of names.values()) counts.set(name, (counts.get(name) ?? 0) + 1);
  const ends = new Map([...names].map(([id, name]) => [id, `${name} · ${id.split("/").at(-1)}`]));
  const taken = new Map();
  for (const end of ends.values()) taken.set(end, (taken.get(end) ?? 0) + 1);
  return new Map([...names].map(([id, name]) => [id, counts.get(name) === 1 ? name : taken.get(ends.get(id)) === 1 ? ends.get(id) : id]));
}
