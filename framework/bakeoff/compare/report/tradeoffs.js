"use strict";
// Quality against a cost.

function tradeoff(box, options) {
  const state = { axis: 0, log: false };
  const controls = html("div", { class: "controls" });
  const short = (label) => label.replace(", tokens per second", "").replace(" of training", "").replace(" per sequence", "").replace("forward ", "");
  if (options.length > 1) controls.append(choice("Against", options.map((o) => short(o.label)), (i) => { state.axis = i; draw(); }));
  controls.append(check("log scale", (on) => { state.log = on; draw(); }));
  box.replaceChildren(controls);
  const draw = stage(box, (width, tip) => tradeoffPlot(width, tip, options[state.axis], state.log));
}

function tradeoffPlot(width, tip, option, log) {
  const points = option.points.filter((p) => visible(p.arm)).sort((a, b) => a.x - b.x);
  const better = option.more ? "more is better →" : "← less is better";
  const f = frame(width, 340, across(points, option, log, `${option.label} (${better})`), upwards(points, option));
  const front = option.front.map((name) => points.find((p) => p.arm === name)).filter(Boolean).map((p) => [f.sx(p.x), f.sy(p.y)]);
  const steps = staircase(front);
  if (steps.length > 1) f.layer.append(svg("path", { class: "front", d: `M${steps.map((p) => p.join(" ")).join("L")}` }));
  for (const p of points)
    if (p.high > p.low) f.layer.append(svg("line", { class: "whisker", ...paint(indexOf(p.arm)), x1: f.sx(p.x), x2: f.sx(p.x), y1: f.sy(p.low), y2: f.sy(p.high) }));
  for (const p of points) f.layer.append(mark(p.arm, f.sx(p.x), f.sy(p.y), 1.15));
  pointNames(f, points, steps);
  readPoints(f, tip, points, option);
  return f.node;
}

function across(points, option, log, label) {
  const xs = points.map((p) => p.x), positive = log && xs.every((v) => v > 0) && xs.length > 0;
  let [low, high] = xs.length ? padded(xs, 0.14) : [0, 1];
  if (positive) [low, high] = [Math.min(...xs) / 1.25, Math.max(...xs) * 1.25];
  else if (xs.length && Math.min(...xs) >= 0) low = Math.max(0, low);
  return { low, high, log: positive, words: option.words, label };
}

function upwards(points, option) {
  const [low, high] = points.length ? padded(points.flatMap((p) => [p.low, p.high]), 0.08) : [0, 1];
  return { low, high, label: `${option.unit} (${option.up ? "↑" : "↓"} better)` };
}

// The front as steps: between two of its arms only the worse of both is reached.
const staircase = (points) => points.flatMap(([x, y], i) => (i ? [[x, points[i - 1][1]], [x, y]] : [[x, y]]));

// Names beside the marks where there is room for them; the others are in the key.
function pointNames(f, points, steps) {
  const taken = points.flatMap((p) => {
    const [x, top, end] = [f.sx(p.x), f.sy(p.high), f.sy(p.low)];
    return [[x - 8, f.sy(p.y) - 8, 16, 16], [x - 1, top, 2, end - top]];
  });
  steps.slice(1).forEach(([x, y], i) => taken.push([Math.min(x, steps[i][0]), Math.min(y, steps[i][1]), Math.abs(x - steps[i][0]), Math.abs(y - steps[i][1])]));
  for (const p of points) {
    const name = shortened(p.arm), px = f.sx(p.x), py = f.sy(p.y), w = textWidth(name) + 2, options = [];
    for (const dy of [0, -11, 11, -18, 18]) options.push([px + 12, py + dy], [px - 12 - w, py + dy]);
    options.push([px - w / 2, py - 18], [px - w / 2, py + 18]);
    const free = ([x, y]) => x >= f.left && x + w <= f.width - 4 && y - 8 >= f.top && y + 8 <= f.bottom
      && taken.every(([a, b, c, d]) => x + w < a || a + c < x || y + 8 < b || b + d < y - 8);
    const found = options.find(free);
    if (!found) continue;
    taken.push([found[0], found[1] - 8, w, 16]);
    f.node.append(svg("text", { class: "tag", x: found[0], y: found[1] + 4 }, name));
  }
}

function readPoints(f, tip, points, option) {
  const label = `${option.unit} against ${option.label}; on the Pareto front: ${option.front.join(", ")}`;
  const away = (p, x, y) => Math.hypot(f.sx(p.x) - x, f.sy(p.y) - y);
  const nearest = (x, y) => points.reduce((best, p, i) => (away(p, x, y) < away(points[best], x, y) ? i : best), 0);
  readable(f, tip, label, points.length, nearest, (i) => {
    const p = points[i], range = p.low === p.high ? "" : `${p.low.toFixed(3)} to ${p.high.toFixed(3)}`;
    return {
      x: f.sx(p.x),
      heading: p.arm,
      rows: [[option.unit, p.y.toFixed(3), range], [option.label, WORDS[option.words](p.x), ""]],
      marks: [[p.arm, f.sx(p.x), f.sy(p.y)]],
    };
  });
}

for (const box of document.querySelectorAll("[data-chart]")) if (box.dataset.chart in DATA.tradeoffs) tradeoff(box, DATA.tradeoffs[box.dataset.chart]);
