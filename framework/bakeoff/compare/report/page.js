"use strict";
// The page: arms that can be switched off, learning curves, trade-offs, sorting, copying.

const DATA = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const charts = [];
const redraw = () => charts.forEach((draw) => draw());
const indexOf = (name) => DATA.arms.indexOf(name);

for (const swatch of document.querySelectorAll("svg[data-mark]")) swatch.append(mark(+swatch.dataset.mark, { class: "" }));

for (const bar of document.querySelectorAll("[data-toggles]")) {
  DATA.arms.forEach((name, index) => {
    const picture = svg("svg", { class: "swatch", viewBox: "-8 -8 16 16", "data-arm": index, "aria-hidden": "true" }, mark(index, { class: "" }));
    const button = html("button", { type: "button", "aria-pressed": "true", title: `Show or hide ${name} in the charts` }, picture, name);
    button.addEventListener("click", () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      redraw();
    });
    bar.append(button);
  });
}

// A group of radio buttons; `chosen` is told the index.
function choice(legend, labels, chosen) {
  choice.count = (choice.count || 0) + 1;
  const set = html("fieldset", {}, html("legend", {}, legend));
  labels.forEach((label, index) => {
    const input = html("input", { type: "radio", name: `choice${choice.count}`, value: index });
    input.checked = index === 0;
    input.addEventListener("change", () => chosen(index));
    set.append(html("label", {}, input, label));
  });
  return set;
}

function check(label, checked, chosen) {
  const input = html("input", { type: "checkbox" });
  input.checked = checked;
  input.addEventListener("change", () => chosen(input.checked));
  return html("label", {}, input, label);
}

// A place to draw in that follows its width.
function stage(box, draw) {
  const plot = html("div"), tip = html("div", { class: "tip", hidden: "", "aria-live": "polite" });
  box.append(plot, tip);
  let drawn = 0;
  const again = () => {
    drawn = box.clientWidth;
    tip.hidden = true;
    plot.replaceChildren(draw(Math.max(260, drawn), tip));
  };
  charts.push(again);
  again();
  new ResizeObserver(() => requestAnimationFrame(() => { if (drawn !== box.clientWidth) again(); })).observe(box);
  return again;
}

function place(tip, width, x, y) {
  tip.hidden = false;
  const w = tip.offsetWidth;
  tip.style.transform = `translate(${Math.max(0, x + 14 + w > width ? x - w - 14 : x + 14)}px, ${Math.max(0, y)}px)`;
}

const padded = (low, high, share) => [low - (high - low || Math.abs(low) || 1) * share, high + (high - low || Math.abs(high) || 1) * share];

// Column, label, how it is written, what its button says; only those that every arm has.
const AXES = [["tokens", "tokens", "count", "tokens"], ["flops", "training FLOPs", "count", "FLOPs"], ["seconds", "time in training", "time", "time"]]
  .filter(([key]) => DATA.curves.every((c) => Object.values(c.series).every((points) => points.every((p) => key in p))));

function learningCurves(box) {
  const state = { metric: 0, axis: 0, log: false, whole: false };
  const set = (key) => (value) => { state[key] = value; draw(); };
  const controls = html("div", { class: "controls" });
  if (DATA.curves.length > 1) controls.append(choice("What is shown", DATA.curves.map((c) => c.label.split(",")[0]), set("metric")));
  controls.append(choice("Against", AXES.map((axis) => axis[3]), set("axis")), check("log scale", false, set("log")), check("whole range", false, set("whole")));
  box.append(controls);
  const draw = stage(box, (width, tip) => curvePlot(width, tip, state));
}

function curvePlot(width, tip, state) {
  const metric = DATA.curves[state.metric], [key, label, words] = AXES[state.axis];
  const series = Object.entries(metric.series).filter(([name]) => !hidden.has(name));
  const all = series.flatMap(([, points]) => points);
  const end = Math.max(...all.map((p) => p[key]), 1e-9);
  const start = state.log ? Math.min(...all.map((p) => p[key]).filter((v) => v > 0)) : 0;
  const settled = state.whole ? all : all.filter((p) => p.tokens >= 0.12 * Math.max(...all.map((q) => q.tokens)));
  const [low, high] = padded(Math.min(...settled.map((p) => p.low)), Math.max(...settled.map((p) => p.high)), 0.05);
  const x = { low: start, high: end * 1.02, log: state.log, words, label };
  const y = all.length ? { low, high, label: metric.label } : { low: 0, high: 1, label: metric.label };
  const f = frame(width, width < 600 ? 320 : 420, all.length ? x : { ...x, low: 0, high: 1, log: false }, y);
  for (const [name, points] of series) {
    const shown = points.filter((p) => !state.log || p[key] > 0), at = { "data-arm": indexOf(name) };
    const path = (value) => shown.map((p) => `${f.sx(p[key]).toFixed(1)} ${f.sy(p[value]).toFixed(1)}`);
    f.layer.append(svg("path", { class: "band", ...at, d: `M${path("high").concat(path("low").reverse()).join("L")}Z` }));
    f.layer.append(svg("path", { class: "line", ...at, d: `M${path("mean").join("L")}`, "stroke-dasharray": indexOf(name) > 7 ? "6 3" : "none" }));
    const last = shown[shown.length - 1];
    if (last) f.layer.append(mark(indexOf(name), { transform: `translate(${f.sx(last[key])} ${f.sy(last.mean)})` }));
  }
  readable(f, tip, width, series, key, words, metric.label);
  return f.node;
}

// Reading values with pointer or arrow keys.
function readable(f, tip, width, series, key, words, label) {
  const xs = [...new Set(series.flatMap(([, points]) => points.map((p) => p[key])))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: f.top, y2: f.bottom, visibility: "hidden" });
  const dots = svg("g");
  f.node.append(cursor, dots);
  f.node.setAttribute("tabindex", "0");
  f.node.setAttribute("role", "group");
  f.node.setAttribute("aria-label", `Chart: ${label}. Arrow keys read values.`);
  let index = xs.length - 1;
  const show = () => {
    if (!xs.length) return;
    const rows = series.map(([name, points]) => [name, points.reduce((a, b) => (Math.abs(b[key] - xs[index]) < Math.abs(a[key] - xs[index]) ? b : a))]);
    rows.sort((a, b) => b[1].mean - a[1].mean);
    const px = f.sx(xs[index]);
    cursor.setAttribute("x1", px); cursor.setAttribute("x2", px); cursor.setAttribute("visibility", "visible");
    dots.replaceChildren(...rows.map(([name, p]) => mark(indexOf(name), { transform: `translate(${f.sx(p[key])} ${f.sy(p.mean)}) scale(0.8)` })));
    const body = rows.map(([name, p]) => html("tr", {}, html("td", {}, name), html("td", {}, p.mean.toFixed(3)), html("td", {}, p.low === p.high ? "" : `${p.low.toFixed(3)} to ${p.high.toFixed(3)}`)));
    tip.replaceChildren(html("strong", {}, WORDS[words](xs[index])), html("table", {}, ...body));
    place(tip, width, px, f.top + 6);
  };
  const hide = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); dots.replaceChildren(); };
  f.node.addEventListener("pointermove", (event) => {
    const want = f.sx.back((event.offsetX * width) / f.node.clientWidth);
    index = xs.reduce((best, v, i) => (Math.abs(v - want) < Math.abs(xs[best] - want) ? i : best), 0);
    show();
  });
  f.node.addEventListener("pointerleave", hide);
  f.node.addEventListener("blur", hide);
  f.node.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -xs.length, End: xs.length }[event.key];
    if (step === undefined && event.key !== "Escape") return;
    event.preventDefault();
    if (step === undefined) return hide();
    index = Math.min(xs.length - 1, Math.max(0, tip.hidden ? index : index + step));
    show();
  });
}

function tradeoff(box, options) {
  const state = { axis: 0, log: false };
  const controls = html("div", { class: "controls" });
  const short = (label) => label.replace(", tokens per second", "").replace(" of training", "").replace(" per sequence", "").replace("forward ", "");
  if (options.length > 1) controls.append(choice("Against", options.map((o) => short(o.label)), (i) => { state.axis = i; draw(); }));
  controls.append(check("log scale", false, (on) => { state.log = on; draw(); }));
  box.append(controls);
  const draw = stage(box, (width) => tradeoffPlot(width, options[state.axis], state.log));
}

function tradeoffPlot(width, option, log) {
  const points = option.points.filter((p) => !hidden.has(p.arm));
  const xs = points.map((p) => p.x), positive = log && xs.every((v) => v > 0);
  let [xl, xh] = xs.length ? padded(Math.min(...xs), Math.max(...xs), 0.14) : [0, 1];
  if (positive) [xl, xh] = [Math.min(...xs) / 1.25, Math.max(...xs) * 1.25];
  else if (xs.length && Math.min(...xs) >= 0) xl = Math.max(0, xl);
  const [yl, yh] = points.length ? padded(Math.min(...points.map((p) => p.low)), Math.max(...points.map((p) => p.high)), 0.08) : [0, 1];
  const better = option.more ? "more is better →" : "← less is better";
  const f = frame(width, 340, { low: xl, high: xh, log: positive, words: option.words, label: `${option.label}  (${better})` }, { low: yl, high: yh, label: `${DATA.unit}  (↓ better)` });
  f.node.setAttribute("role", "img");
  f.node.setAttribute("aria-label", `${DATA.unit} against ${option.label}; on the Pareto front: ${option.front.join(", ")}`);
  const front = option.front.map((name) => points.find((p) => p.arm === name)).filter(Boolean);
  if (front.length > 1) f.layer.append(svg("path", { class: "front", d: staircase(front.map((p) => [f.sx(p.x), f.sy(p.y)])) }));
  for (const p of points) {
    const px = f.sx(p.x), at = { "data-arm": indexOf(p.arm) };
    if (p.high > p.low) f.layer.append(svg("line", { class: "whisker", ...at, x1: px, x2: px, y1: f.sy(p.low), y2: f.sy(p.high) }));
    const words = `${p.arm}: ${p.y.toFixed(3)} ${DATA.unit}, ${WORDS[option.words](p.x)}`;
    f.layer.append(mark(indexOf(p.arm), { transform: `translate(${px} ${f.sy(p.y)}) scale(1.15)` }));
    f.layer.lastChild.append(svg("title", {}, words));
  }
  labels(f, points);
  return f.node;
}

// The front as steps: between two of its arms only the worse of both is reached.
function staircase(points) {
  return points.map(([x, y], i) => (i ? `L${x} ${points[i - 1][1]}L${x} ${y}` : `M${x} ${y}`)).join("");
}

const pen = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  pen.font = `12.5px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

// Names beside the marks, moved apart where they would lie on one another.
function labels(f, points) {
  const taken = points.map((p) => [f.sx(p.x) - 7, f.sy(p.y) - 7, 14, 14]);
  for (const p of points) {
    const px = f.sx(p.x), py = f.sy(p.y), w = textWidth(p.arm), options = [];
    for (const dy of [0, -16, 16, -32, 32, -48, 48]) options.push([px + 11, py + dy], [px - 11 - w, py + dy]);
    const free = ([x, y]) => x >= f.left && x + w <= f.right + 8 && y - 8 >= f.top && y + 8 <= f.bottom
      && taken.every(([a, b, c, d]) => x + w < a || a + c < x || y + 7 < b || b + d < y - 7);
    const [x, y] = options.find(free) || options[0];
    taken.push([x, y - 7, w, 14]);
    f.node.append(svg("text", { class: "tag", x, y: y + 4 }, p.arm));
  }
}

for (const box of document.querySelectorAll('[data-chart="curves"]')) learningCurves(box);
for (const key of ["speed", "memory"])
  for (const box of document.querySelectorAll(`[data-chart="${key}"]`)) tradeoff(box, DATA.tradeoffs[key]);

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const valueOf = (row, i) => {
    const cell = row.cells[i];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.tagName === "TD" && !cell.classList.contains("word") ? NaN : cell.textContent;
  };
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    body.append(...[...body.rows].sort((a, b) => {
      const [u, v] = [valueOf(a, i), valueOf(b, i)];
      if (typeof u === "string") return sign * u.localeCompare(String(v));
      return Number.isNaN(u) ? 1 : Number.isNaN(v) ? -1 : sign * (u - v);
    }));
  }));
}

for (const button of document.querySelectorAll("[data-copy]"))
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
  });
