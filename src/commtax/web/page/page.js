// The page: an address becomes a question, its answer a picture. No figure is computed here.

import { byId, el, paint } from "./dom.js";
import { Refused, get, latest } from "./api.js";
import { begin, choose, onState, query, replaceAll, state } from "./state.js";
import { buildInputs, syncInputs, syncNames } from "./inputs.js";
import { drawWaterfall, waterfallLegend } from "./waterfall.js";
import { axesTable, billTable, lessonCards } from "./tables.js";
import { changeButtons, commandList, figures, memoryBars } from "./panels.js";
import { heatMap } from "./maps.js";
import { drawPlans } from "./plans.js";
import { drawWorth } from "./worth.js";
import { drawPipeline } from "./pipeline.js";
import { buildTour, syncTour } from "./tour.js";
import { hide } from "./tip.js";
import { percent, seconds } from "./format.js";

const PAUSE_MS = 300;
const START = { m: "llama-3.1-70b", c: "8xh100-sxm", tp: "8", b: "32", s: "2048" }; // a bare address shows something worth seeing
const shown = {}; // the last good answers: kept on a refusal, drawn again when the window's width changes

function complain(answer) {
  const box = byId("problem");
  box.hidden = false;
  const words = [el("strong", null, answer.error)];
  if (answer.rule && !String(answer.error).includes(answer.rule)) words.push(el("p", null, answer.rule));
  const button = (text, work) => words.push(el("button", { type: "button", onclick: work }, text));
  const key = answer.argument;
  for (const value of (key && answer.nearest) || []) button(`Use ${/^[tpdec]p$/.test(key) ? key.toUpperCase() : key} ${value}`, () => choose({ [key]: value }));
  if (answer.instead && !answer.nearest?.length) button(`Use ${answer.instead.text}`, () => choose(answer.instead.patch));
  if (answer.argument in state() && !answer.nearest?.length && !answer.instead) button(`Leave ${key} out`, () => choose({ [key]: null }));
  if (answer.argument === "server") button("Try again", () => ask()); // too many questions at a time: this one is as good as ever
  // What was never asked (a text that is no JSON) leaves nothing to undo.
  else if (answer.rule) button(...(shown.view ? ["Undo", () => history.back()] : ["Start again", () => replaceAll(START)]));
  paint(box, words);
}

function drawView(view) {
  shown.view = view;
  document.documentElement.classList.remove("empty");
  byId("problem").hidden = true;
  hide();
  document.title = `${view.title} · commtax`;
  byId("title").textContent = view.title;
  byId("the-sentence").textContent = view.sentence;
  paint(byId("figures"), figures(view));
  byId("peek").textContent = `${seconds(view.totals.step_s)} · ${percent(view.totals.comm_fraction, 0)} exposed · ${view.totals.fits === false ? "does not fit" : "fits"}`;
  drawWaterfall(byId("layer"), view.layer);
  byId("layer-title").textContent = `One layer, ${seconds(view.layer.length_s)}, to scale`;
  byId("layer-note").textContent = view.layer.note ?? "";
  paint(byId("axes-body"), axesTable(view));
  paint(byId("bill-body"), billTable(view, byId("data") && !shown.whys ? null : explainLine));
  const live = !byId("data");
  paint(byId("changes-body"), changeButtons(view.changes, live ? choose : null));
  paint(byId("memory-body"), memoryBars(view.memory));
  paint(byId("commands-body"), commandList(view.commands));
  byId("lesson").hidden = !view.lesson?.applies || !view.lesson.rows.length;
  if (!byId("lesson").hidden) paint(byId("lesson-body"), lessonCards(view.lesson));
  paint(byId("notes"), (view.notes ?? []).map((note) => el("li", null, note)));
}

// Of the step that is shown: from the file where the page is one, else asked for.
function explainLine(number) {
  return shown.whys ? shown.whys[number - 1] : get("why", `${shown.search}${shown.search ? "&" : ""}line=${number}`);
}

function drawGrids(grids, load) {
  paint(byId("grids-body"), heatMap(grids["tp-link"], "TP × link", load), heatMap(grids["tp-batch"], "TP × batch", load));
}

// Which serving plans are best does not depend on the plan that is shown: moving it asks for no new search.
function planQuery(search) {
  const keys = Object.fromEntries(new URLSearchParams(search));
  if (keys.ph !== "train") for (const key of ["tp", "pp", "dp", "ep", "cp", "b", "s", "n", "z", "rc", "sch", "v", "sp", "eg", "lib", "as"]) delete keys[key];
  return query(keys);
}

// Plans are searched with the engine's usual ways: one that is loaded has them too, or its step would not be the one that was told.
function loadPlan(patch) {
  choose({ sp: null, eg: null, lib: null, as: null, ...patch });
}

// The slow pictures. Each is asked for after a pause, when it is near the window, and only for the state that is shown.
const pictures = [
  {
    id: "grids",
    async fetch(search, signal) {
      const ask = (grid) => get("compare", `${search}${search ? "&" : ""}grid=${grid}`, signal);
      return { "tp-link": await ask("tp-link"), "tp-batch": await ask("tp-batch") };
    },
    draw: (grids) => drawGrids(grids, choose),
  },
  { id: "worth", fetch: (search, signal) => get("worth", search, signal), draw: (worth) => drawWorth(byId("worth-body"), worth, choose) },
  { id: "pipeline", fetch: (search, signal) => get("pipeline", search, signal), draw: (grid) => drawPipeline(byId("pipeline-body"), grid) },
  { id: "plans", fetch: (search, signal) => get("plan", planQuery(search), signal), draw: (plan) => drawPlans(byId("plans-body"), plan, loadPlan) },
];
let pause = 0;
let dropped = new AbortController();

async function drawSlow(picture, search, signal) {
  if (!picture.near || picture.asked === search) return;
  picture.asked = search;
  const section = byId(picture.id);
  section.setAttribute("aria-busy", "true");
  try {
    const answer = await picture.fetch(search, signal);
    shown[picture.id] = answer;
    picture.draw(answer);
    section.removeAttribute("aria-busy");
  } catch (problem) {
    if (picture.asked === search) picture.asked = null;
    if (problem.name === "AbortError") return;
    section.removeAttribute("aria-busy");
    if (!(problem instanceof Refused)) throw problem;
    const again = problem.answer.argument === "server" ? el("button", { type: "button", onclick: drawSoon }, "Try again") : null;
    paint(byId(`${picture.id}-body`), el("p", { class: "quiet" }, problem.message), again);
  }
}

function drawSoon() {
  clearTimeout(pause);
  dropped.abort();
  const stop = (dropped = new AbortController());
  const search = query();
  pause = setTimeout(async () => {
    for (const picture of pictures) if (!stop.signal.aborted) await drawSlow(picture, search, stop.signal);
  }, PAUSE_MS);
}

const ask = latest(async () => {
  const search = query();
  try {
    const view = await get("view", search);
    shown.search = search;
    drawView(view);
    markPreset();
    if (search === query()) syncInputs(view); // else a newer move is under way, and its control stands where it should
    syncTour(view);
    document.documentElement.dataset.shown = search;
    drawSoon();
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    complain(problem.answer);
    for (const picture of pictures) byId(picture.id).removeAttribute("aria-busy"); // they show the last good answer, and no other is coming
    if (!shown.view) syncNames(state());
    document.documentElement.dataset.shown = search;
  }
});

function buildTheme() {
  const root = document.documentElement;
  const remember = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("theme", value);
      return localStorage.getItem("theme");
    } catch {
      return null; // a page opened from a file may not store
    }
  };
  const kept = remember();
  if (kept) root.dataset.theme = kept;
  byId("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remember(root.dataset.theme);
  });
}

function drawAgain() {
  if (shown.view) drawWaterfall(byId("layer"), shown.view.layer);
  if (shown.plans) drawPlans(byId("plans-body"), shown.plans, byId("data") ? null : loadPlan);
  if (shown.pipeline) drawPipeline(byId("pipeline-body"), shown.pipeline);
}

function watchWidth() {
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    requestAnimationFrame(drawAgain);
  });
}

// A file made by `--html`: everything is in it, nothing can be asked.
function showFile(data) {
  document.documentElement.classList.add("offline");
  document.documentElement.classList.remove("empty");
  for (const id of ["inputs", "presets-nav", "start-tour", "limits"]) byId(id).hidden = true;
  shown.whys = data.whys;
  if (data.view) drawView(data.view);
  else for (const id of ["sentence", "waterfall", "axes", "bill", "changes", "memory", "commands", "lesson"]) byId(id).hidden = true;
  if (data.grids) drawGrids(data.grids, null);
  if (data.pipeline) drawPipeline(byId("pipeline-body"), (shown.pipeline = data.pipeline));
  if (data.plan) drawPlans(byId("plans-body"), (shown.plans = data.plan), null);
  if (data.worth) drawWorth(byId("worth-body"), data.worth, null);
  if (data.kind === "plan") byId("plans").parentNode.prepend(byId("plans"));
  byId("grids").hidden = !data.grids;
  byId("pipeline").hidden = !data.pipeline;
  byId("plans").hidden = !data.plan;
  byId("worth").hidden = !data.worth;
}

function markPreset() {
  for (const button of byId("presets").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.query === sorted(state())));
}

function sorted(keys) {
  return query(Object.fromEntries(Object.entries(keys).sort()));
}

async function serve() {
  const catalog = await get("catalog", "");
  buildInputs(catalog, complain);
  buildTour(catalog);
  paint(byId("presets"), catalog.presets.map((preset) => el("li", null, el("button", { type: "button", "data-query": sorted(preset.state), onclick: () => replaceAll(preset.state) }, preset.name))));
  const seen = new IntersectionObserver((entries) => {
    const came = entries.filter((entry) => {
      const picture = pictures.find((other) => other.id === entry.target.id);
      picture.near = entry.isIntersecting;
      return picture.near && picture.asked !== query();
    });
    if (shown.view && came.length) drawSoon();
  }, { rootMargin: "600px" });
  for (const picture of pictures) seen.observe(byId(picture.id));
  onState(() => {
    dropped.abort(); // pictures of the state before: the server stops computing what it is told nobody waits for
    ask();
  });
  if (!query()) begin(START);
  await ask();
}

paint(byId("layer-legend"), waterfallLegend());
buildTheme();
watchWidth();
if (byId("data")) showFile(JSON.parse(byId("data").textContent));
else serve().catch((problem) => complain({ error: problem.message }));
