/** What every page is made of: the template tag, numbers as people read them, small parts. */
import { h } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export { useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(h);

/** A value that components can follow. `use(pick)` re-renders only when what is picked changes. */
export function createStore(value) {
  const listeners = new Set();
  const get = () => value;
  const set = (change) => {
    value = { ...value, ...(typeof change === "function" ? change(value) : change) };
    for (const listener of [...listeners]) listener();
  };
  const use = (pick) => {
    const [, redraw] = useState(0);
    const picked = pick(value);
    const last = useRef(picked);
    last.current = picked;
    const picker = useRef(pick);
    picker.current = pick;
    useEffect(() => {
      const listener = () => {
        if (picker.current(value) !== last.current) redraw((n) => n + 1);
      };
      listeners.add(listener);
      listener();
      return () => listeners.delete(listener);
    }, []);
    return picked;
  };
  return { get, set, use };
}

// --- numbers --------------------------------------------------------------------------------------
const SUFFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** A number in at most about six characters: 61.2M, 0.0123, 1.2e-7. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e18) return value.toExponential(1);
  for (const [unit, suffix] of SUFFIXES) {
    if (size >= unit * 0.9995) return trim((value / unit).toPrecision(3)) + suffix;
  }
  if (size === 0) return "0";
  if (size < 1e-4) return trim(value.toExponential(1));
  return trim(value.toPrecision(size < 1 ? 3 : 4));
}

const trim = (text) => (text.includes(".") ? text.replace(/\.?0+(e|$)/, "$1") : text);

/** The same for a table that has NaN where there is nothing. */
export const shortOrNone = (value) => (Number.isNaN(value) ? "–" : short(value));

/** The whole number, in groups of three: 61,200,000. */
export const whole = (value) =>
  value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");

/** How long, from milliseconds: 850 ms, 12 s, 3 min, 2.5 h, 4 d. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  const s = Math.abs(ms) / 1000;
  if (s < 1) return `${Math.round(ms)} ms`;
  if (s < 60) return `${trim(s.toFixed(s < 10 ? 1 : 0))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${trim((s / 3600).toFixed(1))} h`;
  return `${trim((s / 86400).toFixed(1))} d`;
}

export const ago = (ms) => `${duration(Math.max(0, Date.now() - ms))} ago`;

export function dateTime(ms) {
  const at = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Any JSON value on one line. */
export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : short(value);
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.every((v) => typeof v !== "object")) return value.map(plain).join(", ");
  return JSON.stringify(value);
}

/** A tree of values as rows of dotted paths. */
export function flatten(tree, prefix = "") {
  return Object.entries(tree || {}).flatMap(([key, value]) =>
    value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? flatten(value, `${prefix}${key}.`)
      : [[prefix + key, value]],
  );
}

// --- parts ----------------------------------------------------------------------------------------
const GLYPHS = { running: "●", finished: "✓", failed: "✕", crashed: "✕", stopped: "■" };

export function StateGlyph({ state }) {
  return html`<span class="glyph ${state}" title=${state} aria-label=${state}>${GLYPHS[state] || "○"}</span>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

export function Failure({ error, retry }) {
  return html`<div class="failure" role="alert">
    <p>${error.message}</p>
    ${error.hint && html`<p class="dim">${error.hint}</p>`}
    ${retry && html`<button onClick=${retry}>Try again</button>`}
  </div>`;
}

/** A grey block, only after a moment: what comes at once should not flicker. */
export function Skeleton() {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class=${isLate ? "skeleton" : "skeleton early"} aria-label="loading"></div>`;
}

export function CopyButton({ text, children, title }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await copyText(typeof text === "function" ? await text() : text);
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return html`<button onClick=${copy} title=${title}>${isDone ? "Copied" : children}</button>`;
}

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // plain HTTP on another host has no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Give the reader a file that was made here. */
export function download(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Rows of one height, of which only those in sight are in the document. */
export function Windowed({ count, rowHeight, row, class: name, head, minWidth = 0 }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const element = box.current;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / rowHeight) - 8);
  const last = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + 8);
  const rows = [];
  for (let at = first; at < last; at++) rows.push(row(at));
  return html`<div class="windowed ${name || ""}" ref=${box}>
    ${head}
    <div style=${{ height: `${count * rowHeight}px`, position: "relative", minWidth: `${minWidth}px` }}>
      <div style=${{ position: "absolute", left: 0, right: 0, top: `${first * rowHeight}px` }}>${rows}</div>
    </div>
  </div>`;
}

/** What a promise gives, asked again when `keys` change; what was there stays until then. */
export function useLoad(load, keys) {
  const [state, setState] = useState({ value: undefined, error: null, isLoading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let isOver = false;
    setState((before) => ({ ...before, isLoading: true }));
    load().then(
      (value) => isOver || setState({ value, error: null, isLoading: false }),
      (error) => isOver || setState((before) => ({ value: before.value, error, isLoading: false })),
    );
    return () => {
      isOver = true;
    };
  }, [...keys, turn]);
  return { ...state, retry: () => setTurn((n) => n + 1) };
}

/**
 * What `load(before, signal)` gives: asked when `key` changes, and again when `version` does, but
 * not more often than every `pauseMs`, not while an answer is on its way, not in a hidden tab.
 * What was there stays until the new answer comes.
 */
export function useFresh(key, version, pauseMs, load) {
  const [state, setState] = useState({ value: null, error: null, isLoading: true });
  const [turn, setTurn] = useState(0);
  const job = useRef(null);
  if (job.current === null) job.current = freshJob(pauseMs, setState);
  job.current.load = load;
  useEffect(() => job.current.want(`${turn} ${key}`, version), [key, version, turn]);
  useEffect(() => {
    const onVisible = () => job.current.wake();
    document.addEventListener("visibilitychange", onVisible);
    return () => {
      document.removeEventListener("visibilitychange", onVisible);
      job.current.stop();
    };
  }, []);
  return { ...state, retry: () => setTurn((n) => n + 1) };
}

const SHARE = 8;

function freshJob(pauseMs, setState) {
  let key = null;
  let wanted = null;
  let asked = null;
  let value = null;
  let timer = 0;
  let doneMs = 0;
  let tookMs = 0;
  let controller = null;
  const job = { load: null, want, wake, stop };

  function want(nextKey, version) {
    wanted = version;
    if (key === nextKey) return wake();
    stop();
    key = nextKey;
    value = null;
    setState((before) => ({ ...before, isLoading: true }));
    timer = setTimeout(run, 0);
  }
  function wake() {
    if (key === null || controller || timer || asked === wanted || document.hidden) return;
    // A question that takes long is asked less often: looking must not cost more than logging.
    timer = setTimeout(run, Math.max(0, doneMs + Math.max(pauseMs, SHARE * tookMs) - Date.now()));
  }
  async function run() {
    timer = 0;
    asked = wanted;
    const begunMs = Date.now();
    const mine = (controller = new AbortController());
    try {
      const answer = await job.load(value, mine.signal);
      if (controller !== mine) return;
      value = answer;
      setState({ value, error: null, isLoading: false });
    } catch (error) {
      if (controller !== mine || error.name === "AbortError") return;
      setState((before) => ({ value: before.value, error, isLoading: false }));
    }
    controller = null;
    doneMs = Date.now();
    tookMs = doneMs - begunMs;
    wake();
  }
  function stop() {
    clearTimeout(timer);
    timer = 0;
    controller?.abort();
    controller = null;
  }
  return job;
}
