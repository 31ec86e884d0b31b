// Requests: one view in flight and the latest wins; slow pictures wait for a pause and are dropped when the state moves on.
// A dropped request hangs up, and the server stops computing its answer.

const kept = new Map();

export class Refused extends Error {
  constructor(answer) {
    super(answer.error || "The server refused this state.");
    this.answer = answer;
  }
}

export async function get(path, search, signal) {
  const address = `api/${path}${search ? `?${search}` : ""}`;
  if (kept.has(address)) return kept.get(address);
  let response;
  try {
    response = await fetch(address, { signal, headers: { Accept: "application/json" } });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refused({ error: "The server does not answer. Is commtax web still running?" });
  }
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
