// The catalogue on the site's front page; the question stands behind the # of the address, so that it can be sent to somebody.

import { showCatalogue } from "./catalogue.js";

const state = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const places = {
  methodLink: (name) => `methods/${name}.html`,
  claimLink: (page) => `claims/${page}.html`,
  picture: (page) => `_images/${page}.png`,
  keep: (kept) => history.replaceState(null, "", `#${new URLSearchParams(kept)}`),
};
const shown = showCatalogue(document.getElementById("catalogue"), window.upslopeCatalogue, places, state());
window.addEventListener("hashchange", () => shown.change(state()));
