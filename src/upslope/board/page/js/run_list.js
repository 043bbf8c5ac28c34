// Which runs are listed and in which order: filter, sort, group. No elements here.

const ORDER = { running: 0, broken: 1, stopped: 2, finished: 3 };

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
};

const FIELDS = ["method", "parent", "family", "task", "model", "status", "seed", "domain"];

/** Whether a run has every word of the filter somewhere in it; `task:sum` looks in one field only, `-word` keeps out. */
export function matches(run, filter) {
  const all = [run.id, ...FIELDS.map((field) => run[field])].join(" ").toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => {
      const without = word.length > 1 && word.startsWith("-");
      const [field, value] = (without ? word.slice(1) : word).split(/:(.*)/, 2);
      const inField = value !== undefined && (FIELDS.includes(field) || field === "folder");
      const text = inField ? String((field === "folder" ? run.group : run[field]) ?? "").toLowerCase() : all;
      return text.includes(inField ? value : without ? word.slice(1) : word) !== without;
    });
}

/** The runs in order. What has no value stands last either way; equal ones stand by age, then by name. */
export function sorted(runs, column, falling) {
  const { of } = COLUMNS[column];
  const sign = falling ? -1 : 1;
  return [...runs].sort((a, b) => {
    const [one, other] = [of(a), of(b)];
    const lacking = (one === null || one === undefined) - (other === null || other === undefined);
    if (lacking) return lacking;
    if (one < other) return -sign;
    if (one > other) return sign;
    return (b.began ?? 0) - (a.began ?? 0) || (a.id < b.id ? -1 : 1);
  });
}

/** The lines of the table: runs, with a heading before each group; `closed` holds the names of folded groups. */
export function lines(runs, by, closed) {
  if (!by) return runs.map((run) => ({ kind: "run", run }));
  const groups = new Map();
  for (const run of runs) {
    const name = (by === "folder" ? run.group : run[by]) || (by === "folder" ? "no folder" : "unknown");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(run);
  }
  return [...groups].flatMap(([name, members]) => [
    { kind: "group", name, runs: members, open: !closed.has(name), score: shared(members) },
    ...(closed.has(name) ? [] : members.map((run) => ({ kind: "run", run }))),
  ]);
}

/** The mean score of runs that can be averaged: same task, same score. */
function shared(runs) {
  const scored = runs.filter((run) => Number.isFinite(run.score));
  if (!scored.length || new Set(scored.map((run) => `${run.task} ${run.score_name}`)).size > 1) return null;
  return { name: scored[0].score_name, mean: scored.reduce((sum, run) => sum + run.score, 0) / scored.length, runs: scored.length };
}
