// The state is the query string: short keys, the same in the page's address and in every request.

const listeners = [];
let current = read();
let followed = history.state; // the plan that the page set by itself; an entry of the history knows it
let writing = 0;

// What a plan is, as keys; the length of a sequence is the question's where a model is trained.
const SIZE_KEYS = ["tp", "pp", "dp", "ep", "cp", "rep"];
const PLAN_KEYS = [...SIZE_KEYS, "pw", "ptp", "pdp", "b", "s", "n", "z", "rc", "sch", "v", "sp", "a2a", "red", "tq"];
const ANEW = ["m", "cfg", "h", "L", "c", "e", "dt"]; // with these another plan is recommended

export function hasPlan() {
  return SIZE_KEYS.some((key) => key in current);
}

// Whether the plan is the recommended or chosen one, which nobody has moved since.
export function follows() {
  return PLAN_KEYS.every((key) => !(key in current) || current[key] === followed?.[key]);
}

export function withoutPlan(keys = current) {
  return Object.fromEntries(Object.entries(keys).filter(([key]) => !PLAN_KEYS.includes(key) || (key === "s" && keys.ph === "train")));
}

// The question with a plan that was found for it; no step to go back over.
export function follow(patch, hash = location.hash, how = "replaceState") {
  current = patched(withoutPlan(), patch);
  followed = current;
  write(how, hash);
}

function read() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

export function query(state = current, more = {}) {
  return new URLSearchParams({ ...state, ...more }).toString();
}

export function state() {
  return current;
}

export function onState(listener) {
  listeners.push(listener);
}

// A patch sets keys; null or "" takes a key back to its default.
export function patched(base, patch) {
  const next = { ...base };
  for (const [key, value] of Object.entries(patch)) {
    if (value === null || value === undefined || value === "") delete next[key];
    else next[key] = String(value);
  }
  return next;
}

// While a slider moves the address follows late (browsers limit how often it may change) and makes no new entry in the history.
export function slide(patch) {
  current = patched(current, patch);
  clearTimeout(writing);
  writing = setTimeout(() => write("replaceState"), 250);
  tell("moves");
}

// The hand is off the slider: where it stands is what is asked for.
export function land() {
  settle();
  tell("landed");
}

// A choice makes an entry, so that the back button undoes it.
export function choose(patch) {
  const base = follows() && ANEW.some((key) => key in patch) ? withoutPlan() : current;
  replaceAll(patched(base, patch), location.hash);
}

export function replaceAll(next, hash = "") {
  settle();
  current = patched({}, next);
  write("pushState", hash);
  tell();
}

function settle() {
  if (writing) write("replaceState");
}

export function begin(first, hash) {
  current = { ...first };
  write("replaceState", hash);
}

export function dropHash() {
  write("replaceState", "");
}

function write(how, hash = location.hash) {
  clearTimeout(writing);
  writing = 0;
  const text = query();
  history[how](followed, "", `${location.pathname}${text ? `?${text}` : ""}${hash}`);
}

// `how`: a slider "moves" or has "landed"; "" for all else.
function tell(how = "") {
  for (const listener of listeners) listener(current, how);
}

addEventListener("popstate", (event) => {
  clearTimeout(writing);
  writing = 0;
  current = read();
  followed = event.state ?? followed; // a click on a view makes an entry without one
  tell();
});
