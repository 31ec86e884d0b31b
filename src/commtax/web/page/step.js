// One step: its sentence and figures, one layer to scale, the bill, what-ifs, memory. Drawn when its view is seen.

import { byId, el, paint } from "./dom.js";
import { percent, seconds } from "./format.js";
import { heatMap } from "./maps.js";
import { changeButtons, commandList, figures, memoryBars } from "./panels.js";
import { axesTable, billTable, lessonCards } from "./tables.js";
import { hide } from "./tip.js";
import { drawWaterfall } from "./waterfall.js";

// What was tried out beside the step: a glance has none of it, and what is there stays until the whole view comes.
function drawTried(view, tools) {
  byId("the-sentence").textContent = view.sentence;
  paint(byId("changes-body"), changeButtons(view.changes, tools.choose));
  paint(byId("commands-body"), commandList(view.commands));
}

export function drawStep(view, tools) {
  hide();
  paint(byId("figures"), figures(view));
  byId("peek").textContent = `${seconds(view.totals.step_s)} · ${percent(view.totals.comm_fraction, 0)} exposed · ${view.totals.fits === false ? "does not fit" : "fits"}`;
  drawWaterfall(byId("layer"), view.layer);
  byId("layer-title").textContent = `One layer, ${seconds(view.layer.length_s)}, to scale`;
  byId("layer-note").textContent = view.layer.note ?? "";
  paint(byId("axes-body"), axesTable(view));
  paint(byId("bill-body"), billTable(view, tools.explain));
  paint(byId("memory-body"), memoryBars(view.memory));
  byId("pipeline").hidden = view.state.ph !== "train" || Number(view.state.pp ?? 1) < 2;
  byId("lesson").hidden = !view.lesson?.applies || !view.lesson.rows.length;
  if (!byId("lesson").hidden) paint(byId("lesson-body"), lessonCards(view.lesson));
  paint(byId("notes"), (view.notes ?? []).map((note) => el("li", null, note)));
  for (const id of ["the-sentence", "changes"]) byId(id).classList.toggle("older", Boolean(view.brief));
  if (!view.brief) drawTried(view, tools);
}

export function drawGrids(grids, load) {
  paint(byId("grids-body"), heatMap(grids["tp-link"], "TP × link", load), heatMap(grids["tp-batch"], "TP × batch", load));
}
