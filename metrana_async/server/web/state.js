/** What the address says, and what is known of the project on the page. The address is the state. */
import { ask, follow, ROOT } from "./api.js";
import { createStore } from "./ui.js";

// --- the address ----------------------------------------------------------------------------------
const DEFAULT_WORKSPACE = "default";
export const PAGES = ["charts", "runs", "compare", "envs", "episodes", "system", "run"];

function readAddress() {
  const parts = location.pathname.slice(ROOT.length).split("/").filter(Boolean).map(decodeURIComponent);
  const workspace = parts[0] === "w" ? parts.splice(0, 2)[1] : DEFAULT_WORKSPACE;
  const project = parts[0] === "p" && parts.length > 1 ? parts[1] : null;
  const page = project === null ? "home" : PAGES.includes(parts[2]) ? parts[2] : "charts";
  const params = Object.fromEntries(new URLSearchParams(location.search));
  return { workspace, project, page, run: parts[3] || null, params };
}

export const address = createStore(readAddress());
window.addEventListener("popstate", () => address.set(readAddress()));

/** The URL of a page; `params` that are null are left out. */
export function href(page, { workspace, project, run, params = {} } = {}) {
  const here = address.get();
  const inWorkspace = workspace ?? here.workspace;
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== ""));
  if (page === "home") return ROOT;
  const parts = inWorkspace === DEFAULT_WORKSPACE ? [] : ["w", inWorkspace];
  parts.push("p", project ?? here.project, page, ...(run ? [run] : []));
  const text = query.toString();
  return ROOT + parts.map(encodeURIComponent).join("/") + (text && `?${text}`);
}

export function go(url, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", url);
  address.set(readAddress());
  if (!replace) window.scrollTo(0, 0);
}

let pending = 0;
/** Change parameters of the view; `slide` for sliders: at most every 300 ms, no new history entry. */
export function setParams(change, { push = false, slide = false } = {}) {
  const params = { ...address.get().params, ...change };
  for (const [name, value] of Object.entries(params)) if (value === null || value === "") delete params[name];
  address.set({ params });
  const write = () => {
    const { page, run } = address.get();
    history[push ? "pushState" : "replaceState"](null, "", href(page, { run, params: address.get().params }));
  };
  clearTimeout(pending);
  if (slide) pending = setTimeout(write, 300);
  else write();
}

/** Follow links of our own without loading the document again. */
export function onLinkClick(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (!link.pathname.startsWith(ROOT)) return;
  event.preventDefault();
  go(link.href);
}

// --- taste: of this browser, not of the address -----------------------------------------------------
const TASTE_KEY = "metrana.taste";

function readTaste() {
  try {
    return JSON.parse(localStorage.getItem(TASTE_KEY)) || {};
  } catch {
    return {};
  }
}

export const taste = createStore({ theme: "auto", isPanelHidden: false, ...readTaste() });

export function setTaste(change) {
  taste.set(change);
  try {
    localStorage.setItem(TASTE_KEY, JSON.stringify(taste.get()));
  } catch {
    // a browser that keeps nothing: the taste lasts as long as the page
  }
  applyTheme();
}

export const isDark = () => document.documentElement.dataset.theme === "dark";

export function applyTheme() {
  const { theme } = taste.get();
  const isWanted = theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
  document.documentElement.dataset.theme = isWanted ? "dark" : "light";
  project.set({ theme: document.documentElement.dataset.theme });
}

// --- the project ----------------------------------------------------------------------------------
const PAGE_RUNS = 200;
const RUNS_MAX = 2000;
const VISIBLE_DEFAULT = 10;
const RELOAD_MS = 2000;

/** Colour-blind safe, readable on both grounds; a run keeps its own wherever it is shown. */
export const COLOURS = ["#3b6fd4", "#e07b00", "#d6336c", "#2b8a3e", "#7048e8", "#0c8599", "#a0522d", "#7d8f00"];

export const project = createStore({
  key: null,
  runs: [],
  styles: new Map(),
  versions: new Map(),
  error: null,
  isLoaded: false,
  live: "lost",
  lastNewsMs: 0,
  newestX: new Map(),
  theme: "light",
});

let unfollow = () => {};
let reloadTimer = 0;

/** Make this project the one on the page: its runs are loaded and its news followed. */
export async function openProject(workspace, name, filter) {
  const key = JSON.stringify([workspace, name]);
  const isNew = project.get().key !== key;
  if (isNew) {
    unfollow();
    project.set({ key, runs: [], styles: new Map(), versions: new Map(), newestX: new Map(), isLoaded: false, error: null });
    unfollow = follow({ workspace, project: name }, takeNews, (live) => project.set({ live }));
  }
  await loadRuns(workspace, name, filter);
}

export function closeProject() {
  unfollow();
  unfollow = () => {};
  project.set({ key: null, runs: [], isLoaded: false, error: null });
}

async function loadRuns(workspace, name, filter) {
  const runs = [];
  try {
    let after = null;
    do {
      const query = { workspace, project: name, order_by: "-created", limit: PAGE_RUNS };
      if (after) query.after = after;
      if (filter) query.where = filter;
      const page = await ask("/query/runs", query);
      runs.push(...page.runs);
      after = page.after;
    } while (after && runs.length < RUNS_MAX);
  } catch (error) {
    project.set({ error, isLoaded: true });
    return;
  }
  const here = address.get();
  if (here.project !== name || (here.params.q || "") !== (filter || "")) return; // meanwhile elsewhere
  project.set((before) => ({ runs, styles: stylesOf(runs, before.styles), error: null, isLoaded: true }));
}

function takeNews({ runs, reset }) {
  const known = new Map(project.get().runs.map((run) => [run.run_uid, run.state]));
  const versions = new Map(project.get().versions);
  let isListOld = reset && project.get().isLoaded;
  for (const [uid, news] of Object.entries(runs)) {
    versions.set(uid, news.v);
    if (known.get(uid) !== news.state) isListOld = true;
  }
  if (reset) for (const uid of known.keys()) versions.set(uid, (versions.get(uid) || 0) + 1e9);
  project.set({ versions, lastNewsMs: Date.now() });
  if (isListOld) reloadSoon();
}

function reloadSoon() {
  if (reloadTimer) return;
  reloadTimer = setTimeout(() => {
    reloadTimer = 0;
    const { workspace, project: name, params } = address.get();
    if (name) loadRuns(workspace, name, params.q);
  }, RELOAD_MS);
}

/** Colours in the order of creation, beginning with one drawn from the run's own id. */
function stylesOf(runs, before) {
  const styles = new Map(before);
  const counts = COLOURS.map(() => 0);
  for (const style of styles.values()) counts[style.at] += 1;
  for (const run of [...runs].sort((a, b) => a.created_ms - b.created_ms)) {
    if (styles.has(run.run_uid)) continue;
    let at = parseInt(run.run_uid.slice(0, 6), 16) % COLOURS.length || 0;
    const least = Math.min(...counts);
    while (counts[at] > least) at = (at + 1) % COLOURS.length;
    styles.set(run.run_uid, { at, colour: COLOURS[at], dash: counts[at] ? [8, 4, 2, 4].slice(0, 2 * counts[at]) : null });
    counts[at] += 1;
  }
  return styles;
}

// --- which runs are shown ---------------------------------------------------------------------------
export const shortId = (run) => run.run_uid.slice(0, 6);

/** The shown runs, newest first: those of `r` in the address, else all but those hidden, else ten. */
export function shownRuns(runs, wanted) {
  if (!wanted) return runs.slice(0, VISIBLE_DEFAULT);
  const ids = wanted.split(",").filter(Boolean);
  const chosen = new Set(ids.filter((id) => !id.startsWith("-")));
  if (chosen.size) return runs.filter((run) => chosen.has(shortId(run)));
  const hidden = new Set(ids.map((id) => id.slice(1)));
  return runs.slice(0, VISIBLE_DEFAULT + hidden.size).filter((run) => !hidden.has(shortId(run)));
}

/** The value of `r` after one run was switched on or off. */
export function toggled(runs, wanted, run) {
  const shown = shownRuns(runs, wanted);
  const isShown = shown.includes(run);
  const after = isShown ? shown.filter((other) => other !== run) : [...shown, run];
  const standard = runs.slice(0, VISIBLE_DEFAULT);
  const isStandard = after.length === standard.length && standard.every((other) => after.includes(other));
  if (isStandard) return null;
  if (standard.every((other) => other === run || after.includes(other)) && isShown && !wanted) return `-${shortId(run)}`;
  return after.length ? after.map(shortId).join(",") : "none";
}

/** The newest x that a chart has seen of a run, for its progress. */
export function noteNewest(entries) {
  const newestX = new Map(project.get().newestX);
  let isNew = false;
  for (const [uid, x] of entries) {
    if (x !== null && x > (newestX.get(uid) ?? -Infinity)) {
      newestX.set(uid, x);
      isNew = true;
    }
  }
  if (isNew) project.set({ newestX });
}
