// What metrics mean in a line, and which of them belong together. A key that is not here is shown by its name.

const [CRITICS, PREFERENCES, WHERE] = ["critics", "preferences", "where"];

/** By key: the title of its chart, its meaning, its group. */
const KNOWN = {
  q_value: ["Values of the critics", "What the critics say of stored actions; rewards and discount bound what can be true.", CRITICS],
  q_td_error: ["TD error", "How far the critics are from their targets, without sign.", CRITICS],
  q_target: ["Targets of the critics", "The reward and the discounted value of what follows.", CRITICS],
  q_loss: ["Loss of the critics", "What their optimiser lowers; targets move, so it need not fall.", CRITICS],
  value_value: ["Value of states", "What the value function says of stored states.", CRITICS],
  value_loss: ["Loss of the value function", "", CRITICS],
  temperature: ["Temperature", "Weight of the entropy in rewards: learned, so that the policy keeps the wanted entropy.", CRITICS],
  temperature_loss: ["Loss of the temperature", "", CRITICS],
  imitation: ["Imitation", "How far the policy is from the recorded actions.", CRITICS],
  updates_per_second: ["Updates a second", "Of learning alone, without the time in which the policy acts.", CRITICS],
  margin: ["Margin", "By how much the winner's score is above the loser's.", PREFERENCES],
  preferred: ["Preferred", "Share of contests in which the margin is on the right side.", PREFERENCES],
  logp_chosen: ["Log-likelihood of the chosen", "Should not fall: the loss asks for a difference alone.", PREFERENCES],
  logp_rejected: ["Log-likelihood of the rejected", "", PREFERENCES],
  preference_gap: ["Preference gap", "Chance that the best answer of a group beats its worst, over one half.", PREFERENCES],
  judge_pairs: ["Pairs that were judged", "", PREFERENCES],
  judge_timeouts: ["Verdicts that did not come", "Of the pairs that were judged.", PREFERENCES],
  judge_unreadable: ["Verdicts that cannot be read", "Of the pairs that were judged.", PREFERENCES],
  age: ["Age", "Steps between the weights that wrote a token and those that learn from it.", WHERE],
  oldest: ["Oldest", "The age of the oldest token of a step.", WHERE],
  waited: ["Waited", "Seconds in which the learner stood still for rows.", WHERE],
  worker_busy: ["Workers busy", "Share of the time in which those who sample worked.", WHERE],
  scoring_busy: ["Scorers busy", "Share of the time in which those who score worked.", WHERE],
  judge_contradicts: ["Verdicts that change with the order", "Of the pairs that were judged.", PREFERENCES],
};
const PLACES = /^(age_share|fault)_/;
const MODEL = /_(loss|value|td_error|target|penalty)$/;
const TITLES = { [CRITICS]: "Critics", [PREFERENCES]: "Preferences", [WHERE]: "Where it runs" };

export const titleOf = (key, otherwise) => KNOWN[key]?.[0] ?? otherwise;
export const meaningOf = (key) => KNOWN[key]?.[1] ?? "";

/** The keys in groups, [title, keys] each, those without a group first. Losses and values of further models are critics'. */
export function grouped(keys) {
  const critics = keys.includes("q_loss") || keys.includes("q_value");
  const groupOf = (key) => KNOWN[key]?.[2] ?? (PLACES.test(key) ? WHERE : critics && MODEL.test(key) ? CRITICS : "");
  const found = new Map([["", []]]);
  for (const key of keys) {
    const group = groupOf(key);
    const name = group === CRITICS && !critics ? "" : group;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(key);
  }
  return [...found].map(([name, own]) => [TITLES[name] ?? "", own]).filter(([, own]) => own.length);
}
