"use strict";
// Learning curves.

// Columns as numbers of the thing itself; those that all arms have in common stand once.
for (const c of DATA.curves)
  for (const [name, own] of Object.entries(c.series)) {
    const columns = { ...c.shared, ...own };
    c.series[name] = "flops" in columns ? { ...columns, flops: columns.flops.map((v) => v * 1e9) } : columns;
  }

// Column, label, how it is written, what its button says; only those that every arm has.
const AXES = [["tokens", "tokens", "count", "tokens"], ["flops", "training FLOPs", "count", "FLOPs"], ["seconds", "time in training", "time", "time"]]
  .filter(([key]) => DATA.curves.every((c) => Object.values(c.series).every((columns) => key in columns)));

function learningCurves(box) {
  const state = { metric: 0, axis: 0, log: false, whole: false };
  const set = (key) => (value) => { state[key] = value; draw(); };
  const controls = html("div", { class: "controls" });
  if (DATA.curves.length > 1) controls.append(choice("What is shown", DATA.curves.map((c) => c.label.split(",")[0]), set("metric")));
  controls.append(choice("Against", AXES.map((axis) => axis[3]), set("axis")), check("log scale", set("log")), check("whole range", set("whole")));
  box.replaceChildren(controls);
  const draw = stage(box, (width, tip) => curvePlot(width, tip, state));
}

function curvePlot(width, tip, state) {
  const metric = DATA.curves[state.metric], [key, label, words] = AXES[state.axis];
  const series = Object.entries(metric.series).filter(([name]) => visible(name)).map(([name, c]) => curve(name, c, key, state));
  const settled = series.flatMap((s) => s.settled);
  const named = width >= 640 && series.length <= 20;
  const room = named ? Math.max(0, ...series.map((s) => textWidth(shortened(s.name)))) + 36 : 18;
  const x = { low: 0, high: 1, words, label, log: false }, y = { low: 0, high: 1, label: metric.label };
  if (settled.length) {
    const ends = series.flatMap((s) => [s.x[0], s.x[s.x.length - 1]]);
    [y.low, y.high] = padded(settled, 0.05);
    [x.low, x.high] = [state.log ? Math.min(...ends) : 0, Math.max(...ends)];
    x.log = state.log;
  }
  const f = frame(width, width < 600 ? 320 : 420, x, y, room);
  f.node.classList.toggle("many", series.length > 8);
  for (const s of series) f.layer.append(svg("path", { class: "band", ...paint(indexOf(s.name)), d: `M${[...path(f, s, "high"), ...path(f, s, "low").reverse()].join("L")}Z` }));
  for (const s of series) f.layer.append(svg("path", { class: "line", ...paint(indexOf(s.name)), d: `M${path(f, s, "mean").join("L")}`, "stroke-dasharray": dashesOf(indexOf(s.name)) }));
  for (const s of series) f.layer.append(mark(s.name, f.sx(s.end.x), f.sy(s.end.y)));
  if (named) endNames(f, series);
  readCurves(f, tip, series, AXES[state.axis], metric.label);
  return f.node;
}

// One arm's columns where they can be drawn, with the values that decide the vertical range.
function curve(name, columns, key, state) {
  const first = state.log ? columns[key].findIndex((v) => v > 0) : 0;
  const [x, mean, low, high, tokens] = [key, "mean", "low", "high", "tokens"].map((c) => columns[c].slice(first));
  const from = state.whole ? 0 : tokens.findIndex((t) => t >= 0.12 * tokens[tokens.length - 1]);
  return { name, x, mean, low, high, settled: [...low.slice(from), ...high.slice(from)], end: { x: x[x.length - 1], y: mean[mean.length - 1] } };
}

const path = (f, s, column) => s.x.map((x, i) => `${f.sx(x).toFixed(1)} ${f.sy(s[column][i]).toFixed(1)}`);

// Places at least `gap` apart and as near as can be to where they are wanted, from top to bottom.
function spread(wanted, gap, top, bottom) {
  const groups = [];
  for (const at of wanted) {
    groups.push({ sum: at, n: 1 });
    for (let g = groups.length - 1; g > 0 && centre(groups[g]) - centre(groups[g - 1]) < (gap * (groups[g].n + groups[g - 1].n)) / 2; g--) {
      const last = groups.pop();
      groups[g - 1] = { sum: groups[g - 1].sum + last.sum, n: groups[g - 1].n + last.n };
    }
  }
  const placed = groups.flatMap((g) => Array.from({ length: g.n }, (_, i) => centre(g) + gap * (i - (g.n - 1) / 2)));
  placed.forEach((at, i) => { placed[i] = Math.max(at, top + gap * i); });
  for (let i = placed.length - 1, most = bottom; i >= 0; i--, most -= gap) placed[i] = Math.min(placed[i], most);
  return placed;
}

const centre = (group) => group.sum / group.n;

// Names at the ends of the curves.
function endNames(f, series) {
  const ordered = series.map((s) => ({ ...s, at: f.sy(s.end.y) })).sort((a, b) => a.at - b.at);
  const places = spread(ordered.map((s) => s.at), 15, f.top, f.bottom);
  ordered.forEach((s, i) => {
    const from = f.sx(s.end.x) + 8, to = f.right + 20;
    f.node.append(svg("path", { class: "leader", ...paint(indexOf(s.name)), d: `M${from} ${s.at.toFixed(1)}L${to} ${places[i].toFixed(1)}` }));
    f.node.append(svg("text", { class: "tag", x: to + 4, y: places[i] + 4 }, shortened(s.name)));
  });
}

function readCurves(f, tip, series, [, label, words], title) {
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b), places = xs.map(f.sx);
  const value = (v) => v.toFixed(3);
  readable(f, tip, title, xs.length, (px) => nearestOf(places, px), (i) => {
    const at = series.map((s) => ({ ...s, i: nearestOf(s.x, xs[i]) })).sort((a, b) => b.mean[b.i] - a.mean[a.i]);
    return {
      x: places[i],
      heading: `${label}: ${WORDS[words](xs[i])}`,
      rows: at.map((s) => [s.name, value(s.mean[s.i]), s.low[s.i] === s.high[s.i] ? "" : `${value(s.low[s.i])} to ${value(s.high[s.i])}`]),
      marks: at.map((s) => [s.name, f.sx(s.x[s.i]), f.sy(s.mean[s.i])]),
    };
  });
}

for (const box of document.querySelectorAll('[data-chart="curves"]')) learningCurves(box);
