// How numbers, times and shares are written, the same everywhere.

const MISSING = "–";

/** A number as it is read in a table: about three figures, whole numbers as such. */
export function number(value, figures = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return minus(String(value));
  if (size < 1e-3 || size >= 1e6) return minus(value.toExponential(figures - 1));
  const decimals = size >= 100 ? figures - 3 : size >= 10 ? figures - 2 : size >= 1 ? figures - 1 : figures;
  return minus(value.toFixed(Math.max(0, decimals)));
}

/** A share or an accuracy, always with three decimals, so that a column of them lines up. */
export function share(value) {
  return value === null || value === undefined || !Number.isFinite(value) ? MISSING : value.toFixed(3);
}

/** A number with all the figures it was recorded with. */
export function exact(value) {
  if (value === null || value === undefined) return MISSING;
  return minus(String(value));
}

/** The number before "of": 1,234. */
export function count(value) {
  return value === null || value === undefined ? MISSING : Math.round(value).toLocaleString("en-US");
}

/** A size in few letters: 980, 12k, 3.4M. */
export function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return number(value);
}

/** A stretch of time: 48 s, 3 min 20 s, 2 h 05 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

/** How long ago a moment (in unix seconds) was. */
export function ago(moment, now = Date.now() / 1000) {
  if (!moment) return MISSING;
  const passed = Math.max(0, now - moment);
  if (passed < 5) return "just now";
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  return `${Math.floor(passed / 86400)} d ago`;
}

/** One and many: `plural(2, "run")` is "2 runs". */
export function plural(amount, noun) {
  return `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

const NAMES = {
  kl_start: "KL from the start",
  kl_proximal: "KL within the step",
  clip_fraction: "share clipped",
  learning: "share of decisions that learn",
  grad_norm: "gradient norm",
  length: "answer length",
  longest: "longest answer",
  constant_groups: "groups without variance",
  gated_groups: "groups that imitate",
  guided_groups: "groups that were given a hint",
  hint_worked: "hints that led to a right answer",
  further_tokens: "tokens of further turns",
  logp_chosen: "log-likelihood of the chosen",
  logp_rejected: "log-likelihood of the rejected",
  preference_gap: "preference gap",
  lr: "learning rate",
  memory: "memory (MiB)",
  tokens_per_second: "tokens per second",
};

/** A metric's name in words: kl_start is "KL from the start". */
export function words(key) {
  return NAMES[key] ?? key.replaceAll("_", " ");
}

function trim(value) {
  return value.toFixed(Math.abs(value) < 10 ? 1 : 0).replace(/\.0$/, "");
}

function minus(text) {
  return text.replace(/^-/, "−").replace(/e-/, "e−");
}
