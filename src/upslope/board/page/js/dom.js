// The only place where elements are made. Whatever a model, a method or a task wrote goes in as text; nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("button", {class: "quiet", onclick: go}, "Go")`. A child is a node, a text, or nothing (null, false). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Takes out what an element held and puts in something else. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A choice of one among few, as radio buttons side by side. `options` are [value, label, title] triples. */
export function segmented(name, label, options, value, onchange) {
  const group = h("fieldset", { class: "segmented" }, h("legend", { class: "unseen" }, label));
  for (const [option, text, title] of options) {
    const input = h("input", { type: "radio", name, value: option, checked: option === value, onchange: () => onchange(option) });
    group.append(h("label", { title }, input, h("span", {}, text)));
  }
  group.choose = (chosen) => group.querySelectorAll("input").forEach((input) => (input.checked = input.value === chosen));
  return group;
}

/** A labelled drop-down. `options` are [value, label] pairs. */
export function select(label, options, value, onchange, attributes = {}) {
  const box = h("select", { ...attributes, onchange: () => onchange(box.value) });
  box.append(...options.map(([option, text]) => h("option", { value: option }, text)));
  box.value = value;
  return h("label", { class: "field" }, h("span", {}, label), box);
}

/** A labelled tick box. */
export function tick(label, checked, onchange, title) {
  const box = h("input", { type: "checkbox", checked, onchange: () => onchange(box.checked) });
  return h("label", { class: "tick", title }, box, h("span", {}, label));
}

/** A text to copy, such as a command, with its button. */
export function copyable(text) {
  const said = h("span", { class: "unseen", role: "status" });
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = said.textContent = "Copied";
    } catch {
      button.textContent = said.textContent = "Select and copy by hand";
    }
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return h("div", { class: "copyable" }, h("code", {}, text), button, said);
}

/** A table in a box that scrolls sideways where it must; a phone shows a row's cells over one another, by their `data-label`. */
export function wideTable(label, heads, body) {
  const head = h("tr", { role: "row" }, ...heads.map((each) => h("th", { scope: "col", role: "columnheader" }, each)));
  const rows = body instanceof Element ? body : h("tbody", { role: "rowgroup" }, body);
  for (const row of rows.rows) {
    row.setAttribute("role", "row");
    [...row.cells].forEach((cell, at) => {
      cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
      cell.dataset.label ??= heads[at] ?? "";
    });
  }
  return h(
    "div",
    { class: "wide-table", tabindex: 0, role: "region", "aria-label": label },
    h("table", { class: "stacked", role: "table", "aria-label": label }, h("thead", { role: "rowgroup" }, head), rows),
  );
}

/** A quiet page for when there is nothing to show: a title and what to do. */
export function empty(title, ...rest) {
  return h("section", { class: "empty" }, h("h2", {}, title), ...rest);
}

/** True while the focus is where letters are typed, so that shortcuts keep out of the way. */
export function typing(event) {
  const target = event.target;
  return (
    target instanceof HTMLElement &&
    (target.matches("input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select") || target.isContentEditable)
  );
}
