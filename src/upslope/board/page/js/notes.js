// What people write on a run: tags and a note, shown everywhere, edited where the server allows it.

import { ApiError, post } from "./api.js";
import { h } from "./dom.js";
import { pollNow, store } from "./store.js";

/** The tags of a run as chips. */
export function tagChips(run) {
  return (run.tags ?? []).map((tag) => h("span", { class: "chip tag" }, tag));
}

/** The button that changes them, where the server allows it. */
export function notesButton(run) {
  if (!store.allowControl) return null;
  const text = run.note || run.tags?.length ? "Edit note" : "Add a note";
  return h("button", { type: "button", class: "quiet", "aria-label": `${text} of ${run.id}`, onclick: () => edit(run) }, text);
}

/** Tags and note of a run in a line; nothing where there are none. */
export function notesLine(run) {
  if (!run.note && !run.tags?.length) return null;
  return h("div", { class: "notes-line" }, tagChips(run), run.note && h("span", { class: "note-text" }, run.note));
}

/** Asks for a note and tags in a dialog, and writes them. */
export function edit(run) {
  const tags = h("input", { type: "text", id: "note-tags", value: (run.tags ?? []).join(" "), autocomplete: "off", spellcheck: "false" });
  const note = h("textarea", { id: "note-text", rows: 5 });
  note.value = run.note ?? "";
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const field = (label, input, help) => h("div", { class: "form-field" }, h("label", { for: input.id }, label), input, help);
  const form = h(
    "form",
    {},
    h("h2", { id: "notes-title" }, `Note on ${run.id}`),
    field("Tags, with blanks between them", tags, h("small", {}, "tag:WORD finds them in every filter")),
    field("Note", note),
    trouble,
    h(
      "div",
      { class: "trust-answer" },
      h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "submit", class: "button main" }, "Save"),
    ),
  );
  const dialog = h("dialog", { class: "note-dialog", "aria-labelledby": "notes-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await post("notes", { run: run.id, note: note.value, tags: tags.value.split(/[\s,]+/).filter(Boolean) });
      dialog.close();
      await pollNow();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      trouble.textContent = error.message;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
