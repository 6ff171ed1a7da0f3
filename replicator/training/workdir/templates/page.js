// Charts and pictures of a page: a click enlarges one, a slider goes through the steps of a
// picture, and a name of a legend hides its curve. Without JavaScript the page stands still.
"use strict";

const make = (tag, parent, attributes = {}, text = "") => {
  const svg = ["svg", "path", "line", "text", "rect", "g"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
                   : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return parent.appendChild(node);
};
const dataOf = (figure) => JSON.parse(figure.querySelector("script").text);
const shown = (x) =>
  Math.abs(x) >= 1e4 && Math.abs(x) < 1e7 ? x.toFixed(0) : String(+x.toPrecision(4));

// ---- Pictures: a figure has the captions and URLs of its steps ----------------------------------

function setFilm(figure, first) {
  const steps = dataOf(figure);
  if (steps.length < 2) return;
  figure.querySelector("input")?.remove();
  const slider = make(
    "input", figure, {type: "range", max: steps.length - 1, "aria-label": "step"});
  const show = () => {
    const [caption, url] = steps[slider.value];
    figure.querySelector("img").src = url;
    figure.querySelector("figcaption").textContent = caption;
  };
  slider.addEventListener("input", show);
  slider.value = first ?? steps.length - 1;
  show();
}

// ---- Charts: a figure has its curves ------------------------------------------------------------

const WIDTH = 1000, HEIGHT = 520, LEFT = 76, RIGHT = 16, TOP = 12, BOTTOM = 34;

function ticks(low, high, isLog, integer) {
  if (isLog) {
    const found = [], decades = Math.log10(high / low);
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const digit of decades > 3 ? [1] : [1, 2, 5]) found.push(digit * 10 ** power);
    const inside = found.filter((x) => x >= low && x <= high);
    if (inside.length > 1) return inside;
  }
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const nice = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const step = Math.max(nice, integer ? 1 : 0), found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

// Draws the part of a chart between two steps; returns the curves in it, and the step of a place.
function draw(box, chart, hidden, [first, last]) {
  box.replaceChildren();
  const within = (points) => points.filter(([x]) => x >= first && x <= last);
  const curves = chart.curves.filter((_, number) => !hidden.has(number));
  const inView = curves.map((curve) => within(curve.points));
  const band = within((curves.length && chart.band) || []);
  const values = [...inView.flat(), ...band].flatMap(([, ...ys]) => ys);
  if (!values.length) return null;
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const isLog = chart.is_log && low > 0, scale = isLog ? Math.log : (x) => x;
  if (low === high) {
    low -= isLog ? low / 2 : Math.abs(low) / 10 || 1;
    high += Math.abs(high) / 10 || 1;
  } else if (!isLog)
    [low, high] = [low - (high - low) / 20, high + (high - low) / 20];
  const px = (x) => LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT);
  const py = (y) => HEIGHT - BOTTOM - (scale(y) - scale(low)) / (scale(high) - scale(low)) *
    (HEIGHT - TOP - BOTTOM);
  const path = (points) => "M" + points.map(([x, y]) => [px(x), py(y)]).join("L");
  for (const y of ticks(low, high, isLog, false)) {
    const at = py(y);
    make("line", box, {x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, stroke: "var(--line)"});
    make("text", box, {x: LEFT - 8, y: at + 5, "text-anchor": "end"}, shown(y));
  }
  for (const x of ticks(first, last, false, chart.integer))
    make("text", box, {x: px(x), y: HEIGHT - 10, "text-anchor": "middle"}, shown(x));
  if (band.length) {
    const above = band.map(([x, , y]) => [x, y]).reverse();
    const d = path([...band, ...above]) + "Z";
    make("path", box, {fill: "var(--ink)", "fill-opacity": 0.15, d});
  }
  curves.forEach((curve, i) => {
    const lines = curve.smooth ? [[inView[i], 0.3], [within(curve.smooth), 1]] : [[inView[i], 1]];
    for (const [points, opacity] of lines.filter(([points]) => points.length))
      make("path", box, {
        d: path(points) + (points.length === 1 ? "h0.01" : ""), fill: "none", stroke: curve.color,
        "stroke-width": 2, "stroke-opacity": opacity, "stroke-dasharray": curve.dash,
        "stroke-linecap": "round"});
  });
  const at = (x) => first + (x - LEFT) / (WIDTH - LEFT - RIGHT) * (last - first);
  return {curves, inView, at: (x) => Math.min(Math.max(at(x), first), last)};
}

function setChart(figure) {
  const chart = dataOf(figure), hidden = new Set(), whole = chart.span;
  let view = whole, start = null, drawn = null;
  figure.querySelectorAll("svg:not(.key), .legend").forEach((node) => node.remove());
  const names = make("p", figure, {class: "legend"});
  const box = make("svg", figure, {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "large"});
  const line = make("p", figure, {class: "reading"});
  const again = () => { drawn = draw(box, chart, hidden, view); };
  const help = () => { line.textContent = "drag to zoom in, double-click to see all"; };
  const place = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY);
    return drawn ? drawn.at(point.matrixTransform(box.getScreenCTM().inverse()).x) : view[0];
  };
  if (chart.curves.length > 1)
    chart.curves.forEach((curve, number) => {
      const button = make("button", names, {style: `--ink: ${curve.color}`}, curve.label);
      button.addEventListener("click", () => {
        button.classList.toggle("off");
        hidden.has(number) ? hidden.delete(number) : hidden.add(number);
        again();
      });
    });
  box.addEventListener("pointerdown", (event) => {
    start = place(event);
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointerup", (event) => {
    const [low, high] = [start, place(event)].sort((a, b) => a - b);
    start = null;
    if (high - low > (view[1] - view[0]) / 50) {
      view = [low, high];
      again();
    }
  });
  box.addEventListener("dblclick", () => { view = whole; again(); });
  box.addEventListener("pointerleave", help);
  box.addEventListener("pointermove", (event) => {
    const x = place(event);
    if (start !== null) {
      line.textContent = `${shown(start)} to ${shown(x)}`;
      return;
    }
    line.textContent = (drawn?.inView || []).map((points, i) => {
      if (!points.length) return "";
      const [at, y] = points.reduce((a, b) => Math.abs(a[0] - x) <= Math.abs(b[0] - x) ? a : b);
      return `${drawn.curves[i].label} ${shown(at)}: ${shown(y)}`;
    }).filter(Boolean).join("   ");
  });
  again();
  help();
}

// ---- The page -----------------------------------------------------------------------------------

const dialog = make("dialog", document.body);
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

for (const figure of document.querySelectorAll("figure")) {
  const image = figure.querySelector("img, svg:not(.key)");
  const hasData = figure.querySelector("script"), isChart = hasData && image?.tagName === "svg";
  if (!image || (image.tagName === "svg" && !hasData)) continue;
  if (hasData && !isChart) setFilm(figure);
  image.classList.add("opens");
  image.addEventListener("click", () => {
    const large = figure.cloneNode(true);
    dialog.replaceChildren(large);
    const close = make("button", dialog, {class: "close"}, "close");
    close.addEventListener("click", () => dialog.close());
    dialog.showModal();
    if (isChart) setChart(large);
    else if (hasData) setFilm(large, figure.querySelector("input")?.value);
  });
}

for (const entry of document.querySelectorAll(".panels > .legend [data-curve]"))
  entry.addEventListener("click", () => {
    const isOff = entry.classList.toggle("off");
    for (const curve of document.querySelectorAll(`.panels .curve${entry.dataset.curve}`))
      curve.style.display = isOff ? "none" : "";
  });
