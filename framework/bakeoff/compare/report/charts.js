"use strict";
// What both kinds of chart share: arms and their marks, a place to draw in, axes, names, reading, switches.

const DATA = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const charts = [];
const indexOf = (name) => DATA.arms.indexOf(name);
const visible = (name) => !hidden.has(indexOf(name));
const paint = (index) => ({ "data-arm": index, "data-ink": index % 8 });

// Shape and dashes of an arm are those of its key.
const keyOf = (index) => document.querySelector(`[data-toggle="${index}"]`);
const dashesOf = (index) => keyOf(index).querySelector(".line").getAttribute("stroke-dasharray");

function mark(name, x, y, factor = 1) {
  const index = indexOf(name), shape = keyOf(index).querySelector("use").getAttribute("href");
  return svg("use", { href: shape, class: "mark", ...paint(index), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${factor})` });
}

// A place to draw in that follows its width.
function stage(box, draw) {
  const plot = html("div"), tip = html("div", { class: "tip", hidden: "", "aria-live": "polite" });
  box.append(html("div", { class: "stage" }, plot, tip));
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

// An empty plot with axes. `x`: {low, high, log, words, label}; `y`: {low, high, label}; `right`: room beside it.
function frame(width, height, x, y, right = 18) {
  const left = 58, top = 32, bottom = height - 46, end = width - right;
  const node = svg("svg", { class: "plot", width, height, viewBox: `0 0 ${width} ${height}` });
  const sx = scale(x.low, x.high, left, end, x.log), sy = scale(y.low, y.high, bottom, top, false);
  const line = (name, x1, x2, y1, y2) => node.append(svg("line", { class: name, x1, x2, y1, y2 }));
  const text = (string, x, y, anchor) => node.append(svg("text", { x, y, "text-anchor": anchor }, string));
  const yTicks = ticks(y.low, y.high, 5, false), digits = decimalsFor(yTicks);
  for (const tick of yTicks) {
    line("grid", left, end, sy(tick), sy(tick));
    text(tick.toFixed(digits), left - 8, sy(tick) + 4, "end");
  }
  let free = left - 20;
  for (const tick of axisTicks(x, Math.max(2, Math.floor(width / 130)))) {
    const words = WORDS[x.words](tick), half = textWidth(words) / 2, middle = Math.min(sx(tick), width - 5 - half);
    line("axis-line", sx(tick), sx(tick), bottom, bottom + 5);
    if (middle - half < free) continue;
    free = middle + half + 10;
    text(words, middle, bottom + 19, "middle");
  }
  line("axis-line", left, end, bottom, bottom);
  text(x.label, (left + end) / 2, height - 10, "middle");
  text(y.label, 14, 19, "start");
  const clip = `clip${frame.count = (frame.count || 0) + 1}`;
  node.append(svg("clipPath", { id: clip }, svg("rect", { x: left, y: top, width: end - left + 7, height: bottom - top + 7 })));
  const layer = svg("g", { "clip-path": `url(#${clip})` });
  node.append(layer);
  return { node, layer, sx, sy, left, right: end, top, bottom, width };
}

const pen = document.createElement("canvas").getContext("2d");
pen.font = `12.5px ${getComputedStyle(document.body).fontFamily}`;
const textWidth = (text) => pen.measureText(text).width;
const shortened = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);

// Reading values with pointer or arrow keys. `stops`: how many there are; `nearest(x, y)`: which one is meant;
// `stop(i)`: {x, y, heading, rows: [[name, value, range]], marks: [[name, x, y]]}.
function readable(f, tip, label, stops, nearest, stop) {
  const cursor = svg("line", { class: "cursor", y1: f.top, y2: f.bottom, visibility: "hidden" }), dots = svg("g");
  f.node.append(cursor, dots);
  const named = { tabindex: "0", role: "group", "aria-label": `Chart: ${label}. Arrow keys read values.` };
  for (const [key, value] of Object.entries(named)) f.node.setAttribute(key, value);
  let index = stops - 1;
  const show = () => {
    if (!stops) return;
    const at = stop(index);
    cursor.setAttribute("x1", at.x); cursor.setAttribute("x2", at.x); cursor.setAttribute("visibility", "visible");
    dots.replaceChildren(...at.marks.map(([name, x, y]) => mark(name, x, y, 0.8)));
    const rows = at.rows.map((cells) => html("tr", {}, ...cells.map((cell) => html("td", {}, cell))));
    tip.replaceChildren(html("strong", {}, at.heading), html("table", {}, ...rows));
    tip.hidden = false;
    const w = tip.offsetWidth, x = at.x + 14 + w > f.width ? at.x - w - 14 : at.x + 14;
    tip.style.transform = `translate(${Math.max(0, Math.min(x, f.width - w))}px, ${f.top + 6}px)`;
  };
  const hide = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); dots.replaceChildren(); };
  f.node.addEventListener("pointermove", (event) => {
    const share = f.width / f.node.clientWidth;
    index = nearest(event.offsetX * share, event.offsetY * share);
    show();
  });
  f.node.addEventListener("pointerleave", hide);
  f.node.addEventListener("blur", hide);
  f.node.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -stops, End: stops }[event.key];
    if (step === undefined && event.key !== "Escape") return;
    event.preventDefault();
    if (step === undefined) return hide();
    const first = tip.hidden && Math.abs(step) === 1;
    index = Math.min(stops - 1, Math.max(0, first ? index : index + step));
    show();
  });
}

const nearestOf = (values, want) => values.reduce((best, v, i) => (Math.abs(v - want) < Math.abs(values[best] - want) ? i : best), 0);

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

function check(label, chosen) {
  const input = html("input", { type: "checkbox" });
  input.addEventListener("change", () => chosen(input.checked));
  return html("label", {}, input, label);
}
