"use strict";
// Numbers, scales and ticks; making elements. All text goes in as text nodes.

const SVG = "http://www.w3.org/2000/svg";

function made(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const svg = (name, attributes = {}, ...children) => made(document.createElementNS(SVG, name), attributes, children);
const html = (name, attributes = {}, ...children) => made(document.createElement(name), attributes, children);

const threeDigits = (v) => (v === 0 || Math.abs(v) >= 100 ? v.toFixed(0) : String(Number(v.toPrecision(3))));

function scaled(value, limits) {
  for (const [limit, suffix] of limits) if (Math.abs(value) >= limit * 0.9995) return threeDigits(value / limit) + suffix;
  return threeDigits(value);
}

const WORDS = {
  count: (v) => scaled(v, [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]),
  size: (v) => scaled(v, [[2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"]]),
  time: (v) => (v >= 7200 ? threeDigits(v / 3600) + " h" : v >= 120 ? threeDigits(v / 60) + " min" : threeDigits(v) + " s"),
};

// In what ticks are round: bytes in powers of 1024, time in the unit of the longest.
const UNITS = {
  count: () => 1,
  size: (most) => 2 ** (10 * Math.floor(Math.log2(Math.max(most, 1)) / 10)),
  time: (most) => (most >= 7200 ? 3600 : most >= 120 ? 60 : 1),
};

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  return (v) => from + ((f(v) - a) / (b - a || 1)) * (to - from);
}

function ticks(low, high, wanted, log) {
  const found = [];
  if (log && high / low > 8) {
    const steps = high / low > 3e3 ? [1] : high / low > 100 ? [1, 3] : [1, 2, 5];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const m of steps) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) found.push(m * 10 ** p);
    return found;
  }
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12) + 1e-12; i++) found.push(i * step);
  return found;
}

// Three ticks at least, in round numbers of the axis' unit.
function axisTicks(axis, wanted) {
  const unit = UNITS[axis.words](axis.high);
  let found = [];
  for (let more = 0; found.length < 3 && more < 7; more++) found = ticks(axis.low / unit, axis.high / unit, wanted + more, axis.log);
  return found.map((v) => v * unit);
}

function decimalsFor(values) {
  const gap = Math.min(...values.slice(1).map((v, i) => Math.abs(v - values[i])).filter((v) => v > 0));
  if (!Number.isFinite(gap)) return 2;
  for (let d = 0; d < 6; d++) if (Math.abs(gap * 10 ** d - Math.round(gap * 10 ** d)) < 1e-6 * 10 ** d * gap) return d;
  return 6;
}

// The range of some values with room at both ends.
function padded(values, share) {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low || Math.abs(low) || 1) * share;
  return [low - room, high + room];
}
