// Keys that work everywhere, and the list of all keys.

import { h, typing } from "./dom.js";
import { go } from "./router.js";
import { switchTheme } from "./theme.js";

const VIEWS = {
  1: "runs",
  2: "curves",
  3: "rollouts",
  4: "method",
  5: "problems",
  6: "preferences",
  7: "workers",
  8: "critics",
  9: "data",
  0: "methods",
};

const LIST = [
  [
    "Everywhere",
    [
      ["1 … 9, 0", "runs, curves, rollouts, method, problems, preferences, workers, critics, data, methods"],
      ["Tab", "from one thing to the next; the focus is framed"],
      ["t", "light or dark"],
      ["?", "this list"],
    ],
  ],
  [
    "Runs",
    [
      ["/", "filter"],
      ["↑ ↓ or k j", "move between runs, from a fresh page too"],
      ["Space", "tick; with Shift, tick all from the last tick"],
      ["Enter", "open the curves"],
      ["r  m", "rollouts, method"],
      ["c", "overlay what is ticked"],
    ],
  ],
  [
    "Curves",
    [
      ["Tab to a chart, ← →", "read values"],
      ["Enter", "the rollouts behind the values"],
      ["+  −", "zoom around the cursor"],
      ["0", "whole range"],
    ],
  ],
  [
    "Rollouts",
    [
      ["[  ]", "step before, step after"],
      ["← →", "token before, token after"],
      ["↑ ↓", "line before, line after"],
      ["Home End", "first, last token"],
      ["n  p", "next, previous sample"],
      ["Space", "play an episode"],
    ],
  ],
];

/** Listens for the keys that work everywhere. */
export function watchKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event)) return;
    if (event.key in VIEWS) go(VIEWS[event.key]);
    else if (event.key === "t") switchTheme();
    else if (event.key === "?") showShortcuts();
    else return;
    event.preventDefault();
  });
}

/** The list of keys, in a dialog. */
export function showShortcuts() {
  if (document.querySelector("dialog.shortcuts")) return;
  const close = h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close");
  const dialog = h(
    "dialog",
    { class: "shortcuts", "aria-labelledby": "shortcuts-title" },
    h("h2", { id: "shortcuts-title" }, "Keyboard"),
    h(
      "div",
      { class: "shortcut-columns" },
      LIST.map(([title, keys]) =>
        h(
          "section",
          {},
          h("h3", {}, title),
          h(
            "dl",
            {},
            keys.map(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)]),
          ),
        ),
      ),
    ),
    close,
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
