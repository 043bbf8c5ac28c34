// A formula from the server: parsed apart from the page, then built anew from names that are only mathematics.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const NAMES = new Set([
  "math",
  "mrow",
  "mi",
  "mn",
  "mo",
  "ms",
  "mtext",
  "mspace",
  "msub",
  "msup",
  "msubsup",
  "munder",
  "mover",
  "munderover",
  "mfrac",
  "msqrt",
  "mroot",
  "mfenced",
  "mtable",
  "mtr",
  "mtd",
  "mstyle",
  "mpadded",
]);
const ATTRIBUTES = new Set([
  "display",
  "mathvariant",
  "stretchy",
  "fence",
  "separator",
  "form",
  "lspace",
  "rspace",
  "movablelimits",
  "accent",
  "width",
  "displaystyle",
  "largeop",
  "symmetric",
  "columnalign",
]);

/** The formula as an element, or null if it cannot be had: the caller then shows the text. */
export function formula(text) {
  if (!text) return null;
  const parsed = new DOMParser().parseFromString(text, "application/xml");
  if (parsed.querySelector("parsererror") || parsed.documentElement.localName !== "math") return null;
  return adopt(parsed.documentElement);
}

function adopt(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || !NAMES.has(node.localName)) return null;
  const element = document.createElementNS(MATHML, node.localName);
  for (const { name, value } of node.attributes) if (ATTRIBUTES.has(name)) element.setAttribute(name, value);
  element.append(...[...node.childNodes].map(adopt).filter(Boolean));
  return element;
}
