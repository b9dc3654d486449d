// The axes of charts: a scale makes the ticks up to a highest value, [{value, label}], from 0 on. The
// last one is the top of the chart.

const ROUND = [1, 2, 4, 6, 10];
const MOST_TICKS = 3;
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3], ["µs", 1e-6]];
// Of a day and more, and of less than a second, people count by tens; of what is between by the clock.
const CLOCK = [1, 2, 5, 10, 15, 30].flatMap((n) => [n, n * 60, n * 3600]).filter((s) => s < 86400);
const TENS = [1, 2, 5].flatMap((n) => [-6, -5, -4, -3, -2, -1].map((power) => n * 10 ** power));
const DAYS = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5].map((power) => n * 10 ** power * 86400));
const STEPS = [...TENS, ...CLOCK, ...DAYS].sort((a, b) => a - b);

// Shares of a whole, with words for them.
export const shares = (format) => () => halves(1, format);

// Round numbers, half of which are round as well: 1, 2, 4, 6 or 10 times a power of ten; of bytes
// (base 2) a power of two.
export function figures(format, base = 10) {
  return (highest) => halves(nice(highest, base), format);
}

// Seconds, at steps that are round to people, all in the unit of the step: 0, 10 min, 20 min.
export function durations(highest) {
  if (!(highest > 0)) return ticks(1, 1);
  const step = STEPS.find((s) => highest <= MOST_TICKS * s) ?? STEPS.at(-1);
  // The share is for sums that floating point makes a little greater than they are.
  return ticks(step, Math.max(1, Math.ceil(highest / step - 1e-9)));
}

function ticks(step, many) {
  const [unit, size] = UNITS.find(([, s]) => step >= s * 0.999) ?? UNITS.at(-1);
  const each = Math.round(step / size);
  return Array.from({ length: many + 1 }, (_, i) => ({ value: i * step, label: i ? `${i * each} ${unit}` : "0" }));
}

function halves(top, format) {
  return [0, top / 2, top].map((value) => ({ value, label: format(value) }));
}

function nice(value, base) {
  if (!(value > 0)) return base === 10 ? 1 : base;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  return ROUND.find((n) => n * power >= value) * power;
}
