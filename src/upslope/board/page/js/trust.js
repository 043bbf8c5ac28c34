// What a run would execute, shown before it may: its files as text, their digests, and the question.

import { h } from "./dom.js";
import { count } from "./format.js";
import { HIDDEN } from "./tokens.js";

/** Asks whether this code may run; true only if the reader said so. `code` is what the server named. */
export function askForTrust(run, said, code) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { class: "trust", "aria-labelledby": "trust-title", "aria-describedby": "trust-said" },
      h("h2", { id: "trust-title" }, "Code of this run"),
      h("p", { id: "trust-said" }, said),
      h("p", {}, "It can do on this machine whatever you can. Read it; what you agree to is remembered by its digest."),
      code.map(part),
      h(
        "div",
        { class: "trust-answer" },
        h("button", { type: "button", class: "button", autofocus: true, onclick: () => dialog.close() }, "Do not run it"),
        h("button", { type: "button", class: "button main", onclick: () => dialog.close("trust") }, "Trust this code and resume"),
      ),
    );
    dialog.dataset.run = run;
    // Keys of the page behind it must not act while it is open.
    dialog.addEventListener("keydown", (event) => event.stopPropagation());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "trust");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function part(each) {
  return h(
    "section",
    { class: "trust-part" },
    h("h3", {}, h("bdi", {}, plain(each.what))),
    h("p", { class: "soft" }, "SHA-256 ", h("code", {}, each.digest)),
    each.files.map(file),
  );
}

function file({ name, bytes, text, cut }, at) {
  const size = `${count(bytes)} bytes`;
  if (text === null) return h("p", {}, h("bdi", {}, plain(name)), h("span", { class: "soft" }, `, ${size}, not shown here`));
  return h(
    "details",
    { open: at === 0 },
    h("summary", {}, h("bdi", {}, plain(name)), h("span", { class: "soft" }, cut ? `, the beginning of ${size}` : `, ${size}`)),
    h("pre", { tabindex: 0, "aria-label": `Source of ${plain(name)}` }, plain(text)),
  );
}

/** Nothing that hides or turns the writing around: what is read must be what runs. */
function plain(text) {
  const hidden = new RegExp(HIDDEN, "gu");
  return text.replace(hidden, (letter) =>
    letter === "\n" || letter === "\t" ? letter : `\u27e8U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`,
  );
}
