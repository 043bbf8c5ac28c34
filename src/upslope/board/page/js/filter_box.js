// The one way to filter runs: in the list, beside curves, and where a run is chosen.

import { h } from "./dom.js";

const HELP =
  "Words that a run has; task:sum, tag:keep or surrogate.high:0.2 in one place; lr<1e-3 compares; -word keeps out";

/** A box for a filter of runs; `oninput(text)` is called while one types. */
export function filterBox(value, oninput, { label = "Filter runs", id = null, placeholder = "Filter: dhpo lr<1e-3 -broken" } = {}) {
  const box = h("input", {
    type: "search",
    class: "filter",
    id,
    placeholder,
    value,
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": label,
    title: HELP,
    oninput: () => oninput(box.value),
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.value) return;
    box.value = "";
    oninput("");
    event.stopPropagation();
  });
  return box;
}
