// Light, dark, or as the system has it; and colours for canvases, which cannot read custom properties themselves.

const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let probe = null;

/** "light" or "dark", as the page looks now. */
export function theme() {
  return document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
}

/** Turns to the other theme and remembers it; the system's own choice is remembered as no choice. */
export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  const systems = system.matches ? "dark" : "light";
  if (next === systems) {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("theme", next);
  }
  tell();
}

/** Calls `listener` when the colours changed. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The colour of a custom property as it is now: `colour("--ink")`. */
export function colour(name) {
  probe ??= document.body.appendChild(Object.assign(document.createElement("span"), { className: "probe" }));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** A colour with less of it: `faded(colour("--accent"), 0.2)`. */
export function faded(rgb, alpha) {
  const parts = rgb.match(/[\d.]+/g) ?? ["128", "128", "128"];
  return `rgba(${parts[0]}, ${parts[1]}, ${parts[2]}, ${alpha})`;
}

function tell() {
  for (const listener of [...listeners]) listener();
}

system.addEventListener("change", tell);
