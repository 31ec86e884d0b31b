// Pictures of figures: lines over a common axis, and columns. What they show was computed by the server.

import { svg } from "./dom.js";
import { niceStep, percent, seconds, shortRate } from "./format.js";
import { formulaTip, tip } from "./tip.js";

const EDGE = { left: 62, right: 16, top: 16, bottom: 42 };

function canvas(width, height, label) {
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
}

function ticksX(picture, width, height, x, low, high, write) {
  const step = niceStep(high - low, width / 90);
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
    picture.append(svg("line", { x1: x(value), x2: x(value), y1: EDGE.top, y2: height - EDGE.bottom, class: "grid-line" }), svg("text", { x: x(value), y: height - EDGE.bottom + 16, class: "tick", "text-anchor": "middle" }, write(value)));
  }
}

// Round values on a logarithmic axis: 50 ms, 100 ms, 200 ms.
function logTicks(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) found.push(...[1, 2, 5].map((digit) => digit * power));
  const inside = found.filter((value) => value >= low && value <= high);
  return inside.length > 7 ? inside.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9 || inside.length < 10) : inside;
}

// Times against a rate. `marks` are vertical lines; a click on a place chooses its rate.
export function latencyChart(panel, rates, curves, marks, limit, chosen, width, choose) {
  const height = 300;
  const values = curves.flatMap((curve) => curve.values.filter((value) => value !== null));
  if (!values.length) return svg("svg", { width: 0, height: 0 });
  const low = Math.min(...values, ...(limit ? [limit] : [])) * 0.85;
  const high = Math.max(...values, ...(limit ? [limit] : [])) * 1.2;
  const last = Math.max(...rates) * 1.03;
  const x = (value) => EDGE.left + (value / last) * (width - EDGE.left - EDGE.right);
  const y = (value) => height - EDGE.bottom - (Math.log(value / low) / Math.log(high / low)) * (height - EDGE.top - EDGE.bottom);
  const picture = canvas(width, height, `${panel} against requests per second. Arrow keys walk through the rates, Enter shows one in detail.`);
  ticksX(picture, width, height, x, 0, last, shortRate);
  for (const value of logTicks(low, high)) picture.append(svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value), class: "grid-line" }), svg("text", { x: EDGE.left - 7, y: y(value) + 4, class: "tick", "text-anchor": "end" }, seconds(value)));
  picture.append(svg("text", { x: width - EDGE.right, y: height - 6, class: "axis-title", "text-anchor": "end" }, "requests/s"));
  marks.filter((mark) => mark.value < last).forEach((mark, i) => picture.append(svg("line", { x1: x(mark.value), x2: x(mark.value), y1: EDGE.top, y2: height - EDGE.bottom, class: mark.class }), svg("text", { x: x(mark.value) - 5, y: EDGE.top + 10 + 14 * i, class: "tick", "text-anchor": "end" }, mark.text)));
  if (limit) picture.append(svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(limit), y2: y(limit), class: "limit-line" }), svg("text", { x: EDGE.left + 5, y: y(limit) - 5, class: "tick" }, `limit ${seconds(limit)}`));
  curves.forEach((curve, i) => {
    const places = curve.values.map((value, at) => (value === null ? null : `${x(rates[at])},${y(value)}`)).filter(Boolean);
    picture.append(svg("polyline", { points: places.join(" "), class: `chart-line series-${i} dash-${i}` }));
    curve.values.forEach((value, at) => value !== null && picture.append(svg("circle", { cx: x(rates[at]), cy: y(value), r: rates[at] === chosen ? 5 : 3, class: `chart-dot series-${i}` })));
  });
  rates.forEach((rate, at) => {
    const left = at ? (x(rates[at - 1]) + x(rate)) / 2 : x(rate) - 12;
    const right = at + 1 < rates.length ? (x(rates[at + 1]) + x(rate)) / 2 : x(rate) + 12;
    const lines = curves.map((curve) => `${curve.name} ${seconds(curve.values[at])}`);
    const band = svg("rect", { x: left, y: EDGE.top, width: right - left, height: height - EDGE.top - EDGE.bottom, class: rate === chosen ? "rate-band own" : "rate-band", role: "button", "data-k": `rate-${panel}-${rate}`, "aria-label": `${shortRate(rate)} requests/s: ${lines.join(", ")}` });
    if (choose) {
      band.addEventListener("click", () => choose(rate));
      band.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), choose(rate)));
    }
    picture.append(tip(band, () => formulaTip(`${shortRate(rate)} requests/s`, lines)));
  });
  return picture;
}

// Shares of tokens by the gap before them.
export function gapChart(histogram, width) {
  const height = 240;
  const { edges_s: edges, shares } = histogram;
  const high = Math.max(...shares, 1e-9);
  const x = (value) => EDGE.left + ((value - edges[0]) / (edges.at(-1) - edges[0])) * (width - EDGE.left - EDGE.right);
  // Shares span decades: a rare long gap must still be seen.
  const least = Math.max(1e-6, Math.min(...shares.filter((share) => share > 0)) / 2);
  const y = (share) => height - EDGE.bottom - (share > 0 ? Math.max(0, Math.log(share / least) / Math.log(high / least)) : 0) * (height - EDGE.top - EDGE.bottom - 18); // names of the marks stand above
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Gaps between tokens: ${histogram.marks.map((mark) => `${mark.name} ${seconds(mark.value)}`).join(", ")}` });
  ticksX(picture, width, height, x, edges[0], edges.at(-1), seconds);
  for (const share of logTicks(least, high)) picture.append(svg("text", { x: EDGE.left - 7, y: y(share) + 4, class: "tick", "text-anchor": "end" }, percent(share, share < 0.001 ? 3 : share < 0.01 ? 2 : share < 0.1 ? 1 : 0)));
  shares.forEach((share, i) => share > 0 && picture.append(svg("rect", { x: x(edges[i]) + 0.5, y: y(share), width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 1), height: height - EDGE.bottom - y(share), class: "gap-bar" })));
  for (const mark of histogram.marks) picture.append(svg("line", { x1: x(mark.value), x2: x(mark.value), y1: EDGE.top, y2: height - EDGE.bottom, class: "limit-line" }), svg("text", { x: x(mark.value) + 4, y: EDGE.top + 10, class: "tick" }, `${mark.name} ${seconds(mark.value)}`));
  picture.append(svg("text", { x: width - EDGE.right, y: height - 6, class: "axis-title", "text-anchor": "end" }, "gap between tokens; shares on a logarithmic scale"));
  return picture;
}
