// Requests at a rate: latency against rate with the knee, percentiles, gaps between tokens, the steps of one engine.

import { gapChart, latencyChart } from "./charts.js";
import { byId, el, figure, paint, roving, svg, tableBox } from "./dom.js";
import { exportBar } from "./export.js";
import { rate, seconds } from "./format.js";
import { commandList } from "./panels.js";
import { state } from "./state.js";
import { stepTimeline } from "./scrub.js";

const LIMITS = { "time to first token": "ttft", "time per token": "tpot" }; // keys of the state
const STATISTICS = ["mean", "p50", "p90", "p95", "p99"];

function percentiles(times) {
  const head = el("tr", null, ["", ...STATISTICS].map((name) => el("th", { scope: "col", class: name ? "number" : null }, name)));
  const rows = times.map((row) => el("tr", null, el("th", { scope: "row" }, row.name), STATISTICS.map((name) => el("td", { class: "number", "data-label": name }, seconds(row[name])))));
  return tableBox("Times of requests at this rate", "folds percentiles", head, rows);
}

// The table that is saved: a row for each rate.
function rateTable(answer) {
  const columns = answer.curves.map((curve) => ({ key: curve.key, range: false, kind: "seconds" }));
  const rows = answer.rates.map((value, i) => ({ place: i + 1, name: `${value} requests/s`, cluster: answer.cluster, roles: [value === answer.knee ? "knee" : "", answer.overloaded[i] ? "overloaded" : ""].filter(Boolean), values: Object.fromEntries(answer.curves.map((curve) => [curve.key, curve.values[i]])), ranges: {} }));
  return { columns, rows };
}

function panelFigure(answer, panel, width, choose) {
  const curves = answer.curves.filter((curve) => curve.panel === panel);
  const marks = [{ value: answer.capacity_requests_per_s, text: `capacity ${rate(answer.capacity_requests_per_s)}`, class: "limit-line" }];
  if (answer.knee) marks.push({ value: answer.knee, text: `knee ${rate(answer.knee)}`, class: "knee-line" });
  const legend = el("ul", { class: "legend" }, curves.map((curve, i) => el("li", null, svg("svg", { width: 28, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 28, y1: 4, y2: 4, class: `chart-line series-${i} dash-${i}` })), curve.name)));
  const host = el("div", { class: "chart" }, latencyChart(panel, answer.rates, curves, marks, Number(state()[LIMITS[panel]] ?? 0) / 1000, answer.detail.rate, width, choose));
  roving(host, ".rate-band");
  return el("figure", { class: "front" }, el("figcaption", null, `${panel[0].toUpperCase()}${panel.slice(1)} against rate`), legend, host);
}

function trafficFigures(answer) {
  const times = Object.fromEntries(answer.detail.times.map((row) => [row.metric, row]));
  return el(
    "dl",
    { class: "figures" },
    figure("capacity", rate(answer.capacity_requests_per_s), "requests/s"),
    figure("shown here", rate(answer.detail.rate), answer.detail.rate === answer.knee ? "requests/s, the knee" : "requests/s"),
    figure("TTFT", seconds(times.ttft.mean), `p95 ${seconds(times.ttft.p95)}`),
    figure("TPOT", seconds(times.tpot.mean), `p95 ${seconds(times.tpot.p95)}`),
    figure("whole request", seconds(times.e2e.mean), `p95 ${seconds(times.e2e.p95)}`),
  );
}

export function drawTraffic(host, answer, choose) {
  byId("traffic-title").textContent = `${answer.model} on ${answer.cluster}: requests at a rate`;
  const [, first, more] = /^(.*?\.)(?: (.*))?$/.exec(answer.sentence); // the first sentence is the answer
  const panels = [...new Set(answer.curves.map((curve) => curve.panel))];
  const wide = Math.max(300, host.clientWidth);
  const each = wide > 900 ? (wide - 24) / 2 : wide;
  const figures = panels.map((panel) => panelFigure(answer, panel, each, choose));
  const steps = stepTimeline(answer.detail.timeline);
  const gaps = answer.detail.histogram.shares.length ? gapChart(answer.detail.histogram, wide) : null;
  paint(
    host,
    el("div", { class: "answer" }, el("p", { class: "plan-sentence" }, first), more ? el("p", null, more) : null, trafficFigures(answer)),
    el("div", { class: "heading-row" }, el("h3", null, "Latency against rate ", el("span", { class: "quiet small" }, "click a rate to see it in detail")), exportBar("commtax-traffic", { table: rateTable(answer), answer, picture: () => host.querySelector("figure svg[role=group]") })),
    el("div", { class: "panels" }, figures),
    el("h3", null, answer.detail.sentence),
    percentiles(answer.detail.times),
    el("ul", { class: "why-lines" }, answer.detail.words.map((line) => el("li", null, line))),
    gaps ? el("figure", { class: "front" }, el("figcaption", null, "Gaps between tokens"), gaps) : null,
    el("h3", null, `Steps of ${answer.detail.timeline.engine}`),
    steps.node,
    commandList({ commtax: answer.command }),
  );
  steps.draw();
}
