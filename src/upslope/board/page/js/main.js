// The frame around the views: which one the address asks for, the status line, theme and shortcuts.

import { empty, h, put } from "./dom.js";
import { plural } from "./format.js";
import { here, link } from "./router.js";
import { showShortcuts, watchKeys } from "./shortcuts.js";
import { startPolling, store, subscribe } from "./store.js";
import { switchTheme } from "./theme.js";

// A view is fetched when it is first opened: the list of runs paints without waiting for the charts.
const VIEWS = {
  runs: { title: "Runs", load: () => import("./runs.js") },
  curves: { title: "Curves", load: () => import("./curves.js") },
  rollouts: { title: "Rollouts", load: () => import("./rollouts.js") },
  problems: { title: "Problems", load: () => import("./problems.js") },
  preferences: { title: "Preferences", load: () => import("./preferences.js") },
  workers: { title: "Workers", load: () => import("./workers.js") },
  methods: { title: "Methods", load: () => import("./methods.js") },
  critics: { title: "Critics", load: () => import("./critics.js") },
  data: { title: "Data", load: () => import("./data.js") },
  method: { title: "Method", load: () => import("./method.js") },
  start: { title: "New run", load: () => import("./start.js") },
};

const main = document.getElementById("main");
let shown = { view: null, handle: null };
let turn = 0;

/** Opens what the address asks for; an open view is only told that its part of the address changed. */
async function open() {
  const { view, params } = here();
  const mine = ++turn;
  if (shown.view === view && shown.handle?.change) {
    shown.handle.change(params);
    mark(view);
    return;
  }
  shown.handle?.close?.();
  shown = { view, handle: null };
  mark(view);
  if (!(view in VIEWS)) {
    put(main, empty("There is no such page", h("p", {}, h("a", { href: link("runs") }, "All runs"))));
    return;
  }
  try {
    const module = await VIEWS[view].load();
    if (mine !== turn) return;
    put(main);
    shown.handle = module.open(main, params);
  } catch (error) {
    if (mine !== turn) return;
    console.error(error);
    put(main, empty("This view could not be opened", h("p", {}, String(error.message ?? error))));
  }
}

function mark(view) {
  document.title = `${VIEWS[view]?.title ?? "Not found"} · upslope board`;
  for (const anchor of document.querySelectorAll("nav a")) {
    if (anchor.dataset.view === view) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  offer();
}

/** The navigation has the views that the run looked at can fill, before there is one those that any run can; and the open one. */
function offer() {
  const current = store.runs.get(store.current);
  const has = new Set(current ? current.has : [...store.runs.values()].flatMap((run) => run.has));
  for (const anchor of document.querySelectorAll("nav a[data-needs]"))
    anchor.hidden = !has.has(anchor.dataset.needs) && !anchor.hasAttribute("aria-current");
}

function status() {
  offer();
  const line = document.getElementById("connection");
  const trouble = document.getElementById("trouble");
  const running = [...store.runs.values()].filter((run) => run.status === "running").length;
  const words = { loading: "Loading…", lost: "Server gone", here: running ? `${plural(running, "run")} running` : "Up to date" };
  line.dataset.state = store.state === "here" && running ? "running" : store.state;
  if (line.textContent !== words[store.state]) put(line, h("span", {}, words[store.state]));
  trouble.hidden = store.state !== "lost";
  if (trouble.textContent !== store.trouble) trouble.textContent = store.trouble;
  document.getElementById("start-link").hidden = !store.allowControl;
  const badge = document.getElementById("ticked-count");
  badge.hidden = store.ticked.size === 0;
  badge.textContent = String(store.ticked.size);
  document
    .querySelector('nav a[data-view="curves"]')
    .setAttribute("aria-label", store.ticked.size ? `Curves of ${plural(store.ticked.size, "ticked run")}` : "Curves");
}

window.addEventListener("hashchange", open);
document.getElementById("theme-button").addEventListener("click", switchTheme);
document.getElementById("help-button").addEventListener("click", showShortcuts);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
watchKeys();
subscribe(status);
startPolling();
open();
