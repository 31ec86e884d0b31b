// Requests: one view in flight and the latest wins; slow pictures wait for a pause and are dropped when the state moves on.
// A dropped request hangs up, and the server stops computing its answer.

import { whileCrowded } from "./busy.js";

const kept = new Map();
const MOST_TRIES = 8; // of a server that is busy, each after the seconds that it says

export class Refused extends Error {
  constructor(answer) {
    super(answer.error || "The server refused this state.");
    this.answer = answer;
  }
}

// Later, or never where nobody waits any more.
function pauseFor(ms, signal) {
  return new Promise((done, gone) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      gone(new DOMException("nobody waits", "AbortError"));
    });
  });
}

// An answer, also of a server that has to be asked again because it is busy.
export async function fetchPatiently(address, options = {}) {
  for (let tries = 1; ; tries += 1) {
    let response;
    try {
      response = await fetch(address, options);
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new Refused({ error: "The server does not answer. Is commtax web still running?" });
    }
    if (response.status !== 429 || tries === MOST_TRIES) return response;
    const seconds = Number(response.headers.get("retry-after")) || 1;
    await whileCrowded(pauseFor(1000 * seconds * (0.5 + Math.random()), options.signal)); // not all at the same moment
  }
}

export async function get(path, search, signal) {
  const address = `api/${path}${search ? `?${search}` : ""}`;
  if (kept.has(address)) return kept.get(address);
  const response = await fetchPatiently(address, { signal, headers: { Accept: "application/json" } });
  let body = null;
  try {
    body = await response.json();
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
  }
  if (!response.ok || body === null) throw new Refused(body ?? { error: `The server answered ${response.status}.` });
  kept.set(address, body);
  if (kept.size > 60) kept.delete(kept.keys().next().value);
  return body;
}

// Only the newest of many questions matters: one runs, one waits. Aborting each would starve the picture while a slider moves.
export function latest(work) {
  let running = false;
  let waiting = null;
  return async function ask(...args) {
    if (running) {
      waiting = args;
      return;
    }
    running = true;
    try {
      await work(...args);
    } finally {
      running = false;
    }
    if (waiting) {
      const next = waiting;
      waiting = null;
      ask(...next);
    }
  };
}
