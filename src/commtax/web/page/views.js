// Which view is shown, and how its table is sorted: in the address behind the #, so that links and the back button know it.

import { byId } from "./dom.js";

const VIEWS = ["plan", "traffic", "fit", "step", "run"];

// "#plan/-ttft_s": the view, and the column that its table is sorted by, a dash for worst first.
export function place() {
  const [name, sort = ""] = location.hash.slice(1).split("/");
  return VIEWS.includes(name) ? { name, sort } : { name: "step", sort: "" };
}

export function placed(name, sort = "") {
  return `#${name}${sort ? `/${sort}` : ""}`;
}

export function syncViews() {
  const { name } = place();
  document.documentElement.dataset.view = name;
  for (const link of byId("views").children) {
    if (link.hash === placed(name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Another order is no step to go back over.
export function resort(sort) {
  history.replaceState(null, "", `${location.pathname}${location.search}${placed(place().name, sort)}`);
}
