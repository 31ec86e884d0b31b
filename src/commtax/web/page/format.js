// Numbers as the command line prints them (units.py): the same digits, so that both can be compared by eye.

function threeDigits(value) {
  return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 12 });
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  for (const [factor, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (Math.abs(value) >= factor) return `${threeDigits(value / factor)} ${unit}`;
  }
  return value ? `${threeDigits(value / 1e-9)} ns` : "0 s";
}

export function bytes(value) {
  if (!value) return value === 0 ? "0 B" : "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${Number.isInteger(value) ? value : value.toFixed(2)} ${units[at]}`;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.round(value).toLocaleString("en-US");
}

// Rates: whole numbers from a hundred up, three digits below.
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? count(value) : threeDigits(value);
}

// A figure stays with its unit, and a size with its name.
export function unbroken(text) {
  return text.replace(/(\d) (?=(?:[mµn]?s|x|replicas|stages)\b)|(\b[A-Z]P) (?=\d)/g, "$1$2\u00a0");
}

// Rates where room is short (cells of a map): 12,345 becomes 12.3k.
export function shortRate(value) {
  for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= factor) return threeDigits(value / (unit === "k" ? 1e3 : factor)) + unit;
  }
  return rate(value);
}

// Dollars: cents below a hundred, whole dollars to a million, then 1.13 million.
export function usd(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `$${threeDigits(value / 1e6)} million`;
  if (value >= 100) return `$${count(value)}`;
  return `$${value >= 0.1 ? value.toFixed(2) : threeDigits(value)}`;
}

// Days as people say them: 9.4 years, 185 days, 14 hours.
export function days(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 730) return `${threeDigits(value / 365)} years`;
  return value >= 2 ? `${threeDigits(value)} days` : `${threeDigits(value * 24)} hours`;
}

export function percent(share, digits = 1) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;
}

export function change(share) {
  if (Math.abs(share) < 5e-4) return "no change";
  if (share >= 9) return `× ${threeDigits(1 + share)}`; // +45,296 % says less
  return `${share > 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(1)}%`;
}

// Round steps for an axis with about `wanted` marks over `span`.
export function niceStep(span, wanted) {
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((step) => step * power >= rough);
}
