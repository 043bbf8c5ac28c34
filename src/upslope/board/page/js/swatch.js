// A line in small, beside its name.

import { svg } from "./dom.js";

/** A line as it is in the charts: its colour and its dash. */
export function swatch({ hue, dash }) {
  const line = svg("line", { x1: 0, y1: 3, x2: 26, y2: 3, "stroke-width": 3, "stroke-dasharray": dash.join(" ") || null });
  line.style.stroke = `var(${hue})`;
  return svg("svg", { class: "swatch-line", viewBox: "0 0 26 6", width: 26, height: 6, "aria-hidden": "true" }, line);
}
