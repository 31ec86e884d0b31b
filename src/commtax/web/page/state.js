// The state is the query string: short keys, the same in the page's address and in every request.

const listeners = [];
let current = read();
let writing = 0;

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
  tell();
}

// A choice makes an entry, so that the back button undoes it.
export function choose(patch) {
  replaceAll(patched(current, patch), location.hash);
}

export function replaceAll(next, hash = "") {
  settle();
  current = patched({}, next);
  write("pushState", hash);
  tell();
}

export function settle() {
  if (writing) write("replaceState");
}

export function begin(first) {
  current = { ...first };
  write("replaceState");
}

export function dropHash() {
  write("replaceState", "");
}

function write(how, hash = location.hash) {
  clearTimeout(writing);
  writing = 0;
  const text = query();
  history[how](null, "", `${location.pathname}${text ? `?${text}` : ""}${hash}`);
}

function tell() {
  for (const listener of listeners) listener(current);
}

addEventListener("popstate", () => {
  clearTimeout(writing);
  writing = 0;
  current = read();
  tell();
});
