// The Pareto front of plans: what a user gets against what a GPU gives; a click loads the plan.

import { el, paint, roving, svg } from "./dom.js";
import { niceStep, shortRate } from "./format.js";
import { formulaTip, tip } from "./tip.js";

const PAD = { left: 58, right: 18, top: 14, bottom: 44 };

function reach(values) {
  const high = Math.max(...values);
  const low = Math.min(...values);
  const room = (high - low || high || 1) * 0.06;
  return [Math.max(0, low - room), high + room];
}

function planWords(plan) {
  return [el("p", { class: "plan-sentence" }, plan.sentence ?? "No plan holds these limits."), el("ul", { class: "why-lines quiet" }, (plan.why ?? []).slice(1).map((line) => el("li", null, line)))];
}

function rejected(plan) {
  if (!plan.rejected?.length) return null;
  const rows = plan.rejected.map((row) => el("tr", null, el("th", { scope: "row" }, row.family), el("td", null, row.reason)));
  return el("details", { class: "rejected" }, el("summary", null, "Why the others lost"), el("div", { class: "scroll" }, el("table", null, el("tbody", null, rows))));
}

export function drawPlans(host, plan, load) {
  const front = plan.front ?? [];
  if (!front.length) {
    paint(host, planWords(plan), rejected(plan));
    return;
  }
  const width = Math.max(300, host.clientWidth);
  const height = Math.min(380, Math.max(260, width * 0.45));
  const [x0, x1] = reach(front.map((point) => point.x));
  const [y0, y1] = reach(front.map((point) => point.y));
  const x = (value) => PAD.left + ((value - x0) / (x1 - x0)) * (width - PAD.left - PAD.right);
  const y = (value) => height - PAD.bottom - ((value - y0) / (y1 - y0)) * (height - PAD.top - PAD.bottom);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Pareto front of ${front.length} plans. Arrow keys walk through them, Enter loads one.` });
  const stepX = niceStep(x1 - x0, width / 110);
  for (let value = Math.ceil(x0 / stepX) * stepX; value <= x1; value += stepX) {
    picture.append(svg("line", { x1: x(value), x2: x(value), y1: PAD.top, y2: height - PAD.bottom, class: "grid-line" }), svg("text", { x: x(value), y: height - PAD.bottom + 17, class: "tick", "text-anchor": "middle" }, shortRate(value)));
  }
  const stepY = niceStep(y1 - y0, height / 60);
  for (let value = Math.ceil(y0 / stepY) * stepY; value <= y1; value += stepY) {
    picture.append(svg("line", { x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value), class: "grid-line" }), svg("text", { x: PAD.left - 8, y: y(value) + 4, class: "tick", "text-anchor": "end" }, shortRate(value)));
  }
  picture.append(
    svg("text", { x: width - PAD.right, y: height - 6, class: "axis-title", "text-anchor": "end" }, plan.x_title ?? "tokens/s per user"),
    svg("text", { x: 14, y: PAD.top, class: "axis-title", "text-anchor": "end", transform: `rotate(-90 14 ${PAD.top})` }, plan.y_title ?? "tokens/s per GPU"),
  );
  const points = [...front].sort((a, b) => a.x - b.x);
  const one = (sign) => points.every((point, i) => !i || sign * point.y >= sign * points[i - 1].y);
  if (one(1) || one(-1)) picture.append(svg("polyline", { points: points.map((point) => `${x(point.x)},${y(point.y)}`).join(" "), class: "front-line" }));
  points.forEach((point, i) => {
    const usable = point.patch && load;
    const mark = point.best
      ? svg("path", { d: `M${x(point.x)} ${y(point.y) - 9}l9 9l-9 9l-9 -9z`, class: "plan-mark best" })
      : svg("circle", { cx: x(point.x), cy: y(point.y), r: 6, class: usable ? "plan-mark" : "plan-mark fixed" });
    const group = svg("g", { class: "plan", role: "button", "data-k": `plan-${i}`, "aria-label": `${point.name}: ${point.text}`, "aria-disabled": usable ? null : "true" }, svg("circle", { cx: x(point.x), cy: y(point.y), r: 13, class: "plan-target" }), mark);
    if (usable) {
      group.addEventListener("click", () => load(point.patch));
      group.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        load(point.patch);
      });
    }
    picture.append(tip(group, () => formulaTip(point.name, [point.text, usable ? "Click to load." : null], null, null)));
  });
  paint(host, planWords(plan), picture, rejected(plan));
  roving(host, ".plan");
}
