// The controls. Sliders walk over the legal values that the server names for this model and cluster; nothing is decided here.

import { byId, el } from "./dom.js";
import { count } from "./format.js";
import { combobox } from "./combobox.js";
import { choose, onState, settle, slide, state } from "./state.js";

const SLIDERS = [
  { key: "tp", name: "TP", hint: "tensor parallel" },
  { key: "pp", name: "PP", hint: "pipeline stages" },
  { key: "dp", name: "DP", hint: "data parallel" },
  { key: "ep", name: "EP", hint: "expert parallel" },
  { key: "cp", name: "CP", hint: "context parallel", train: true },
  { key: "b", name: "Batch", hint: "requests per replica", trainName: "Micro-batch", trainHint: "sequences a pass" },
  { key: "s", name: "Context", hint: "tokens a request", trainName: "Sequence", trainHint: "tokens" },
  { key: "local", name: "Local tokens", hint: "batch × sequence", train: true },
  { key: "n", name: "Microbatches", hint: "a replica and step", train: true },
  { key: "z", name: "ZeRO", hint: "sharding stage", train: true },
];
const fields = {};
let engines = [];

function slider(spec) {
  const id = `in-${spec.key}`;
  const input = el("input", { type: "range", id, min: "0", max: "0", step: "1", value: "0", disabled: true });
  const output = el("output", { for: id }, "–");
  const name = el("span", { class: "slider-name" }, spec.name);
  const hint = el("small", null, spec.hint);
  const row = el("div", { class: "slider" }, el("label", { for: id }, name, " ", hint), output, input);
  const field = { ...spec, input, output, nameNode: name, hintNode: hint, row, values: [], moves: [] };
  input.addEventListener("input", () => {
    const place = Number(input.value);
    const move = field.moves[place];
    showValue(field, field.values[place]);
    slide(move?.patch ?? { [field.key]: field.values[place] });
    byId("moved").textContent = move?.note ?? "";
  });
  input.addEventListener("change", settle);
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
  onState(() => (byId("moved").textContent = "")); // what followed is said of the last move alone
  const models = catalog.models.map((model) => ({ key: model.key, name: `${model.name ?? ""} ${model.family ?? ""}`, note: model.params ? `${(model.params / 1e9).toFixed(model.params < 1e10 ? 1 : 0)}B` : "" }));
  fields.m = combobox(byId("in-m"), () => models, (value) => choose({ m: value, cfg: null, h: null, L: null }));
  fields.c = combobox(byId("in-c"), () => catalog.clusters.map((cluster) => ({ key: cluster.key ?? cluster, name: cluster.name, note: cluster.note ?? "" })), (value) => choose({ c: value }));
  for (const key of ["intra", "inter"]) options(byId(`in-${key}`), catalog.links.filter((link) => link.kind === key || link.kind === "both"), "cluster’s own");
  engines = catalog.engines;
  options(byId("in-sch"), catalog.schedules ?? []);
  for (const key of ["intra", "inter", "e", "sch", "rc", "dt"]) byId(`in-${key}`).addEventListener("change", (event) => choose({ [key]: event.target.value }));
  byId("in-sp").addEventListener("change", (event) => choose({ sp: event.target.checked ? 1 : null }));
  // Another phase is another workload and, often, another engine: what only one of them knows goes.
  for (const radio of document.querySelectorAll("[name=ph]")) radio.addEventListener("change", () => choose({ ph: radio.value, e: null, b: null, s: null, n: null, z: null, rc: null, sch: null, sp: null }));
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
  for (const key of ["ttft", "tpot", "sure", "il", "ol"]) byId(`in-${key}`).addEventListener("change", (event) => choose({ [key]: event.target.value }));
}

// What is asked for, as far as it can be told without an answer.
export function syncNames(now) {
  modelMode(now.cfg ? "pasted" : Number(now.h) ? "free" : "named");
  fields.m.set(now.m ?? "");
  fields.c.set(now.c ?? "");
  for (const radio of document.querySelectorAll("[name=ph]")) radio.checked = radio.value === (now.ph ?? "decode");
}

export function syncInputs(view) {
  const now = view.state;
  const train = now.ph === "train";
  syncNames(now);
  if (now.h) byId("in-h").value = now.h;
  if (now.L) byId("in-L").value = now.L;
  if (now.cfg && document.activeElement !== byId("in-cfg")) byId("in-cfg").value = typeof now.cfg === "string" ? now.cfg : JSON.stringify(now.cfg, null, 1);
  for (const key of ["intra", "inter", "dt"]) byId(`in-${key}`).value = now[key] ?? "";
  options(byId("in-e"), engines.filter((engine) => engine.phases.includes(now.ph)), "usual");
  byId("in-e").value = state().e ?? "";
  byId("in-rc").value = now.rc ?? "none";
  byId("in-sch").value = now.sch ?? "1f1b";
  byId("in-sp").checked = Number(now.sp) === 1;
  for (const row of document.querySelectorAll(".train-only")) row.hidden = !train;
  for (const row of document.querySelectorAll(".serve-only")) row.hidden = train;
  for (const spec of SLIDERS) {
    syncSlider(fields[spec.key], view.limits[spec.key] ?? [], view.moves[spec.key] ?? [], spec.key === "local" ? view.local_tokens : now[spec.key], train);
  }
  for (const key of ["ttft", "tpot", "sure", "il", "ol"]) if (document.activeElement !== byId(`in-${key}`)) byId(`in-${key}`).value = now[key] || "";
  byId("cluster-text").textContent = view.cluster.text;
  byId("cluster-text").title = view.cluster.text;
}
