// Settings and knobs of the runs: what they are filtered, sorted and told apart by. No elements here.

import { get } from "./api.js";

let common = {};
let apart = {};
let labels = new Map();

/** Settings that change nothing about what is learned. */
const NEUTRAL = new Set(
  ["threads", "device", "eval_every", "eval_problems", "checkpoint_every", "keep_checkpoints", "samples_logged", "record"].concat([
    "audit",
    "watch_kl",
    "env_workers",
    "recompute",
  ]),
);

/** Asks for the facts of all runs. */
export async function learnFacts() {
  ({ common, runs: apart } = await get("facts"));
  labels = new Map();
}

/** Whether a run's facts are here. */
export const knowsFacts = (id) => Object.hasOwn(apart, id);

/** A setting or a knob of a run; undefined if it has none of that name. */
export function factOf(run, key) {
  const own = apart[run.id];
  if (own === undefined) return undefined;
  return (Object.hasOwn(own, key) ? own[key] : common[run.method]?.[key]) ?? undefined;
}

/** The names of all settings and knobs that runs of these have, in the order of the files. */
export function factKeys(runs) {
  const found = new Set();
  for (const method of new Set(runs.map((run) => run.method))) for (const key in common[method] ?? {}) found.add(key);
  return found;
}

/** Those in which these runs differ. Of one method nothing can that no run has otherwise than most. */
export function differing(runs) {
  const methods = new Set(runs.map((run) => run.method));
  const candidates = methods.size > 1 ? factKeys(runs) : new Set(runs.flatMap((run) => Object.keys(apart[run.id] ?? {})));
  return [...candidates].filter((key) => {
    if (NEUTRAL.has(key)) return false;
    const first = factOf(runs[0], key);
    return runs.some((run) => factOf(run, key) !== first);
  });
}

/** A setting in words, a knob by the end of its path that no other knob ends with. */
export function factLabel(key) {
  if (!labels.has(key)) labels.set(key, shortest(key));
  return labels.get(key);
}

function shortest(key) {
  if (!key.includes(".")) return key.replaceAll("_", " ");
  const all = new Set(Object.values(common).flatMap((facts) => Object.keys(facts)));
  const parts = key.split(".");
  for (let from = parts.length - 1; from > 0; from--) {
    const end = parts.slice(from).join(".");
    if (![...all].some((other) => other !== key && (other === end || other.endsWith(`.${end}`)))) return end.replaceAll("_", " ");
  }
  return key;
}

/** A value as it stands in a name or a column: 3e-4, yes, std. */
export function factText(value) {
  if (value === undefined || value === null) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-2 || size >= 1e6)) return value.toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}
