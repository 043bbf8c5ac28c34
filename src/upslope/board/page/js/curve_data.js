// Numbers on their way into a chart: smoothing, log axes, which colour and dash. No elements here.

/** A moving average that starts unbiased; `weight` 0 leaves the values alone, 0.99 keeps only the trend. Gaps stay gaps. */
export function smooth(values, weight) {
  if (!weight) return values;
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** Where in a rising list the value nearest to `x` stands; -1 in an empty one. */
export function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/** What a log axis can show: points with x <= 0 leave, values <= 0 become gaps. */
export function forLog(line, logX, logY) {
  if (!logX && !logY) return line;
  const kept = line.x.map((x, at) => at).filter((at) => !logX || line.x[at] > 0);
  const pick = (values) => values && kept.map((at) => (logY && !(values[at] > 0) ? null : values[at]));
  return {
    ...line,
    x: kept.map((at) => line.x[at]),
    y: pick(line.y),
    faint: pick(line.faint),
    low: pick(line.low),
    high: pick(line.high),
    step: line.step && kept.map((at) => line.step[at]),
  };
}

const HUES = 8;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [5, 2, 2, 2, 2, 2]];
/** Lines that can be told apart in one chart. */
export const MOST_LOOKS = HUES * DASHES.length;

/** A look for every run, none twice: runs of one method share a hue and differ in dash where that suffices. */
export function looks(runs) {
  const members = Map.groupBy(runs, kindOf);
  const kinds = [...members.keys()];
  const byKind = kinds.length > 1 && kinds.length <= HUES && [...members.values()].every((all) => all.length <= DASHES.length);
  return new Map(
    runs.map((run, at) => {
      if (!byKind) return [run.id, look(at)];
      const kind = kindOf(run);
      return [run.id, look(kinds.indexOf(kind), members.get(kind).indexOf(run))];
    }),
  );
}

/** The look of the nth thing: a hue by number, a dash by how often the hue was used. */
export function look(kind, again = Math.floor(kind / HUES)) {
  return { hue: `--line-${kind % HUES}`, dash: DASHES[again % DASHES.length] };
}

function kindOf(run) {
  return `${run.method}\n${run.task}\n${run.model}`;
}

/** A curve as a line of a chart: evaluations, or the smoothed line over the raw one, or the raw one with what thinning hid. */
export function lineOf(curve, key, name, style, weight) {
  const { x, y, low, high, run, step } = curve;
  if (key === "score") return { name, run, ...style, ...(curve.evaluation ?? { x: [], y: [] }), whiskers: true };
  const numbers = weight ? { y: smooth(y, weight), faint: y } : { y, low, high };
  return { name, run, step, ...style, x, ...numbers };
}

/** A band over seeds as a line. Evaluations are few and have intervals of their own: they are never smoothed. */
export function lineOfBand(band, key, name, style, smoothing) {
  const weight = key === "score" ? 0 : smoothing;
  const line = { x: band.x, y: smooth(band.mean, weight), low: smooth(band.low, weight), high: smooth(band.high, weight) };
  return { name, run: band.runs[0], ...style, ...line, band: true };
}
