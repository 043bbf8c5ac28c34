// Finding one's way in a recorded step: samples by row, what stands out in the step and in the run. No elements here.

/** The sample of a row with its group, or null if that row was not recorded. */
export function findRow(step, row) {
  for (const group of step.groups) {
    const sample = group.samples.find((each) => each.row === row);
    if (sample) return { group, sample };
  }
  return null;
}

/** Every recorded sample with its group, in the order of the file. */
export function allSamples(step) {
  return step.groups.flatMap((group) => group.samples.map((sample) => ({ group, sample })));
}

/** The number of tokens the policy wrote. */
export function written(sample) {
  return sample.sampled ? sample.sampled.reduce((sum, one) => sum + (one ? 1 : 0), 0) : (sample.pieces?.length ?? 0);
}

/** The share of its written tokens that were held at a bound; null for a row without an update. */
export function clippedShare(sample) {
  if (!Array.isArray(sample.clipped)) return null;
  const length = written(sample);
  return length ? sample.clipped.filter((value, at) => value && sample.sampled?.[at] !== 0).length / length : 0;
}

/** Where two answers part: the first position at which they differ. */
export function parting(one, other) {
  const shorter = Math.min(one.pieces.length, other.pieces.length);
  const same = (at) => (one.ids && other.ids ? one.ids[at] === other.ids[at] : one.pieces[at] === other.pieces[at]);
  for (let at = 0; at < shorter; at++) if (!same(at)) return at;
  return shorter;
}

/** What can be jumped to. `measure` ranks the samples of a step, `line` is the name in a line of rollouts.jsonl. */
export const JUMPS = {
  clipped: { label: "Most clipped", line: "most_clipped", measure: clippedShare },
  advantage: { label: "Highest advantage", line: "highest_advantage", measure: (sample) => sample.advantage },
  longest: { label: "Longest", line: "longest", measure: written },
  constant: { label: "Zero variance", line: "constant", measure: null },
};

/** Where a jump within a step leads: {step, row}, or null. Groups without variance are gone through one after the other. */
export function jumpInStep(step, kind, currentGroup) {
  const { measure } = JUMPS[kind];
  if (measure === null) {
    const groups = step.groups.filter((group) => group.constant && group.samples.length);
    const next = groups[(groups.findIndex((group) => group.group === currentGroup) + 1) % groups.length];
    return next ? { step: step.step, row: next.samples[0].row } : null;
  }
  const ranked = allSamples(step)
    .map(({ sample }) => ({ row: sample.row, value: measure(sample) }))
    .filter(({ value }) => Number.isFinite(value));
  if (!ranked.length) return null;
  const best = ranked.reduce((top, each) => (each.value > top.value ? each : top));
  return kind === "clipped" && best.value === 0 ? null : { step: step.step, row: best.row };
}

/** The same over the whole run, from the lines of rollouts.jsonl: {step, row} or {step, group}, or null. */
export function jumpInRun(lines, kind, current) {
  if (kind === "constant") {
    const places = lines.flatMap((line) => (line.constant ?? []).map((group) => ({ step: line.step, group })));
    const at = places.findIndex(
      (place) => place.step > current.step || (place.step === current.step && place.group > (current.group ?? -1)),
    );
    return places[at < 0 ? 0 : at] ?? null;
  }
  const { line: name } = JUMPS[kind];
  const found = lines.filter((line) => Number.isFinite(line[name]?.value));
  if (!found.length) return null;
  const best = found.reduce((top, line) => (line[name].value > top[name].value ? line : top));
  return kind === "clipped" && best[name].value === 0 ? null : { step: best.step, row: best[name].row };
}
