// A search tree: every node under the one it was reached from, with how often the search came through and what it found it worth.

import { h } from "./dom.js";
import { count, number, plural } from "./format.js";
import { visible } from "./tokens.js";

/** One tree as a card. */
export function treeCard(tree) {
  const most = Math.max(1, ...tree.nodes.map((node) => node.visits ?? 0));
  const left = tree.nodes_in_all - tree.nodes.length;
  return h(
    "article",
    { class: "card contest", "data-tree": true },
    h(
      "header",
      { class: "group-head" },
      h("h3", {}, `Search tree, ${plural(tree.nodes_in_all, "node")}`),
      h("div", { class: "prompt" }, h("span", { class: "label" }, "prompt"), h("bdi", { class: "said" }, ...visible(tree.prompt))),
      left > 0 && h("span", { class: "chip warn" }, `${count(left)} of them not shown`),
    ),
    h("div", { class: "tree-box", tabindex: 0, role: "region", "aria-label": "Search tree" }, branches(tree.nodes, most)),
  );
}

/** Nodes come with every one before those below it: a list within a list for each level. */
function branches(nodes, most) {
  const top = h("ul", { class: "tree" });
  const lists = [top];
  for (const node of nodes) {
    const depth = node.path.length;
    const item = h("li", {}, nodeLine(node, most));
    lists.length = depth + 1;
    if (!lists[depth]) {
      lists[depth] = h("ul", {});
      lists[depth - 1].lastChild.append(lists[depth]);
    }
    lists[depth].append(item);
  }
  return top;
}

function nodeLine(node, most) {
  const bar = h("span", { class: "visit-bar", "aria-hidden": "true" });
  bar.style.setProperty("--v", Math.min(1, Math.max(0, (node.visits ?? 0) / most)).toFixed(3));
  return h(
    "div",
    { class: `node ${node.side === 1 ? "won" : node.side === -1 ? "lost" : ""}` },
    node.path.length ? h("bdi", { class: "node-text" }, ...visible(node.text)) : h("span", { class: "soft" }, "the prompt"),
    h(
      "span",
      { class: "node-facts" },
      bar,
      h("span", {}, node.visits === null ? "–" : plural(node.visits, "visit")),
      h("span", {}, `value ${number(node.value)}`),
      node.side !== null && h("span", { class: `chip ${node.side === 1 ? "good" : "bad"}` }, node.side === 1 ? "won" : "lost"),
    ),
  );
}
