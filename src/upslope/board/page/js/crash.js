// How a run ended that did not end well, and that a run has nothing to show yet: said above whatever view it is in.

import { ApiError, get } from "./api.js";
import { h, put } from "./dom.js";
import { ago } from "./format.js";

/** A notice on a run that crashed, cannot be read or has logged nothing; null if all is well. */
export function notice(run) {
  if (!run) return null;
  if (run.status === "crashed") return crashed(run);
  if (run.status === "broken") return box("bad", `${run.id} cannot be read`, h("p", {}, run.why));
  return run.step ? null : withoutData(run);
}

function box(tone, title, ...rest) {
  return h("section", { class: `notice ${tone}`, "aria-label": title }, h("h2", {}, title), ...rest);
}

function withoutData(run) {
  const why =
    run.status === "running"
      ? "It is running and has not finished its first step: numbers appear here by themselves."
      : "It ended before its first step, so there are no curves and no rollouts. Its settings are under Method.";
  return box("", `${run.id} has no data${run.status === "running" ? " yet" : ""}`, h("p", {}, why));
}

function crashed(run) {
  const more = h("div", { class: "crash-more" });
  const details = h("details", {}, h("summary", {}, "Traceback and what else is known"), more);
  details.addEventListener("toggle", async () => {
    if (!details.open || more.childNodes.length) return;
    put(more, h("p", { class: "soft" }, "Loading…"));
    try {
      tell(more, await get("crash", { run: run.id }));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      put(more, h("p", {}, error.message));
    }
  });
  const after = run.step ? `after step ${run.step}` : "before its first step";
  return box("bad", `${run.id} crashed ${after}`, h("p", { class: "why" }, run.why), details);
}

function tell(more, { said, trace, output, last_line: last, restarted }) {
  put(
    more,
    said && h("pre", { tabindex: 0, role: "region", "aria-label": "The error" }, said),
    trace && h("pre", { tabindex: 0, role: "region", "aria-label": "Traceback" }, trace),
    output && [
      h("p", { class: "soft" }, "The end of what it printed (output.log):"),
      h("pre", { tabindex: 0, role: "region", "aria-label": "What it printed" }, output),
    ],
    !trace && restarted && h("p", {}, "This machine has been started again since."),
    !trace && !output && h("p", {}, `It kept no error. The last file it wrote is from ${ago(last)}.`),
  );
}
