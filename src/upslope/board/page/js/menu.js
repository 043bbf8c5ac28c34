// A button that opens a box of choices below it; a click elsewhere or Escape closes it.

import { h } from "./dom.js";

/** `element` is the button with its box, `body` what is in the box. Whoever made it calls close() in the end. */
export function menu(text, label) {
  const body = h("div", { class: "menu-body", role: "group", "aria-label": label });
  const element = h("details", { class: "menu" }, h("summary", { class: "button" }, text), body);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !element.open) return;
    element.open = false;
    element.firstChild.focus();
    event.stopPropagation();
  });
  element.addEventListener("toggle", () => {
    body.style.setProperty("--shift", "0px");
    const { left, right } = body.getBoundingClientRect();
    const over = Math.max(0, right - document.documentElement.clientWidth + 8);
    if (element.open && over) body.style.setProperty("--shift", `${-Math.min(over, Math.max(0, left - 8))}px`);
  });
  const outside = (event) => {
    if (element.open && !element.contains(event.target)) element.open = false;
  };
  document.addEventListener("pointerdown", outside);
  return { element, body, close: () => document.removeEventListener("pointerdown", outside) };
}
