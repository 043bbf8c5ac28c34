// Finding methods: what a sentence asks for, which methods answer it and how well, filters and order. No page is touched here:
// the board and the site, which opens from a folder, use the same functions.

const FILLER = new Set(
  (
    "a an and are as at be been but by can cannot do does for from get give given got has have how i if in into is it its like " +
    "make many me method methods more most much must my need needs no not of off on one or our out over policy should so some " +
    "than that the their them then there these they this to too train training use used using very want was we what when where " +
    "which while who why will with without would you your"
  ).split(" "),
);

/** Where a word of the question counts, and how much. */
const FIELDS = [
  ["name", 9],
  ["family", 4],
  ["slots", 4],
  ["needs", 4],
  ["title", 3],
  ["use_when", 3],
  ["differs", 2],
  ["parent", 2],
  ["arxiv", 6],
];

/** How a method can be ordered; the first click of each gives the order that people mean. */
export const ORDERS = {
  best: { label: "Best match", descending: true },
  name: { label: "Name", descending: false },
  family: { label: "Family", descending: false },
  year: { label: "Year", descending: true },
  claim: { label: "Claim", descending: false },
};

/** A question as the situations it describes and the words that are left. */
export function understand(question, situations) {
  let rest = question.toLowerCase().replace(/[’`]/g, "'");
  const meant = [];
  for (const { name, asked } of situations) {
    const said = new RegExp(`(?<![\\w-])(?:${asked})(?![\\w-])`, "g");
    if (rest.includes(name) || said.test(question.toLowerCase())) {
      meant.push(name);
      rest = rest.replaceAll(name, " ").replace(said, " ");
    }
  }
  const words = rest.match(/[\p{L}\p{N}][\p{L}\p{N}@+.-]*/gu) ?? [];
  // A situation says it all: what is left of its sentence ("my rewards are ...") only counts when nothing was understood.
  const kept = words.filter((word) => !FILLER.has(word) && (!meant.length || !LEFT_OVER.has(word)));
  return { situations: meant, words: [...new Set(kept)] };
}

const LEFT_OVER = new Set(
  "reward rewards rollout rollouts answer answers sample samples task tasks problem problems model data run runs update updates learn learning".split(" "),
);

/** The methods that answer, each as {method, score, matched}, best first; all of them when nothing is asked. */
export function search(data, { question = "", filters = {}, order = "", descending = null }) {
  const asked = understand(question, data.situations);
  const kept = data.methods.filter((method) => passes(method, filters));
  const concepts = asked.situations.length + asked.words.length;
  let found = kept.map((method) => ({ method, ...score(method, asked) }));
  if (concepts) found = found.filter((each) => each.score > 0);
  const unknown = asked.words.filter((word) => !data.methods.some((method) => wordScore(method, word) > 0));
  const by = order && order in ORDERS ? order : concepts ? "best" : "year";
  const down = descending ?? ORDERS[by].descending;
  const verdicts = Object.keys(data.verdicts);
  const keys = {
    best: (each) => each.score,
    name: (each) => each.method.name,
    family: (each) => each.method.family,
    year: (each) => each.method.year,
    claim: (each) => verdicts.indexOf(each.method.claim.verdict),
  };
  found.sort((one, other) => {
    const way = compare(keys[by](one), keys[by](other)) * (down ? -1 : 1);
    return way || other.score - one.score || compare(one.method.name, other.method.name);
  });
  return { found, asked, unknown, order: by, descending: down };
}

function compare(one, other) {
  return one < other ? -1 : one > other ? 1 : 0;
}

function passes(method, { family, slot, needs, verdict, from, to }) {
  if (family && method.family !== family) return false;
  if (slot && !method.slots.includes(slot)) return false;
  if (verdict && method.claim.verdict !== verdict) return false;
  if (from && method.year < Number(from)) return false;
  if (to && method.year > Number(to)) return false;
  for (const need of [needs].flat().filter(Boolean)) {
    const without = need.startsWith("-");
    if (method.needs.includes(without ? need.slice(1) : need) === without) return false;
  }
  return true;
}

/** How well a method answers: every situation and every word counts, and meeting several counts most. */
function score(method, asked) {
  const matched = asked.situations.filter((name) => method.situations.includes(name));
  const words = asked.words.map((word) => wordScore(method, word)).filter(Boolean);
  const met = matched.length + words.length;
  const total = 12 * matched.length + words.reduce((sum, each) => sum + each, 0);
  const rank = { held: 2, partly: 1 }[method.claim.verdict] ?? 0; // of two that answer alike, the one whose claim held
  return { matched, score: met ? 20 * met + total + rank : 0 };
}

function wordScore(method, word) {
  if (word === method.name) return 100;
  let best = 0;
  for (const [field, worth] of FIELDS) {
    const text = [method[field]].flat().join(" ").toLowerCase();
    const at = text.indexOf(stem(word));
    if (at < 0) continue;
    const begins = at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);
    best = Math.max(best, begins ? worth : word.length > 3 ? worth / 3 : 0);
  }
  return best;
}

/** A word without the ending that only grammar asks for. */
function stem(word) {
  return word.length > 4 ? word.replace(/(?:ies|es|s|ed|ing)$/, "") : word;
}

/** Two methods that answer a question together, where none answers all of it: {first, second}; null where there are none.
 * What they change must not collide: `upslope train FIRST+SECOND` then runs. */
export function together(data, result) {
  const wanted = result.asked.situations;
  if (wanted.length < 2 || result.found.some((each) => each.matched.length === wanted.length)) return null;
  const single = new Set(data.single);
  const best = [...result.found].sort((one, other) => other.score - one.score);
  const fits = (one, other) =>
    one.learner === "policy-gradient" &&
    other.learner === one.learner &&
    one.name !== other.name &&
    Boolean(one.parent && other.parent) &&
    !other.slots.some((slot) => one.slots.includes(slot) && (single.has(slot) || slot === "models" || slot === "rollout"));
  for (const { method: second, matched } of best) {
    const left = wanted.filter((name) => !matched.includes(name));
    const first = best.find((each) => left.length && left.every((name) => each.matched.includes(name)) && fits(each.method, second));
    if (first) return { first: first.method, second };
  }
  return null;
}

/** The command with which a method is tried on a task of one's own. */
export function commandFor(method, task) {
  const last = method.commands.at(-1);
  if (!task) return method.commands;
  const given = task.trim();
  if (method.needs.includes("dataset")) return [last.replace(/--data \S+/, `--data ${quoted(given)}`)];
  return [last.replace(/--task \S+/, `--task ${quoted(given)}`)];
}

function quoted(text) {
  return /^[\w./:,=+@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
