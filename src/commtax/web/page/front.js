// Plans as points, one kind of mark for each series; the line joins those that nothing beats in both. A click shows a plan's step.

import { el, roving, svg } from "./dom.js";
import { niceStep, shortRate } from "./format.js";
import { formulaTip, tip } from "./tip.js";

const PAD = { left: 58, right: 18, top: 14, bottom: 44 };
// Around a centre, alike in area: colour is never the only difference.
const MARKS = ["M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z", "M-5.5 -5.5h11v11h-11z", "M0 -7l7 12h-14z", "M0 7l7 -12h-14z", "M-7 -2.5h4.5v-4.5h5v4.5h4.5v5h-4.5v4.5h-5v-4.5h-4.5z", "M-7 0l7 -4l7 4l-7 4z"];
const STAR = "M0 -10l10 10l-10 10l-10 -10z";

function reach(values) {
  const high = Math.max(...values);
  const low = Math.min(...values);
  const room = (high - low || high || 1) * 0.06;
  return [Math.max(0, low - room), high + room];
}

function markOf(kind, best) {
  const at = kind % MARKS.length;
  return svg("path", { d: best ? STAR : MARKS[at], class: `plan-mark series-${at}${best ? " best" : ""}` });
}

function frame(picture, scale, plan) {
  const { width, height, x, y, xs, ys } = scale;
  const stepX = niceStep(xs[1] - xs[0], width / 110);
  for (let value = Math.ceil(xs[0] / stepX) * stepX; value <= xs[1]; value += stepX) {
    picture.append(svg("line", { x1: x(value), x2: x(value), y1: PAD.top, y2: height - PAD.bottom, class: "grid-line" }), svg("text", { x: x(value), y: height - PAD.bottom + 17, class: "tick", "text-anchor": "middle" }, shortRate(value)));
  }
  const stepY = Math.max(plan.front.every((point) => Number.isInteger(point.y)) ? 1 : 0, niceStep(ys[1] - ys[0], height / 60)); // no half GPUs
  for (let value = Math.ceil(ys[0] / stepY) * stepY; value <= ys[1]; value += stepY) {
    picture.append(svg("line", { x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value), class: "grid-line" }), svg("text", { x: PAD.left - 8, y: y(value) + 4, class: "tick", "text-anchor": "end" }, shortRate(value)));
  }
  picture.append(
    svg("text", { x: width - PAD.right, y: height - 6, class: "axis-title", "text-anchor": "end" }, plan.x_title),
    svg("text", { x: 14, y: PAD.top, class: "axis-title", "text-anchor": "end", transform: `rotate(-90 14 ${PAD.top})` }, plan.y_title),
  );
  for (const mark of plan.marks.filter((one) => one.axis === "x" && one.value > xs[0] && one.value < xs[1])) {
    picture.append(svg("line", { x1: x(mark.value), x2: x(mark.value), y1: PAD.top, y2: height - PAD.bottom, class: "limit-line" }), svg("text", { x: x(mark.value) + 5, y: height - PAD.bottom - 8, class: "tick" }, mark.text));
  }
}

function pointMark(point, i, kind, scale, load) {
  const usable = point.patch && load;
  const at = `translate(${scale.x(point.x)} ${scale.y(point.y)})`;
  const group = svg("g", { class: "plan", role: "button", transform: at, "data-k": `plan-${i}`, "aria-label": `${point.best ? "recommended, " : ""}${point.name}: ${point.text}`, "aria-disabled": usable ? null : "true" }, svg("circle", { r: 13, class: "plan-target" }), markOf(kind, point.best));
  if (usable) {
    group.addEventListener("click", () => load(point.patch));
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      load(point.patch);
    });
  }
  return tip(group, () => formulaTip(point.name, [point.text, usable ? "Click to see its step." : null]));
}

function joined(points, scale) {
  const along = points.filter((point) => point.joined);
  if (along.length < 2) return null;
  return svg("polyline", { points: along.map((point) => `${scale.x(point.x)},${scale.y(point.y)}`).join(" "), class: "front-line" });
}

function frontLegend(plan, names, lines) {
  const sample = (kind, best) => svg("svg", { width: 22, height: 22, viewBox: "-11 -11 22 22", "aria-hidden": "true" }, markOf(kind, best));
  const line = lines ? el("li", null, el("span", { class: "key-front", "aria-hidden": "true" }), "no plan is better in both") : null;
  return el("ul", { class: "legend" }, plan.front.some((point) => point.best) ? el("li", null, sample(0, true), "recommended") : null, names.map((name, i) => (name ? el("li", null, sample(i, false), name) : null)), line);
}

// One list of points; a line for each series that has a front of its own, or one for all.
export function frontPicture(plan, width, load, several) {
  const front = [...plan.front].sort((a, b) => a.x - b.x);
  const names = [...new Set(front.map((point) => point.series))];
  const height = Math.round(Math.min(380, Math.max(260, width * 0.6)));
  const xs = reach([...front.map((point) => point.x), ...plan.marks.map((mark) => mark.value)]);
  const ys = reach(front.map((point) => point.y));
  const x = (value) => PAD.left + ((value - xs[0]) / (xs[1] - xs[0])) * (width - PAD.left - PAD.right);
  const y = (value) => height - PAD.bottom - ((value - ys[0]) / (ys[1] - ys[0])) * (height - PAD.top - PAD.bottom);
  const scale = { width, height, x, y, xs, ys };
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${plan.y_title} against ${plan.x_title}: ${front.length} plans. Arrow keys walk through them, Enter shows one.` });
  frame(picture, scale, plan);
  const groups = several ? names.map((name) => front.filter((point) => point.series === name)) : [front];
  const lines = groups.map((points) => joined(points, scale)).filter(Boolean);
  const above = front.filter((point) => point.best).map((point) => svg("g", { transform: `translate(${x(point.x)} ${y(point.y)})`, "aria-hidden": "true", "pointer-events": "none" }, markOf(0, true))); // in front of its neighbours; keys walk through the others
  picture.append(...lines, ...front.map((point, i) => pointMark(point, i, names.indexOf(point.series), scale, load)), ...above);
  return { picture, legend: frontLegend(plan, names, lines.length > 0), walk: (host) => roving(host, ".plan") };
}
