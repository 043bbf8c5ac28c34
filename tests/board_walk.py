"""What a reader of any width must be able to do on every view of the board, as scripts that run in its page."""

from __future__ import annotations

from places import TESTS

WIDTHS = (390, 768, 1440)
SCHEMES = ("light", "dark")
AXE = (TESTS / "fixtures" / "axe" / "axe.min.js").read_text(encoding="utf-8")
"""From npm, unchanged; its licence is beside it."""
VIEWS = {
    "runs": ("#/?col=lr", "tr.run"),
    "groups": ("#/?group=folder", "tr.group"),
    "curves": ("#/curves?{sweep}", ".legend li"),
    "bands": ("#/curves?run=dhpo-0&run=dhpo-1&bands=1", ".legend li"),
    "rollouts": ("#/rollouts?run=dhpo-0&step=2", ".sample .token"),
    "episode": ("#/rollouts?run=control/cartpole", ".episode-facts strong"),
    "method": ("#/method?run=dhpo-0", ".settings dl"),
    "critics": ("#/critics?run=control/pendulum", ".critics .uplot"),
    "data": ("#/data?run=control/pendulum", ".dataset dl"),
    "problems": ("#/problems?run=curricula/sec", ".problems tbody tr"),
    "preferences": ("#/preferences?run=preferences/inpo", "[data-contest]"),
    "workers": ("#/workers?run=apart", ".workers tbody tr"),
    "new run": ("#/start", ".start-form"),
    "crashed": ("#/curves?run=unpriced", ".notice.bad"),
    "without data": ("#/curves?run=without-data", ".notice"),
}
"""By name: the address, and what is there when the view is."""

FAULTS = """() => {
  const wide = document.documentElement.clientWidth;
  const found = [];
  const name = (element) => `${element.tagName}.${[...element.classList].join(".")} “${element.textContent.trim().slice(0, 30)}”`;
  const clips = (element) => ["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(element).overflowX);
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  if (document.documentElement.scrollWidth > wide) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  const main = document.querySelector("main");
  if (main.scrollWidth > main.clientWidth) found.push(`main is ${main.scrollWidth} wide in ${main.clientWidth}`);
  const above = (element, test) => {
    for (let each = element.parentElement; each && each !== main && each !== document.body; each = each.parentElement)
      if (test(each)) return each;
    return null;
  };
  const seen = (element) =>
    element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !element.closest(".unseen, .skip, option");
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || !seen(element)) continue;
    const out = box.left < -1 || box.right > wide + 1;
    if (out && !above(element, clips)) found.push(`${name(element)} sticks out: ${box.left} to ${box.right}`);
    if (out && element.matches("a, button, input, select, textarea, summary") && !above(element, scrolls))
      found.push(`${name(element)} cannot be reached`);
  }
  // A text's middle must show that text: what lies over it would hide it.
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(element) || element.closest("svg, math, dialog")) continue;
    range.selectNodeContents(walker.currentNode);
    const box = range.getClientRects()[0];
    if (!box || box.width < 2) continue;
    const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight) continue;
    const inside = (each) => {
      const around = each.getBoundingClientRect();
      return x >= around.left && x <= around.right && y >= around.top && y <= around.bottom;
    };
    if (above(element, (each) => clips(each) && !inside(each)) || (clips(element) && !inside(element))) continue;
    if (main.contains(element) && !inside(main)) continue;
    const top = document.elementFromPoint(x, y);
    if (top && !top.contains(element) && !element.contains(top) && !top.closest("label, thead, .chart-card"))
      found.push(`${name(element)} lies under ${name(top)}`);
  }
  return [...new Set(found)].slice(0, 12);
}"""

CHECK = """async (rules) => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...(rules.length ? { runOnly: rules } : {}) });
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}"""

UNREACHED = """() => {
  const stops = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];
  return stops
    .filter((each) => each.tabIndex >= 0 && !each.disabled && !each.dataset.reached)
    .filter((each) => each.checkVisibility({ visibilityProperty: true }))
    .filter((each) => each.type !== "radio" || each.checked)
    .map((each) => each.getAttribute("aria-label") || each.textContent.trim().slice(0, 40) || each.className || each.tagName);
}"""

REACHED = """() => {
  const on = document.activeElement;
  on.dataset.reached = "1";
  const framed = on.closest(".segmented") ? on.nextElementSibling : on;
  return on === document.body || getComputedStyle(framed).outlineStyle !== "none" ? "" : on.outerHTML.slice(0, 120);
}"""


def sweep(runs: list[str]) -> str:
    """Runs as the address of the curves names them."""
    return "&".join(f"run={run}" for run in runs)
