// The controls. Sliders walk over the legal values that the server names for this model and cluster; nothing is decided here.

import { byId, el, paint } from "./dom.js";
import { count, seconds } from "./format.js";
import { combobox } from "./combobox.js";
import { choose, land, onState, slide, state } from "./state.js";
import { place } from "./views.js";

const SLIDERS = [
  { key: "tp", name: "TP", hint: "tensor parallel" },
  { key: "pp", name: "PP", hint: "pipeline stages" },
  { key: "dp", name: "DP", hint: "data parallel" },
  { key: "ep", name: "EP", hint: "expert parallel" },
  { key: "rep", name: "Replicas", hint: "servers side by side" },
  { key: "cp", name: "CP", hint: "context parallel", train: true },
  { key: "b", name: "Batch", hint: "requests per replica", trainName: "Micro-batch", trainHint: "sequences per pass" },
  { key: "s", name: "Context", hint: "tokens per request", trainName: "Sequence", trainHint: "tokens" },
  { key: "len", name: "Longest request", hint: "tokens in and out" },
  { key: "local", name: "Local tokens", hint: "batch × sequence", train: true },
  { key: "n", name: "Microbatches", hint: "per replica and step", train: true },
  { key: "z", name: "ZeRO", hint: "sharding stage", train: true },
];
const fields = {};
const USUAL_ENGINES = { decode: "vllm", prefill: "vllm", train: "megatron" };
let engines = [];

function slider(spec) {
  const id = `in-${spec.key}`;
  const input = el("input", { type: "range", id, min: "0", max: "0", step: "1", value: "0", disabled: true });
  const output = el("output", { for: id }, "–");
  const name = el("span", { class: "slider-name" }, spec.name);
  const hint = el("small", null, spec.hint);
  const row = el("div", { class: "slider", hidden: spec.train }, el("label", { for: id }, name, " ", hint), output, input);
  const field = { ...spec, input, output, nameNode: name, hintNode: hint, row, values: [], moves: [] };
  input.addEventListener("input", () => {
    const place = Number(input.value);
    const move = field.moves[place];
    showValue(field, field.values[place]);
    slide(move?.patch ?? { [field.key]: field.values[place] });
    byId("moved").textContent = move?.note ?? "";
  });
  input.addEventListener("change", land);
  return field;
}

function showValue(field, value) {
  field.output.textContent = count(Number(value));
  field.input.setAttribute("aria-valuetext", `${field.nameNode.textContent} ${count(Number(value))}`);
}

// A place on a slider sets what the server says it sets: sizes that are tied to it follow, and the page says which.
function syncSlider(field, values, moves, value, train) {
  field.row.hidden = Boolean(field.train && !train) || !values.length;
  if (field.row.hidden) return;
  if (field.input.matches(":active")) return; // the hand is on it: its place is newer than this answer
  field.nameNode.textContent = (train && field.trainName) || field.name;
  field.hintNode.textContent = (train && field.trainHint) || field.hint;
  field.values = values;
  field.moves = moves;
  field.input.max = String(values.length - 1);
  field.input.disabled = values.length < 2;
  field.input.value = String(Math.max(0, values.findIndex((other) => Number(other) === Number(value))));
  showValue(field, value);
}

function options(select, rows, first) {
  select.replaceChildren(...(first ? [el("option", { value: "" }, first)] : []), ...rows.map((row) => el("option", { value: row.key ?? row }, row.key ?? row)));
}

function modelMode(mode) {
  for (const name of ["named", "pasted", "free"]) {
    byId(`model-${name}`).hidden = name !== mode;
    byId(`mode-${name}`).checked = name === mode;
  }
}

export function buildInputs(catalog, complain) {
  const host = byId("sliders");
  for (const spec of SLIDERS) {
    fields[spec.key] = slider(spec);
    host.append(fields[spec.key].row);
  }
  onState((_, how) => how !== "landed" && (byId("moved").textContent = "")); // what followed is said of the last move alone
  const models = catalog.models.map((model) => ({ key: model.key, name: `${model.name ?? ""} ${model.family ?? ""}`, note: model.params ? `${(model.params / 1e9).toFixed(model.params < 1e10 ? 1 : 0)}B` : "" }));
  fields.m = combobox(byId("in-m"), () => models, (value) => choose({ m: value, cfg: null, h: null, L: null }));
  fields.c = combobox(byId("in-c"), () => catalog.clusters, (value) => choose({ c: value }));
  for (const key of ["intra", "inter"]) options(byId(`in-${key}`), catalog.links.filter((link) => link.kind === key || link.kind === "both"), "cluster’s own");
  engines = catalog.engines;
  options(byId("in-sch"), catalog.schedules ?? []);
  for (const key of ["intra", "inter", "e", "sch", "rc", "dt"]) byId(`in-${key}`).addEventListener("change", (event) => choose({ [key]: event.target.value }));
  byId("in-sp").addEventListener("change", (event) => choose({ sp: event.target.checked ? 1 : null }));
  // Another phase is another workload and, often, another engine: what only one of them knows goes.
  for (const radio of document.querySelectorAll("[name=ph]")) radio.addEventListener("change", () => choose({ ph: radio.value, e: null, b: null, s: null, n: null, z: null, rc: null, sch: null, sp: null, rep: null, pw: null, ...(radio.value === "train" ? { gb: state().gb ?? FIRST_BATCH } : {}) }));
  byId("no-pool").addEventListener("click", () => choose({ pw: null, ptp: null, pdp: null }));
  for (const name of ["named", "pasted", "free"]) byId(`mode-${name}`).addEventListener("change", () => modelMode(name));
  byId("use-config").addEventListener("click", () => {
    try {
      choose({ cfg: JSON.stringify(JSON.parse(byId("in-cfg").value)), m: null, h: null, L: null });
    } catch (problem) {
      complain({ error: `config.json: the pasted text is not JSON: ${problem.message}` });
    }
  });
  byId("model-free").addEventListener("submit", (event) => {
    event.preventDefault();
    choose({ h: byId("in-h").value, L: byId("in-L").value, m: null, cfg: null });
  });
  buildGoals(catalog);
  byId("show-inputs").addEventListener("click", (event) => event.currentTarget.setAttribute("aria-expanded", String(event.currentTarget.getAttribute("aria-expanded") === "false")));
}

// What plans are asked for.
const GOALS = ["ttft", "tpot", "sure", "il", "ol", "rps", "stat", "obj", "usd", "gb", "tok"];
const FIRST_RATE = 10;
const FIRST_BATCH = 512;

function buildGoals(catalog) {
  for (const key of GOALS) byId(`in-${key}`).addEventListener("change", (event) => choose({ [key]: event.target.value }));
  byId("in-try").addEventListener("change", (event) => choose({ try: event.target.checked ? "auto" : null }));
  byId("in-usd-train").addEventListener("change", (event) => choose({ usd: event.target.value }));
  byId("load-clients").addEventListener("change", () => choose({ rps: null }));
  byId("load-rate").addEventListener("change", () => choose({ rps: FIRST_RATE }));
  fields.cs = combobox(byId("in-cs"), () => catalog.clusters, (value) => value && choose({ cs: [...compared(), value].join(",") }));
}

function compared() {
  return (state().cs ?? "").split(",").filter(Boolean);
}

// What is best where nothing was chosen, and what a search for a rate does not know.
function syncObjectives(now) {
  const usual = now.rps ? "fewest GPUs" : now.cs ? "lowest cost per token" : "most tokens/s";
  for (const option of byId("in-obj").options) {
    if (option.value === "throughput") option.textContent = usual;
    else option.hidden = option.textContent === usual || (now.rps > 0 && option.value === "latency");
  }
}

function syncGoals(now) {
  for (const key of GOALS) if (document.activeElement !== byId(`in-${key}`)) byId(`in-${key}`).value = now[key] || "";
  if (document.activeElement !== byId("in-usd-train")) byId("in-usd-train").value = now.usd || "";
  byId("load-rate").checked = now.rps > 0;
  byId("load-clients").checked = !now.rps;
  for (const row of document.querySelectorAll(".rate-only")) row.classList.toggle("no-rate", !now.rps);
  byId("in-try").checked = now.try === "auto";
  for (const row of document.querySelectorAll(".loop-only")) row.hidden = now.rps > 0;
  syncObjectives(now);
  fields.cs.set("");
  const chip = (name) => el("li", null, el("button", { type: "button", class: "chip", "data-k": `compared-${name}`, "aria-label": `Compare no longer with ${name}`, onclick: () => choose({ cs: compared().filter((other) => other !== name).join(",") }) }, `${name} ✕`));
  paint(byId("compared"), compared().map(chip));
}

// What is asked for, as far as it can be told without an answer.
export function syncNames(now) {
  modelMode(now.cfg ? "pasted" : Number(now.h) ? "free" : "named");
  fields.m.set(now.m ?? "");
  fields.c.set(now.c ?? "");
  for (const radio of document.querySelectorAll("[name=ph]")) radio.checked = radio.value === (now.ph ?? "decode");
}

export function syncInputs(view, follows) {
  const now = view.state;
  const train = now.ph === "train";
  syncNames(now);
  if (now.h) byId("in-h").value = now.h;
  if (now.L) byId("in-L").value = now.L;
  if (now.cfg && document.activeElement !== byId("in-cfg")) byId("in-cfg").value = typeof now.cfg === "string" ? now.cfg : JSON.stringify(now.cfg, null, 1);
  for (const key of ["intra", "inter", "dt"]) byId(`in-${key}`).value = now[key] ?? "";
  const usual = USUAL_ENGINES[now.ph];
  options(byId("in-e"), engines.filter((engine) => engine.key !== usual && engine.phases.includes(now.ph)), usual);
  const { e = "" } = state();
  if (e.includes("@")) byId("in-e").append(el("option", null, e)); // a version that a link or a file names
  byId("in-e").value = e === usual ? "" : e;
  byId("in-rc").value = now.rc ?? "none";
  byId("in-sch").value = now.sch ?? "1f1b";
  byId("in-sp").checked = Number(now.sp) === 1;
  for (const row of document.querySelectorAll(".train-only")) row.hidden = !train;
  for (const row of document.querySelectorAll(".serve-only")) row.hidden = train;
  for (const spec of view.brief ? [] : SLIDERS) {
    syncSlider(fields[spec.key], view.limits[spec.key] ?? [], view.moves[spec.key] ?? [], { local: view.local_tokens, len: now.len || now.il + now.ol }[spec.key] ?? now[spec.key], train);
  }
  syncGoals(now);
  byId("use-recommended").hidden = follows;
  byId("as-recommended").hidden = !follows;
  byId("pool").hidden = !now.pw;
  byId("pool-text").textContent = `${now.pw} × TP ${now.ptp} for prompts alone`;
  byId("run-claim-text").textContent = `Compare the run with what is predicted for ${modelText(now)} on ${now.c}, ${sizesText(now)}`;
  byId("cluster-text").textContent = view.cluster.text;
  byId("cluster-used").textContent = `${count(view.cluster.used_gpus)} of ${count(view.cluster.gpus)} GPUs in use`;
  byId("question-text").textContent = questionText(now);
}

function sizesText(now) {
  return SLIDERS.slice(0, 4).filter(({ key }) => key === "tp" || now[key] > 1).map(({ key, name }) => `${name} ${now[key]}`).join(" × ");
}

export function modelAndPlace(now) {
  return `${modelText(now)} on ${now.c}`;
}

function modelText(now) {
  return now.cfg ? "the pasted model" : now.h ? `a model ${count(now.h)} wide` : now.m;
}

// The question in one line, for folded controls.
function questionText(now) {
  const limits = [["ttft", "TTFT"], ["tpot", "TPOT"]].filter(([key]) => now.ph !== "train" && now[key]).map(([key, name]) => `${name} ≤ ${seconds(now[key] / 1000)}`);
  const load = now.ph === "train" ? "training" : now.rps ? `${now.rps} requests/s` : null;
  return [`${modelText(now)} on ${[now.c, ...compared()].join(" or ")}`, place().name === "plan" ? null : [now.rep > 1 ? `${now.rep} replicas × ` : "", sizesText(now)].join(""), load, ...limits].filter(Boolean).join(" · ");
}
