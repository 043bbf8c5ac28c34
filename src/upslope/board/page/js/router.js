// The address behind the #: which view, and what it shows. Everything that is worth sending to somebody stands there.

/** The address as {view, params}: "#/curves?run=a" is {view: "curves", params}. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || "runs", params: new URLSearchParams(query) };
}

/** An address to link to. A list is said once per item; what is null, undefined, "" or false is left out, true is 1. */
export function link(view, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item === null || item === undefined || item === "" || item === false) continue;
      query.append(name, item === true ? "1" : String(item));
    }
  }
  return `#/${view === "runs" ? "" : view}${query.size ? `?${query}` : ""}`;
}

/** Goes there, leaving a way back. */
export function go(view, params = {}) {
  location.hash = link(view, params);
}

/** Writes what is shown into the address without leaving a way back, as while a slider moves. Not once the address asks for
 * another view: that one opens a moment later, and would not if this one wrote over where to go. */
export function note(view, params = {}) {
  if (here().view !== view) return;
  const target = link(view, params);
  if (target !== location.hash) history.replaceState(null, "", target);
}
