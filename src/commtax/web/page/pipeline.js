// The pipeline grid: a row a stage, a box a microbatch, the bubble hatched in the hot colour.

import { el, paint, svg } from "./dom.js";
import { percent } from "./format.js";

const ROW = 26;
const NAME = 58;

export function drawPipeline(host, grid) {
  if (!grid.bars?.length) {
    paint(host, el("p", { class: "quiet" }, grid.note ?? "One stage: no pipeline, no bubble."));
    return;
  }
  const total = grid.total ?? Math.max(...grid.bars.map((bar) => bar.end));
  const narrowest = Math.min(...grid.bars.map((bar) => bar.end - bar.start));
  // Boxes stay wide enough to tell apart; a long grid scrolls inside its frame.
  const width = Math.max(host.clientWidth, NAME + Math.min(4000, (total / narrowest) * 5));
  const height = grid.lanes.length * ROW + 4;
  const x = (time) => NAME + (time / total) * (width - NAME - 2);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Pipeline of ${grid.lanes.length} stages; bubble ${percent(grid.bubble_fraction)}` });
  grid.lanes.forEach((lane, stage) => {
    picture.append(svg("text", { x: 0, y: stage * ROW + 18, class: "tick" }, String(lane)), svg("rect", { x: NAME, y: stage * ROW + 2, width: width - NAME - 2, height: ROW - 4, class: "bubble" }));
  });
  for (const bar of grid.bars) {
    const left = x(bar.start);
    const wide = Math.max(0.8, x(bar.end) - left - 0.8);
    const kind = String(bar.kind)[0].toLowerCase();
    picture.append(svg("rect", { x: left, y: bar.stage * ROW + 2, width: wide, height: ROW - 4, class: `stage-${kind}` }, svg("title", null, `stage ${bar.stage}: ${bar.kind} of microbatch ${bar.microbatch}`)));
    if (wide > 14) picture.append(svg("text", { x: left + wide / 2, y: bar.stage * ROW + 18, class: `stage-text-${kind}`, "text-anchor": "middle" }, String(bar.microbatch)));
  }
  const key = (name, text) => el("li", null, svg("svg", { width: 26, height: 16, "aria-hidden": "true" }, svg("rect", { width: 26, height: 16, rx: 2, class: name })), text);
  const kinds = new Set(grid.bars.map((bar) => String(bar.kind)[0].toLowerCase()));
  paint(
    host,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pipeline grid" }, picture),
    el("ul", { class: "legend" }, key("stage-f", "forward"), key("stage-b", "backward"), kinds.has("w") ? key("stage-w", "weight gradient") : null, key("bubble", `idle: bubble ${percent(grid.bubble_fraction)}`)),
    grid.formula ? el("p", null, el("code", { class: "formula" }, grid.formula)) : null,
    grid.note ? el("p", { class: "quiet" }, grid.note) : null,
  );
}
