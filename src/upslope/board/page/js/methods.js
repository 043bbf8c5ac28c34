// The catalogue of methods on the board; the state of the question stands in the address.

import { get } from "./api.js";
import { showCatalogue } from "./catalogue.js";
import { h, put } from "./dom.js";
import { link, note } from "./router.js";

/** Opens the catalogue. */
export function open(root, params) {
  const place = h("section", { class: "catalogue-page" }, h("p", { class: "soft" }, "Loading…"));
  put(root, h("h1", { class: "unseen" }, "Methods"), place);
  let shown = null;
  let wanted = params;
  let closed = false;
  const places = {
    methodLink: (name) => link("method", { name }),
    claimLink: () => null, // the pages of the claims are part of the site, not of the board
    picture: () => null,
    keep: (state) => note("methods", state),
  };
  get("catalogue").then(
    (data) => {
      if (closed) return;
      const inside = h("div", {});
      put(place, inside);
      shown = showCatalogue(inside, data, places, Object.fromEntries(wanted));
    },
    (error) => put(place, h("p", {}, String(error.message ?? error))),
  );
  return {
    change: (next) => {
      wanted = next;
      shown?.change(Object.fromEntries(next));
    },
    close: () => (closed = true),
  };
}
