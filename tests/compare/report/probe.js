// What a test asks of a page, measured on what is drawn.
const probe = {
  all: (selector) => [...document.querySelectorAll(selector)],

  // The element's painted box, cut to the boxes that scroll around it.
  cut(box, element) {
    let { left, right, top, bottom } = box;
    for (let e = element.parentElement; e; e = e.parentElement)
      if (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) && e !== document.body && e !== document.documentElement) {
        const around = e.getBoundingClientRect();
        [left, right] = [Math.max(left, around.left), Math.min(right, around.right)];
        [top, bottom] = [Math.max(top, around.top), Math.min(bottom, around.bottom)];
      }
    return { left, right, top, bottom };
  },

  // Every line of visible text: {text, element, left, right, top, bottom}.
  texts() {
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      const element = node.parentElement;
      if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true }) || element.closest("script, style, legend, .skip:not(:focus)")) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const box of range.getClientRects()) {
        const cut = probe.cut(box, element);
        if (cut.right - cut.left > 1 && cut.bottom - cut.top > 1) found.push({ text: node.data.trim(), element, ...cut });
      }
    }
    return found;
  },

  // Pairs of texts that lie on one another by more than a pixel both ways; a pinned column may cover what scrolls under it.
  overlaps() {
    const found = [], texts = probe.texts();
    const across = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
      const nested = a.element.contains(b.element) || b.element.contains(a.element);
      if (!nested && across(a, b) > 1 && down(a, b) > 3) found.push(`${a.text} | ${b.text}`);
    }));
    return found;
  },

  // Texts cut off by the page, by their chart, or by an element that hides what does not fit.
  clipped() {
    const wide = document.documentElement.clientWidth;
    const charts = probe.all(".plot text, .interval text, .scale text, .still text").filter((text) => {
      const box = text.getBoundingClientRect(), around = text.closest(".plot, .verdicts").getBoundingClientRect();
      return box.left < around.left || box.right > around.right || box.top < around.top || box.bottom > around.bottom;
    });
    const boxes = probe.all("body *").filter((e) => /hidden|clip/.test(getComputedStyle(e).overflowX) && !e.closest("svg, legend") && e.scrollWidth > e.clientWidth + 1);
    const outside = probe.texts().filter((t) => t.left < 0 || t.right > wide + 0.5).map((t) => t.element);
    return [...charts, ...boxes, ...outside].map((e) => e.textContent.slice(0, 40));
  },

  channels(colour) {
    const pen = (probe.pen ||= document.createElement("canvas").getContext("2d", { willReadFrequently: true }));
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  },

  over: (top, share, below) => below.map((v, i) => share * top[i] + (1 - share) * v),

  // What lies behind an element: the backgrounds around it, painted on white.
  behind(element) {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(probe.channels(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, [r, g, b, a]) => probe.over([r, g, b], a, below), [255, 255, 255]);
  },

  // WCAG 2.2, relative luminance and contrast ratio.
  contrast(element, colour) {
    let [r, g, b, share] = probe.channels(colour);
    for (let e = element; e; e = e.parentElement) share *= +getComputedStyle(e).opacity;
    const below = probe.behind(element), seen = probe.over([r, g, b], share, below);
    const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * ((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))(c[i] / 255), 0);
    const [x, y] = [light(seen), light(below)].sort((p, q) => p - q);
    return (y + 0.05) / (x + 0.05);
  },

  // The least contrast of any text, and how many were looked at.
  textContrast() {
    const ratios = probe.texts().map(({ element, text }) => {
      const style = getComputedStyle(element), drawn = element instanceof SVGElement;
      return [probe.contrast(element, drawn ? style.fill : style.color), text.slice(0, 30)];
    });
    return { n: ratios.length, least: ratios.reduce((a, b) => (b[0] < a[0] ? b : a)) };
  },

  // The least contrast of what carries information in charts; a switched-off arm's key is exempt.
  markContrast() {
    const painted = { fill: ".mark", stroke: ".plot .line, .sample .line, .whisker, .bar, .seed, .front, .zero, .leader, .axis-line" };
    const ratios = Object.entries(painted).flatMap(([what, selector]) => probe.all(selector)
      .filter((e) => !e.closest('[aria-pressed="false"]'))
      .map((e) => [probe.contrast(e, getComputedStyle(e)[what]), e.getAttribute("class")]));
    return { n: ratios.length, least: ratios.reduce((a, b) => (b[0] < a[0] ? b : a)) };
  },

  // One chart: its texts, how many of each mark, and whether every number in it is finite.
  chart(plot) {
    const numbers = [...plot.querySelectorAll("*"), plot].flatMap((e) => ["d", "transform", "x", "y", "x1", "x2", "y1", "y2", "width", "height"].map((a) => e.getAttribute(a)).filter(Boolean));
    const arms = (selector) => [...new Set([...plot.querySelectorAll(selector)].map((e) => +e.dataset.arm))].sort((a, b) => a - b);
    const inside = [...plot.querySelectorAll(".mark")].every((m) => {
      const box = m.getBoundingClientRect(), around = plot.getBoundingClientRect();
      return box.width > 3 && box.left >= around.left && box.right <= around.right && box.top >= around.top && box.bottom <= around.bottom;
    });
    return {
      texts: [...plot.querySelectorAll("text, figcaption, p")].map((t) => t.textContent),
      lines: arms(".line"), marks: arms(".mark"), finite: !/NaN|Infinity|undefined/.test(numbers.join(" ")), inside,
      long: [...plot.querySelectorAll(".line")].every((line) => line.getTotalLength() > 20),
    };
  },

  charts: () => probe.all(".chart .plot").map(probe.chart),

  // Where an arm's mark stands on the vertical axis, read off the labelled ticks.
  height(plot, arm) {
    const middle = (e) => { const box = e.getBoundingClientRect(); return (box.top + box.bottom) / 2; };
    const lines = [...plot.querySelectorAll(".grid")].map((line) => line.getBoundingClientRect().top);
    const labels = [...plot.querySelectorAll("text")].filter((t) => t.getAttribute("text-anchor") === "end").map((t) => +t.textContent);
    const [a, b] = [0, labels.length - 1];
    const share = (middle(plot.querySelector(`use[data-arm="${arm}"]`)) - lines[a]) / (lines[b] - lines[a]);
    return labels[a] + share * (labels[b] - labels[a]);
  },

  // How the focused element shows that it is: the style and contrast of its outline.
  focus() {
    const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
    const name = e.getAttribute("aria-label") || e.textContent.trim() || e.parentElement.textContent.trim();
    const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5;
    return { tag: e.tagName.toLowerCase(), name, ring, contrast: probe.contrast(e.parentElement, style.outlineColor), seen: box.bottom > 0 && box.top < innerHeight };
  },
};
