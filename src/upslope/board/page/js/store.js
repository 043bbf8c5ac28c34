// What the page knows about runs: the list as the server last told it, and which of them are ticked.

import { ApiError, get } from "./api.js";
import { knowsFacts, learnFacts } from "./facts.js";

const BUSY_MS = 1000;
const CALM_MS = 2000;
const HIDDEN_MS = 10000;
const READING_MS = 150;

/** The list of runs and the server's say on itself. `state` is "loading", "here" or "lost" (with `trouble`, a sentence). */
export const store = {
  runs: new Map(),
  ticked: new Set(),
  current: null, // the run looked at last: other views open with it
  pickFilter: "", // of the runs that views about one run offer
  revision: null,
  root: "",
  version: "",
  allowControl: false,
  state: "loading",
  trouble: "",
};

const listeners = new Set();
let timer = 0;

/** Calls `listener(changed, gone)` after every change: a set of changed ids (null: everything may have changed) and of ids gone. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(changed, gone = new Set()) {
  for (const listener of [...listeners]) listener(changed, gone);
}

/** The run that is looked at; the navigation shows what it has. */
export function choose(id) {
  if (store.current === id) return;
  store.current = id;
  tell(new Set());
}

/** Ticks or unticks runs. */
export function setTicked(ids, on) {
  for (const id of ids) {
    if (on) store.ticked.add(id);
    else store.ticked.delete(id);
  }
  remember();
  tell(new Set());
}

/** Ticks exactly these, in this order. */
export function tickOnly(ids) {
  store.ticked = new Set(ids);
  remember();
  tell(new Set());
}

function remember() {
  sessionStorage.setItem("ticked", JSON.stringify([...store.ticked]));
}

/** Starts asking for the list, and goes on for as long as the page is open. */
export function startPolling() {
  try {
    store.ticked = new Set(JSON.parse(sessionStorage.getItem("ticked") ?? "[]"));
  } catch {
    store.ticked = new Set();
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) pollNow();
  });
  return poll();
}

/** Asks at once, as after starting or stopping a run. */
export function pollNow() {
  clearTimeout(timer);
  return poll();
}

async function poll() {
  try {
    // After a silence the server may be a new one with its own count of revisions, so everything is asked for again.
    take(await get("runs", { since: store.state === "here" ? store.revision : null }));
    await learnNewFacts();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    lose(error);
  }
  const busy = [...store.runs.values()].some((run) => run.status === "running");
  clearTimeout(timer);
  timer = setTimeout(poll, document.hidden ? HIDDEN_MS : store.reading ? READING_MS : busy ? BUSY_MS : CALM_MS);
}

/** Settings and knobs of runs that were not there before; the list is painted before they come. */
async function learnNewFacts() {
  if ([...store.runs.keys()].every(knowsFacts)) return;
  await learnFacts();
  tell(null);
}

function take(answer) {
  const whole = store.state !== "here" || answer.revision < store.revision;
  const gone = new Set(answer.gone ?? []);
  if (whole) {
    const there = new Set(answer.runs.map((run) => run.id));
    for (const id of store.runs.keys()) if (!there.has(id)) gone.add(id);
  }
  for (const run of answer.runs) store.runs.set(run.id, run);
  let unticked = false;
  for (const id of gone) {
    store.runs.delete(id);
    unticked = store.ticked.delete(id) || unticked;
  }
  if (unticked) remember();
  const turned = store.state !== "here";
  Object.assign(store, {
    revision: answer.revision,
    reading: Boolean(answer.reading), // the server has not read every log yet
    root: answer.root,
    version: answer.version,
    allowControl: Boolean(answer.allow_control),
    state: "here",
    trouble: "",
  });
  if (whole || turned) tell(null, gone);
  else if (answer.runs.length || gone.size) tell(new Set(answer.runs.map((run) => run.id)), gone);
}

function lose(error) {
  const trouble =
    error.status === 401 || error.status === 403
      ? `${error.message} Open the address that 'upslope board' printed, with its token.`
      : `${error.message} Trying again; is 'upslope board' still running?`;
  if (store.state === "lost" && store.trouble === trouble) return;
  store.state = "lost";
  store.trouble = trouble;
  tell(new Set());
}
