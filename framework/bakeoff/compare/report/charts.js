"use strict";
// Drawing: scales, axes and marks as SVG. All text goes in as text nodes.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function html(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const threeDigits = (v) => (v === 0 || Math.abs(v) >= 100 ? v.toFixed(0) : String(Number(v.toPrecision(3))));

function scaled(value, limits) {
  for (const [limit, suffix] of limits) if (Math.abs(value) >= limit * 0.9995) return threeDigits(value / limit) + suffix;
  return threeDigits(value);
}

const WORDS = {
  count: (v) => scaled(v, [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]),
  size: (v) => scaled(v, [[2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"]]),
  time: (v) => (v >= 3600 ? threeDigits(v / 3600) + " h" : v >= 120 ? threeDigits(v / 60) + " min" : threeDigits(v) + " s"),
};

const MARKS = [
  "M5 0A5 5 0 1 1 -5 0A5 5 0 1 1 5 0Z",
  "M-4.6 -4.6H4.6V4.6H-4.6Z",
  "M0 -6.4L6.4 0L0 6.4L-6.4 0Z",
  "M0 -6L5.8 4.6H-5.8Z",
  "M0 6L5.8 -4.6H-5.8Z",
  "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
  "M0 -6.2L5.9 -1.9L3.6 5H-3.6L-5.9 -1.9Z",
  "M-3 -5.4H3L6 0L3 5.4H-3L-6 0Z",
];

const mark = (index, attributes = {}) =>
  svg("path", { d: MARKS[index % MARKS.length], class: "mark", "data-arm": index, ...attributes });

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  const map = (v) => from + ((f(v) - a) / (b - a || 1)) * (to - from);
  map.back = (p) => { const u = a + ((p - from) / (to - from)) * (b - a); return log ? 10 ** u : u; };
  return map;
}

function ticks(low, high, wanted, log) {
  if (log && high / low > 8) {
    const found = [];
    const steps = high / low > 3e3 ? [1] : high / low > 100 ? [1, 3] : [1, 2, 5];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const m of steps) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) found.push(m * 10 ** p);
    return found;
  }
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12) + 1e-12; i++) found.push(i * step);
  return found;
}

// Ticks in powers of two read well in bytes.
function sizeTicks(low, high, wanted) {
  const unit = 2 ** (10 * Math.floor(Math.log2(Math.max(high, 1)) / 10));
  return ticks(low / unit, high / unit, wanted, false).map((v) => v * unit);
}

function decimalsFor(values) {
  const gap = Math.min(...values.slice(1).map((v, i) => Math.abs(v - values[i])).filter((v) => v > 0));
  if (!Number.isFinite(gap)) return 2;
  for (let d = 0; d < 6; d++) if (Math.abs(gap * 10 ** d - Math.round(gap * 10 ** d)) < 1e-6 * 10 ** d * gap) return d;
  return 6;
}

// An empty plot with axes. `x` and `y`: {low, high, log, words, label}. Returns the node, scales and the layer to draw on.
function frame(width, height, x, y) {
  const left = 58, right = 18, top = 32, bottom = 46;
  const node = svg("svg", { class: "plot", width, height, viewBox: `0 0 ${width} ${height}` });
  const sx = scale(x.low, x.high, left, width - right, x.log), sy = scale(y.low, y.high, height - bottom, top, false);
  const yTicks = ticks(y.low, y.high, 5, false), digits = decimalsFor(yTicks);
  for (const tick of yTicks) {
    node.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(tick), y2: sy(tick) }));
    node.append(svg("text", { x: left - 8, y: sy(tick) + 4, "text-anchor": "end" }, tick.toFixed(digits)));
  }
  const some = (many) => (x.words === "size" && !x.log ? sizeTicks(x.low, x.high, many) : ticks(x.low, x.high, many, x.log));
  let found = [];
  const many = Math.max(2, Math.floor(width / 130));
  for (let more = 0; found.length < 3 && more < 7; more++) found = some(many + more);
  let last = -Infinity;
  for (const tick of found) {
    const place = sx(tick);
    node.append(svg("line", { class: "axis-line", x1: place, x2: place, y1: height - bottom, y2: height - bottom + 5 }));
    if (place - last < 46) continue;
    last = place;
    node.append(svg("text", { x: place, y: height - bottom + 19, "text-anchor": "middle" }, WORDS[x.words](tick)));
  }
  node.append(svg("line", { class: "axis-line", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  node.append(svg("text", { x: (left + width - right) / 2, y: height - 10, "text-anchor": "middle" }, x.label));
  node.append(svg("text", { x: 14, y: 19, "text-anchor": "start" }, y.label));
  const clip = `clip${frame.count = (frame.count || 0) + 1}`;
  const box = svg("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom });
  node.append(svg("clipPath", { id: clip }, box));
  const layer = svg("g", { "clip-path": `url(#${clip})` });
  node.append(layer);
  return { node, layer, sx, sy, left, right: width - right, top, bottom: height - bottom };
}
