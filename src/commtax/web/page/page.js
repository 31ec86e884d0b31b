// The page: an address becomes a question, its answer a picture. No figure is computed here.

import { byId, el, paint } from "./dom.js";
import { Refused, get, latest } from "./api.js";
import { begin, choose, follow, follows, hasPlan, onState, patched, query, replaceAll, state, withoutPlan } from "./state.js";
import { buildInputs, modelAndPlace, syncInputs, syncNames } from "./inputs.js";
import { drawWaterfall, waterfallLegend } from "./waterfall.js";
import { busyLine } from "./busy.js";
import { drawGrids, drawStep } from "./step.js";
import { buildDrop, checkAgain } from "./drop.js";
import { drawFit } from "./fit.js";
import { drawTraffic } from "./traffic.js";
import { drawPlans } from "./plans.js";
import { place, placed, syncViews } from "./views.js";
import { drawWorth } from "./worth.js";
import { drawPipeline } from "./pipeline.js";
import { buildTour, syncTour } from "./tour.js";

const PAUSE_MS = 300;
const START = { m: "llama-3.1-70b", c: "8xh100-sxm", ttft: "1000", tpot: "50" }; // a bare address shows something worth seeing
const shown = {}; // the last good answers: kept on a refusal, drawn again when the window's width changes

function complain(answer) {
  const box = byId("problem");
  box.hidden = false;
  byId("no-answer").textContent = "";
  const words = [el("strong", null, answer.error)];
  if (answer.rule && answer.rule !== answer.error) words.push(el("p", null, answer.rule));
  const button = (text, work) => words.push(el("button", { type: "button", onclick: work }, text));
  const key = answer.argument;
  const name = { c: "", m: "" }[key] ?? `${/^[tpdec]p$/.test(key) ? key.toUpperCase() : key} `;
  for (const value of (key && answer.nearest) || []) button(`Use ${name}${value}`, () => choose({ [key]: value }));
  if (answer.instead && !answer.nearest?.length) button(`Use ${answer.instead.text}`, () => choose(answer.instead.patch));
  if (answer.argument in state() && !answer.nearest?.length && !answer.instead) button(`Leave ${{ c: "this cluster", m: "this model" }[key] ?? key} out`, () => choose({ [key]: null }));
  if (answer.argument === "server") button("Try again", () => ask()); // still busy after many tries: this one is as good as ever
  // What was never asked (a text that is no JSON) leaves nothing to undo.
  else if (answer.rule) button(...(shown.view ? ["Undo", () => history.back()] : ["Start again", () => replaceAll(START)]));
  paint(box, words);
}

const live = () => !byId("data");
const stepTools = { choose, explain: explainLine };

// Of a view that is not seen only the name is told; the rest is drawn when somebody looks.
function drawView(view) {
  shown.view = view;
  shown.drawn = false;
  document.documentElement.classList.remove("empty", "unanswered");
  byId("problem").hidden = true;
  document.title = `${live() && place().name === "plan" ? modelAndPlace(view.state) : view.title} · commtax`;
  byId("title").textContent = view.title;
  drawIfSeen();
}

function drawIfSeen() {
  if (!shown.view || shown.drawn || (live() && place().name !== "step")) return;
  shown.drawn = true;
  drawStep(shown.view, live() ? stepTools : { choose: null, explain: shown.whys ? explainLine : null });
}

// Of the step that is shown: from the file where the page is one, else asked for.
function explainLine(number) {
  return shown.whys ? shown.whys[number - 1] : get("why", `${shown.search}${shown.search ? "&" : ""}line=${number}`);
}

// Which plans are best does not depend on the plan that is shown: moving it asks for no new search.
// Plans are searched with the engine's usual ways: one that is shown has them too, or its step would not be the one that was told.
const USUAL_WAYS = { eg: null, lib: null, as: null };
function planQuery(search) {
  const keys = Object.fromEntries(new URLSearchParams(search));
  return query(patched(keys.ph === "train" && !keys.gb ? keys : withoutPlan(keys), { ...USUAL_WAYS, len: null, ...(keys.ph === "prefill" ? { ph: null } : {}) }));
}

const chosen = {}; // the plan that was opened in the table, and the search that found it
const planTools = {
  open: (patch) => Object.assign(chosen, { patch, search: patch && planQuery(query()) }),
  load: (patch) => {
    planTools.open(patch);
    follow(placedPatch(patch), placed("step"), "pushState");
    onward();
  },
};

// Of another cluster's plan: that cluster is shown, and the others are compared with it.
function placedPatch(patch) {
  const { c, cs = "" } = state();
  const moved = patch.c && patch.c !== c ? { cs: cs.split(",").map((name) => (name === patch.c ? c : name)).join(",") } : {};
  return { ...USUAL_WAYS, ...patch, ...(patch.ph === "decode" && { ph: null }), ...moved };
}

// A view without a plan shows the one that was opened in the table, or that is recommended; in the table of plans there is none.
async function settlePlan() {
  const { name } = place();
  if (name === "plan" && hasPlan() && follows()) begin(withoutPlan(), location.hash);
  if (name === "plan" || hasPlan()) return;
  const search = query();
  const section = byId(pictures.find((one) => one.view === name)?.id ?? "sentence");
  const done = busyLine(section, "Searching for the plan", planQuestion(search));
  const patch = await recommendedPatch(search);
  done(Boolean(patch));
  if (!patch || search !== query()) return;
  const { ph, b, s } = state();
  follow({ ...placedPatch(patch), ...(ph === "prefill" ? { ph, b, s } : b ? { b } : {}) }); // what was asked for stays
}

async function recommendedPatch(search) {
  if (chosen.search === planQuery(search)) return chosen.patch;
  try {
    const plan = await get(planQuestion(search), planQuery(search));
    return plan.table.rows.find((row) => row.roles.includes("recommended"))?.patch ?? null;
  } catch (problem) {
    if (problem instanceof Refused) return null; // the view tells what is wrong
    throw problem;
  }
}

// Fleets for a rate; several clusters are ranked together.
function planQuestion(search) {
  const keys = new URLSearchParams(search);
  if (keys.get("ph") === "train") return "plan";
  return Number(keys.get("rps")) ? "fleet" : keys.get("cs") ? "several" : "plan";
}

// The slow pictures. Each is asked for after a pause, when it is near the window, and only for the state that is shown.
const asks = (name) => (search, signal) => get(name, search, signal);
const pictures = [
  {
    id: "grids",
    async fetch(search, signal) {
      const ask = (grid) => get("compare", `${search}${search ? "&" : ""}grid=${grid}`, signal);
      return { "tp-link": await ask("tp-link"), "tp-batch": await ask("tp-batch") };
    },
    draw: (grids) => drawGrids(grids, choose),
  },
  { id: "worth", fetch: asks("worth"), draw: (worth) => drawWorth(byId("worth-body"), worth, choose) },
  { id: "pipeline", fetch: asks("pipeline"), draw: (grid) => drawPipeline(byId("pipeline-body"), grid) },
  { id: "traffic-view", view: "traffic", verb: "Simulating", fetch: asks("traffic"), draw: (answer) => drawTraffic(byId("traffic-view-body"), answer, (rps) => choose({ rps })) },
  { id: "fit-view", view: "fit", verb: "Counting", fetch: asks("memory"), draw: (answer) => drawFit(byId("fit-view-body"), answer, choose) },
  { id: "plans", view: "plan", verb: "Searching", fetch: (search, signal) => get(planQuestion(search), planQuery(search), signal), draw: (plan) => drawPlans(byId("plans-body"), plan, planTools) },
];
let pause = 0;
let slid = -PAUSE_MS; // when a slider moved last
let dropped = new AbortController();
let early = null; // the question of the view that is seen, asked together with the step's

function askEarly(search) {
  early?.stop.abort();
  const picture = pictures.find((one) => one.view === place().name && (one.view === "plan" || hasPlan()));
  const stop = new AbortController();
  early = picture && picture.asked !== search ? { picture, search, stop, answer: picture.fetch(search, stop.signal) } : null;
  early?.answer.catch(() => {}); // it is heard where the answer is waited for
  if (early) byId(picture.id).setAttribute("aria-busy", "true"); // what it shows is of the question before
}

function answerOf(picture, search, signal) {
  if (early?.picture !== picture || early.search !== search) return picture.fetch(search, signal);
  const own = early;
  early = null; // it is given once: whoever is dropped and comes back asks again
  signal.addEventListener("abort", () => own.stop.abort());
  return own.answer;
}

async function drawSlow(picture, search, signal) {
  if (!picture.near || picture.asked === search) return;
  picture.asked = search;
  const section = byId(picture.id);
  section.setAttribute("aria-busy", "true");
  const done = picture.verb ? busyLine(section, picture.verb, picture.view === "plan" ? planQuestion(search) : picture.view) : () => {};
  try {
    const answer = await answerOf(picture, search, signal);
    shown[picture.id] = answer;
    picture.draw(answer);
    section.removeAttribute("aria-busy");
    done(true);
  } catch (problem) {
    done(false);
    if (picture.asked === search) picture.asked = null;
    if (problem.name === "AbortError") return;
    section.removeAttribute("aria-busy");
    if (!(problem instanceof Refused)) throw problem;
    paint(byId(`${picture.id}-body`), refusedWords(picture, problem));
  }
}

function refusedWords(picture, problem) {
  const busy = problem.answer.argument === "server";
  return el("div", { class: picture.verb ? "no-result" : null }, el("p", { class: picture.verb ? null : "quiet" }, problem.message), busy ? el("button", { type: "button", onclick: drawSoon }, "Try again") : null);
}

function drawSoon() {
  clearTimeout(pause);
  dropped.abort();
  const stop = (dropped = new AbortController());
  const search = query();
  pause = setTimeout(async () => {
    if (shown.view?.brief) return ask(); // the hand rests: what a glance left out comes first
    for (const picture of pictures) if (!stop.signal.aborted) await drawSlow(picture, search, stop.signal);
    return undefined;
  }, Math.max(0, slid + PAUSE_MS - performance.now()));
}

// While a slider moves a glance is enough: it is answered in a few milliseconds.
const ask = latest(async (moving = false) => {
  if (!moving) await settlePlan();
  const search = query();
  try {
    const view = moving ? { ...(await get("glance", search)), brief: true } : await get("view", search);
    shown.search = search;
    drawView(view);
    markPreset();
    if (search === query()) syncInputs(view, follows()); // else a newer move is under way, and its control stands where it should
    syncTour(view);
    if (place().name === "run" && !moving) checkAgain(fileTools);
    document.documentElement.dataset.shown = search;
    drawSoon();
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    refuse(problem);
    if (!shown.view) syncNames(state());
    document.documentElement.dataset.shown = search;
  }
});

// What is shown is of the question before, and no other answer is coming.
function refuse(problem) {
  complain(problem.answer);
  document.documentElement.classList.add("unanswered");
  if (problem.answer.argument === "c") for (const [id, text] of [["cluster-text", problem.message], ["cluster-used", ""]]) byId(id).textContent = text;
  for (const picture of pictures) byId(picture.id).removeAttribute("aria-busy");
}

// A name that nobody knows is refused at once, whatever search is under way; a complaint about another name is over.
async function checkNames(search) {
  const problem = await get("glance", search).then(() => null, (refused) => refused);
  if (search !== query() || (problem && !["c", "m"].includes(problem.answer?.argument))) return;
  if (problem) refuse(problem);
  else byId("problem").hidden = true;
}

function storage() {
  try {
    return localStorage;
  } catch {
    return {}; // a page opened from a file may not store
  }
}

function buildTheme() {
  const root = document.documentElement;
  const kept = storage();
  if (kept.theme) root.dataset.theme = kept.theme;
  byId("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    kept.theme = root.dataset.theme = dark ? "light" : "dark";
  });
}

function drawAgain() {
  if (shown.view && byId("layer").clientWidth) drawWaterfall(byId("layer"), shown.view.layer);
  if (shown["traffic-view"] && byId("traffic-view").clientWidth) drawTraffic(byId("traffic-view-body"), shown["traffic-view"], (rps) => choose({ rps }));
  if (shown.plans && byId("plans").clientWidth) drawPlans(byId("plans-body"), shown.plans, byId("data") ? null : planTools);
  if (shown.pipeline) drawPipeline(byId("pipeline-body"), shown.pipeline);
  if (shown.grids) drawGrids(shown.grids, live() ? choose : null);
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
  for (const id of ["inputs", "show-inputs", "presets-nav", "start-tour", "views", "traffic-view", "fit-view", "run-view", "no-traffic"]) byId(id).hidden = true;
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

function onward(how = "") {
  const moving = how === "moves";
  if (moving) slid = performance.now();
  syncViews();
  drawIfSeen();
  dropped.abort(); // pictures of the state before: the server stops computing what it is told nobody waits for
  if (!moving && performance.now() > slid + PAUSE_MS) askEarly(query());
  if (!moving) checkNames(query());
  ask(moving);
}

const fileTools = {
  show: () => place().name !== "run" && replaceAll(state(), placed("run")),
  open: (patch, view) => replaceAll(patched({ c: state().c, m: state().m }, patch), placed(view)),
  take: (patch) => Object.entries(patch).some(([key, value]) => state()[key] !== String(value)) && replaceAll(patched(state(), patch), location.hash),
};

function markPreset() {
  for (const button of byId("presets").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.query === sorted(state())));
}

function sorted(keys) {
  return query(Object.fromEntries(Object.entries(keys).sort()));
}

async function serve() {
  if (!query()) begin(START, location.hash || placed("plan"));
  syncViews();
  askEarly(query());
  const first = hasPlan() || place().name === "plan" ? get("view", query()).catch(() => {}) : null; // asked again, then found or refused
  const catalog = await get("catalog", "");
  buildInputs(catalog, complain);
  byId("use-recommended").addEventListener("click", () => {
    delete chosen.search;
    replaceAll(withoutPlan(), location.hash);
  });
  buildTour(catalog);
  buildDrop(fileTools);
  paint(byId("presets"), catalog.presets.map((preset) => el("li", null, el("button", { type: "button", "data-query": sorted(preset.state), onclick: () => replaceAll(preset.state, location.hash) }, preset.name))));
  const seen = new IntersectionObserver((entries) => {
    const came = entries.filter((entry) => {
      const picture = pictures.find((other) => other.id === entry.target.id);
      picture.near = entry.isIntersecting;
      return picture.near && picture.asked !== query();
    });
    if (shown.view && !shown.view.brief && came.length) drawSoon();
  }, { rootMargin: "600px" });
  for (const picture of pictures) seen.observe(byId(picture.id));
  onState((_, how) => onward(how));
  await first;
  await ask();
}

paint(byId("layer-legend"), waterfallLegend());
buildTheme();
watchWidth();
if (byId("data")) showFile(JSON.parse(byId("data").textContent));
else serve().catch((problem) => complain({ error: problem.message }));
