// Finding methods: what a sentence asks for, which methods answer it and how well, filters and order. No page is touched here:
// the board and the site, which opens from a folder, use the same functions. `catalogue_search.py` ranks alike for the terminal; what
// both go by comes with the data (`data.rules`).

/** How a method can be ordered; the first click of each gives the order that people mean. */
export const ORDERS = {
  best: { label: "Best match", descending: true },
  name: { label: "Name", descending: false },
  family: { label: "Family", descending: false },
  year: { label: "Year", descending: true },
  claim: { label: "Claim", descending: false },
};

const WORD = /[\p{L}\p{N}](?:[\p{L}\p{N}_@+.-]*[\p{L}\p{N}_@])?/gu;

/** A question as the situations it describes and the words that are left. */
export function understand(question, { situations, rules }) {
  const lower = question.toLowerCase().replace(/[’`]/g, "'");
  let rest = lower;
  const meant = [];
  for (const { name, asked } of situations) {
    const said = new RegExp(`(?<![\\w-])(?:${asked})(?![\\w-])`, "g");
    if (rest.includes(name) || said.test(lower)) {
      meant.push(name);
      rest = rest.replaceAll(name, " ").replace(said, " ");
    }
  }
  const words = rest.match(WORD) ?? [];
  // A situation says it all: what is left of its sentence ("my rewards are ...") only counts when nothing was understood.
  const kept = words.filter((word) => !rules.filler.includes(word) && !(meant.length && rules.left_over.includes(word)));
  return { situations: meant, words: [...new Set(kept)], said: new Set(lower.match(WORD) ?? []) };
}

/** The methods that answer, each as {method, score, matched}, best first; all of them when nothing is asked. */
export function search(data, { question = "", filters = {}, order = "", descending = null }) {
  const asked = understand(question, data);
  const kept = data.methods.filter((method) => passes(method, filters));
  const concepts = asked.situations.length + asked.words.length;
  let found = kept.map((method) => ({ method, ...score(method, asked, data.rules) }));
  if (concepts) found = found.filter((each) => each.score > 0);
  const unknown = asked.words.filter((word) => !data.methods.some((method) => wordScore(method, word, data.rules.fields) > 0));
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
  if (by === "best" && down) found = covering(found);
  return { found, asked, unknown, order: by, descending: down };
}

/** The best one first, then for every situation that it is not for the best one that is, then the others. */
function covering(found) {
  const front = found.slice(0, 1);
  const covered = new Set(front.flatMap((each) => each.matched));
  for (const each of found.slice(1)) {
    if (each.matched.every((name) => covered.has(name))) continue;
    front.push(each);
    for (const name of each.matched) covered.add(name);
  }
  return [...front, ...found.filter((each) => !front.includes(each))];
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

/** How far a method's claims held here: near 1 where many statements did, near 0 where many did not, 0.5 where nothing was measured.
 * A statement that came out the other way counts twice. */
export function evidence(claim) {
  return (claim.held + 1) / (claim.of + claim.refuted + 2);
}

/** How well a method answers: every situation and every word counts, as far as its claims held. */
function score(method, asked, rules) {
  const matched = asked.situations.filter((name) => method.situations.includes(name));
  const words = asked.words.map((word) => wordScore(method, word, rules.fields)).filter(Boolean);
  const named = asked.said.has(method.name) ? 1000 : 0;
  const homes = [method.learner, method.family].filter((kind) => kind in rules.at_home).map((kind) => rules.at_home[kind]);
  const elsewhere = homes.some((home) => !asked.situations.some((name) => home.includes(name)));
  const met = 32 * matched.length + 20 * words.length + words.reduce((sum, each) => sum + each, 0);
  return { matched, score: met * evidence(method.claim) * (elsewhere ? 0.5 : 1) + named };
}

function wordScore(method, word, fields) {
  let best = 0;
  for (const [field, worth] of Object.entries(fields)) {
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

/** Two methods that answer a question together, where none whose claims held answers all of it: {first, second}; null without any.
 * What they change must not collide: `upslope train FIRST+SECOND` then runs. */
export function together(data, result) {
  const wanted = result.asked.situations;
  const whole = result.found.filter((each) => each.matched.length === wanted.length);
  if (wanted.length < 2 || whole.some((each) => evidence(each.method.claim) >= data.rules.sure)) return null;
  const single = new Set(data.single);
  const best = result.found.filter((each) => !whole.includes(each)).sort((one, other) => other.score - one.score || compare(one.method.name, other.method.name));
  const fits = (one, other) =>
    one.learner === "policy-gradient" &&
    other.learner === one.learner &&
    one.name !== other.name &&
    (one.family === "preference") === (other.family === "preference") &&
    Boolean(one.parent && other.parent) &&
    !other.slots.some((slot) => one.slots.includes(slot) && (single.has(slot) || slot === "models" || slot === "rollout"));
  for (const { method: second, matched } of best) {
    const left = wanted.filter((name) => !matched.includes(name));
    const first = best.find((each) => left.every((name) => each.matched.includes(name)) && fits(each.method, second));
    if (first) return { first: first.method, second };
  }
  return null;
}

/** The command that compares the best answer with the plain method, both in the situation that was asked for; null where there is
 * nothing plainer than the answer. */
export function comparison(data, result, task) {
  if (!(result.asked.situations.length + result.asked.words.length) || !result.found.length) return null;
  const { method, matched } = [...result.found].sort((one, other) => other.score - one.score)[0];
  const plain = method.family === "rlvr" ? "grpo" : method.parent;
  if (!plain || plain === method.name) return null;
  const command = commandFor(method, task).at(-1).replace(`upslope train ${method.name}`, `upslope compare ${method.name} ${plain}`);
  const told = data.situations.filter(({ name, setting }) => setting && matched.includes(name) && method.family === "rlvr");
  return [`${command} --seeds 5`, ...told.map(({ setting }) => setting)].join(" ");
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
