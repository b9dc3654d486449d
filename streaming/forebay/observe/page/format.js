// Figures as people read them. What is not known is a dash, never 0.

export const UNKNOWN = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN;
}

export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return value >= 100 || value === 0 ? count(value) : value.toPrecision(value >= 1 ? 3 : 2);
}

export function short(value) {
  if (!known(value)) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) {
      const base = unit === "k" ? 1e3 : size;
      return `${trimmed(value / base)}${unit}`;
    }
  }
  return value >= 100 ? count(value) : trimmed(value);
}

export function percent(value) {
  if (!known(value)) return UNKNOWN;
  const many = value * 100;
  return `${many > 0 && many < 9.95 ? many.toFixed(1) : Math.round(many)} %`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (value >= 1024 && i < units.length - 1) {
    value /= 1024;
    i += 1;
  }
  return `${i === 0 ? value : trimmed(value)} ${units[i]}`;
}

export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${trimmed(value * 1e6)} µs`;
  if (value < 1) return `${trimmed(value * 1000)} ms`;
  if (value < 120) return `${trimmed(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${trimmed(value / 86400)} days`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

function trimmed(value) {
  const digits = Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
  return value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}
