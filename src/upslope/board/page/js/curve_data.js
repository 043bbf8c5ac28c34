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
  };
}

const HUES = 8;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/** A look for every run: runs of one method share a hue and differ in dash when methods repeat, otherwise each has its own hue. */
export function looks(runs) {
  const kinds = [...new Set(runs.map(kindOf))];
  const byKind = kinds.length < runs.length && (kinds.length > 1 || runs.length > HUES);
  const seen = new Map();
  return new Map(
    runs.map((run, at) => {
      const kind = byKind ? kinds.indexOf(kindOf(run)) : at;
      const again = byKind ? (seen.get(kind) ?? 0) : Math.floor(at / HUES);
      seen.set(kind, again + 1);
      return [run.id, look(kind, again)];
    }),
  );
}

/** The look of the nth thing: a hue by number, a dash by how often the hue was used. */
export function look(kind, again = Math.floor(kind / HUES)) {
  return { hue: `--line-${kind % HUES}`, dash: DASHES[again % DASHES.length] };
}

/** A name for every run, short but no name twice: the method and the seed, the task where there are several, else the folder. */
export function namesOf(runs) {
  const tasks = new Set(runs.map((run) => run.task)).size > 1;
  const short = runs.map((run) => [run.method, tasks ? run.task : null, `seed ${run.seed ?? "?"}`].filter(Boolean).join(" · "));
  return new Map(runs.map((run, at) => [run.id, short.indexOf(short[at]) === short.lastIndexOf(short[at]) ? short[at] : run.id]));
}

function kindOf(run) {
  return `${run.method}\n${run.task}\n${run.model}`;
}

/** A curve as a line of a chart: evaluations, or the smoothed line over the raw one, or the raw one with what thinning hid. */
export function lineOf(curve, key, name, style, weight) {
  if (key === "score") return { name, ...style, ...(curve.evaluation ?? { x: [], y: [] }), whiskers: true };
  const { x, y, low, high } = curve;
  return weight ? { name, ...style, x, y: smooth(y, weight), faint: y } : { name, ...style, x, y, low, high };
}

/** A band over seeds as a line. Evaluations are few and have intervals of their own: they are never smoothed. */
export function lineOfBand(band, key, name, style, smoothing) {
  const weight = key === "score" ? 0 : smoothing;
  const line = { x: band.x, y: smooth(band.mean, weight), low: smooth(band.low, weight), high: smooth(band.high, weight) };
  return { name, ...style, ...line, band: true };
}
