// A form for a new run, where the server allows it.

import { ApiError, get, post } from "./api.js";
import { empty, h, put } from "./dom.js";
import { go, link } from "./router.js";
import { pollNow, store, subscribe } from "./store.js";

/** Opens the form; without --allow-control it says how to get one. */
export function open(root) {
  let built = false;
  const build = () => {
    if (built || store.state === "loading") return;
    built = true;
    if (store.allowControl) form(root);
    else
      put(
        root,
        empty(
          "The board only looks on",
          h("p", {}, "Open it with 'upslope board --allow-control' to start, stop and resume runs from here."),
          h("a", { href: link("runs") }, "All runs"),
        ),
      );
  };
  const stop = subscribe(build);
  build();
  return { close: stop };
}

async function form(root) {
  let methods;
  let tasks;
  try {
    [methods, tasks] = await Promise.all([get("methods"), get("tasks")]);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    put(root, empty("The form could not be made", h("p", {}, error.message)));
    return;
  }
  const differs = h("small", { id: "method-differs" });
  const about = h("small", { id: "task-about" });
  const method = choice(
    "method",
    methods.map((each) => each.name),
    "dhpo",
    "method-differs",
  );
  const task = choice(
    "task",
    tasks.map((each) => each.name),
    "reverse",
    "task-about",
  );
  const tell = () => {
    differs.textContent = methods.find((each) => each.name === method.value)?.differs ?? "";
    about.textContent = tasks.find((each) => each.name === task.value)?.description ?? "";
  };
  method.addEventListener("input", tell);
  task.addEventListener("input", tell);
  tell();
  const steps = h("input", { type: "number", id: "steps", min: 1, step: 1, placeholder: "the task's own" });
  const seed = h("input", { type: "number", id: "seed", min: 0, step: 1, value: 0, required: true });
  const knobs = h("textarea", { id: "knobs", rows: 3, spellcheck: "false", placeholder: "surrogate.high=0.3" });
  const settings = h("textarea", { id: "settings", rows: 3, spellcheck: "false", placeholder: "lr=3e-4\nupdates_per_step=2" });
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const start = h("button", { type: "submit", class: "button main" }, "Start");
  const field = (label, input, ...rest) => h("div", { class: "form-field" }, h("label", { for: input.id }, label), input, ...rest);
  const element = h(
    "form",
    { class: "card start-form", novalidate: true },
    h("h1", {}, "New run"),
    field(
      "Method",
      method,
      lists(
        method,
        methods.map((each) => each.name),
      ),
      differs,
    ),
    field(
      "Task",
      task,
      lists(
        task,
        tasks.map((each) => each.name),
      ),
      about,
    ),
    h("div", { class: "form-pair" }, field("Steps", steps), field("Seed", seed)),
    field("Knobs of the method, one a line", knobs),
    field("Settings, one a line", settings),
    trouble,
    h("div", {}, start),
  );
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    trouble.textContent = "";
    start.disabled = true;
    try {
      const body = {
        method: method.value.trim(),
        task: task.value.trim(),
        seed: Number(seed.value),
        set: pairs(knobs.value),
        settings: pairs(settings.value),
      };
      if (steps.value !== "") body.steps = Number(steps.value);
      const { id } = await post("start", body);
      await pollNow();
      go("curves", { run: id });
    } catch (error) {
      trouble.textContent = error.message;
      start.disabled = false;
    }
  });
  put(root, element);
  method.focus();
}

function choice(id, names, first, about) {
  return h("input", {
    type: "text",
    id,
    list: `${id}-list`,
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    value: names.includes(first) ? first : (names[0] ?? ""),
    "aria-describedby": about,
  });
}

function lists(input, names) {
  return h(
    "datalist",
    { id: `${input.id}-list` },
    names.map((name) => h("option", { value: name })),
  );
}

/** Lines of path=value as an object; numbers, true and false as such. */
function pairs(text) {
  const found = {};
  for (const line of text
    .split("\n")
    .map((each) => each.trim())
    .filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}” is not a line of name=value.`);
    const value = line.slice(at + 1).trim();
    found[line.slice(0, at).trim()] =
      value === "true" ? true : value === "false" ? false : value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
  }
  return found;
}
