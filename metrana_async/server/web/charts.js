/** The charts of the shown runs: a card for every metric, made when it comes into sight. */
import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { AXES, bucketed, loadAcross, loadBuckets, loadGroups } from "./curves.js";
import { RunsPanel } from "./panel.js";
import { address, COLOURS, href, noteNewest, project, setParams, shownRuns } from "./state.js";
import { download, Empty, Failure, flatten, html, plain, short, Skeleton, useEffect, useFresh, useMemo, useRef, useState, whole } from "./ui.js";

const CARD_PX = 190;
const LIVE_MS = 1000;
const CURVES_MS = 5000;
const PAD = 0.1;
const FULL = "card";

export function ChartsPage() {
  const { runs, isLoaded } = project.use((all) => all);
  const { params } = address.use((here) => here);
  if (!isLoaded) return html`<${RunsPanel} /><main><${Skeleton} /></main>`;
  return html`<${RunsPanel} groups=${html`<${GroupPicker} runs=${runs} by=${params.g} />`} /><main><${Charts} shown=${shownRuns(runs, params.r)} /></main>`;
}

/** What the shown runs can be put together by: whatever of their config differs. */
function GroupPicker({ runs, by }) {
  const keys = useMemo(() => {
    const seen = new Map();
    for (const run of runs) {
      for (const [key, value] of flatten(run.config)) seen.set(key, (seen.get(key) || new Set()).add(JSON.stringify(value)));
    }
    return [...seen].filter(([, values]) => values.size > 1 && values.size < Math.max(runs.length, 3)).map(([key]) => key).sort();
  }, [runs]);
  const choices = [...new Set([...keys.map((key) => `config.${key}`), "state", ...(by ? [by] : [])])];
  return html`<select class="wide" aria-label="group by" value=${by || ""} onChange=${(event) => setParams({ g: event.target.value || null }, { push: true })}>
    <option value="">group by: none</option>
    ${choices.map((key) => html`<option value=${key}>${`group by: ${key.replace(/^config\./, "")}`}</option>`)}
  </select>`;
}

/** The controls and the cards of some runs, for whatever page shows them. */
export function Charts({ shown }) {
  const { runs, versions, theme } = project.use((all) => all);
  const { params, project: name, workspace } = address.use((here) => here);
  const uids = shown.map((run) => run.run_uid);
  const curves = useCurves({ workspace, name, uids, versions });
  const sections = useMemo(() => sectionsOf(curves.value || [], params.m), [curves.value, params.m]);
  const view = readView(params);
  const card = (curve) => html`<${Card} key=${keyOf(curve)} ...${{ curve, shown, view, theme }} />`;
  const full = params[FULL] && (curves.value || []).find((curve) => keyOf(curve) === params[FULL]);
  return html`<${Toolbar} params=${params} view=${view} />
    ${curves.error && html`<${Failure} error=${curves.error} retry=${curves.retry} />`}
    ${full
      ? html`<${Card} key=${`full ${keyOf(full)}`} ...${{ curve: full, shown, view, theme, isFull: true }} />`
      : sections.map((section) => html`<${Section} key=${section.name} ...${section} card=${card} />`)}
    ${!sections.length && curves.value && !curves.isLoading && html`<${Nothing} runs=${runs} shown=${shown} pattern=${params.m} />`}`;
}

function Nothing({ runs, shown, pattern }) {
  if (!runs.length) return html`<${Empty} title="No runs"><p class="dim">No run of this project passes the filter.</p><//>`;
  if (!shown.length) return html`<${Empty} title="All runs are hidden"><button onClick=${() => setParams({ r: null })}>Show the newest</button><//>`;
  if (pattern) return html`<${Empty} title="No metric of that name"><button onClick=${() => setParams({ m: null })}>Show all metrics</button><//>`;
  return html`<${Empty} title="Nothing logged yet"><p class="dim">These runs have no points. They appear here as they come.</p><//>`;
}

/** The curves there are, asked again at most every few seconds while runs change. */
function useCurves({ workspace, name, uids, versions }) {
  const version = uids.reduce((sum, uid) => sum + (versions.get(uid) || 0), 0);
  return useFresh(JSON.stringify([workspace, name, uids]), version, CURVES_MS, async (before) => {
    if (!uids.length) return [];
    const found = await ask("/query/curves", { workspace, project: name, runs: uids });
    const value = found.map((curve) => ({ ...curve, runs: curve.runs.map((at) => uids[at]) }));
    return JSON.stringify(value) === JSON.stringify(before) ? before : value;
  });
}

const RL_SECTIONS = { rl_episode: "episodes, across environments", rl_env_step: "environment steps, across environments" };

function sectionsOf(curves, pattern) {
  const wanted = matcher(pattern);
  const sections = new Map();
  for (const curve of curves) {
    if (!wanted(curve.metric)) continue;
    const slash = curve.metric.indexOf("/");
    const name = RL_SECTIONS[curve.family] || (slash > 0 ? curve.metric.slice(0, slash) : "charts");
    if (!sections.has(name)) sections.set(name, []);
    sections.get(name).push(curve);
  }
  const rank = (name) => ["rollout", "eval", "train", "charts"].indexOf(name) + 1 || Object.values(RL_SECTIONS).indexOf(name) + 6;
  return [...sections].map(([name, cards]) => ({ name, cards })).sort((a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name));
}

/** A regular expression where it is one, else the text itself. */
export function matcher(pattern) {
  if (!pattern) return () => true;
  try {
    const expression = new RegExp(pattern, "i");
    return (name) => expression.test(name);
  } catch {
    return (name) => name.includes(pattern);
  }
}

const keyOf = ({ metric, family, scale, labels }) =>
  [metric, ...(family === "standard" ? [] : [family]), ...(scale === "ML_STEP" ? [] : [scale]), ...Object.entries(labels).map((pair) => pair.join("="))].join(" · ");

export function readView(params) {
  const zoom = (params.xr || "").split(":").map(Number);
  const isZoom = zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1];
  return {
    axis: params.x in AXES ? params.x : "step",
    zoom: isZoom ? zoom : null,
    smooth: Math.min(0.999, Math.max(0, Number(params.sm) || 0)),
    hasBand: params.band !== "0",
    isLog: params.ly === "1",
    middle: params.agg === "last" ? "last" : "mean",
    isLive: params.live !== "0",
    by: params.g || null,
  };
}

/** Two numbers of an address, no longer than a reader can use. */
export const zoomText = (range) => range && range.map((x) => Number(x.toPrecision(8))).join(":");

export function changeZoom(range, isSliding) {
  setParams({ xr: zoomText(range) }, isSliding ? { slide: true } : { push: true });
}

// --- the line of controls -------------------------------------------------------------------------
function Toolbar({ params, view }) {
  const [pattern, setPattern] = useState(params.m || "");
  useEffect(() => setPattern(params.m || ""), [params.m]);
  const slider = Math.round(1000 * (1 - Math.pow(1 - view.smooth, 0.4)));
  const slide = (event) => {
    const amount = 1 - Math.pow(1 - event.target.value / 1000, 2.5);
    setParams({ sm: amount < 0.005 ? null : String(Number(amount.toFixed(3))) }, { slide: true });
  };
  const typed = (event) => {
    setPattern(event.target.value);
    setParams({ m: event.target.value || null }, { slide: true });
  };
  return html`<div class="toolbar">
    <input id="metric-filter" type="search" placeholder="metrics (regex)" aria-label="metrics" value=${pattern} onInput=${typed} spellcheck="false" />
    <label>x <select aria-label="x axis" value=${view.axis} onChange=${(event) => setParams({ x: event.target.value === "step" ? null : event.target.value, xr: null }, { push: true })}>
      ${Object.entries(AXES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
    </select></label>
    <label>smooth <input type="range" min="0" max="937" value=${slider} onInput=${slide} aria-label="smoothing" /></label>
    <input class="number" type="number" min="0" max="0.999" step="0.05" aria-label="smoothing, as a number" value=${view.smooth} onChange=${(event) => setParams({ sm: Number(event.target.value) ? event.target.value : null })} />
    <label><input type="checkbox" checked=${view.hasBand} onChange=${(event) => setParams({ band: event.target.checked ? null : "0" })} /> min–max band</label>
    <label><input type="checkbox" checked=${view.isLog} onChange=${(event) => setParams({ ly: event.target.checked ? "1" : null })} /> log y</label>
    ${view.zoom && html`<button onClick=${() => changeZoom(null)}>Reset zoom</button>`}
    ${params[FULL] && html`<button onClick=${() => setParams({ [FULL]: null }, { push: true })}>All charts</button>`}
  </div>`;
}

function Section({ name, cards, card }) {
  const [isOpen, setOpen] = useState(true);
  return html`<section>
    <h2><button class="quiet" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"} ${name} <span class="dim">${cards.length}</span></button></h2>
    ${isOpen && html`<div class="grid">${cards.map(card)}</div>`}
  </section>`;
}

// --- a card ---------------------------------------------------------------------------------------
function Card({ curve, shown: all, view, theme, isFull }) {
  const shown = all.filter((run) => curve.runs.includes(run.run_uid));
  const box = useRef(null);
  const isNear = useNear(box);
  const height = isFull ? Math.max(320, window.innerHeight - 200) : CARD_PX;
  return html`<article class=${isFull ? "card full" : "card"} ref=${box} aria-label=${keyOf(curve)}>
    ${isNear || isFull ? html`<${CardContent} ...${{ curve, shown, view, theme, height, box, isFull }} />` : html`<div style=${{ height: `${height + 32}px` }}></div>`}
  </article>`;
}

/** Whether an element is within a screen of what is seen. */
function useNear(box) {
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    // Of the box that scrolls: a margin of the window's does not reach what a box cuts off.
    const root = box.current.closest("main");
    const watch = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { root, rootMargin: "80% 0px" });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return isNear;
}

function CardContent({ curve, shown, view, theme, height, box, isFull }) {
  const { styles, versions } = project.use((all) => all);
  const { answer, error, isLoading, retry } = useAnswer({ curve, shown, view, versions, box });
  const isAcross = curve.family !== "standard";
  const axis = isAcross ? "step" : view.axis;
  const lines = useMemo(() => drawable(answer, shown, styles, isAcross), [answer, shown.map((run) => run.run_uid + run.state).join(), styles]);
  const zoom = isAcross ? null : view.zoom;
  const span = spanOf(axis, lines, zoom);
  const points = lines.reduce((sum, line) => sum + line.points_count, 0);
  const isExact = lines.every((line) => line.exact);
  const labels = Object.entries(curve.labels).map(([key, value]) => `${key}=${value}`).join(" ");
  return html`<header class="card-head">
      <h3 title=${keyOf(curve)}>${curve.metric}${labels && html` <small>${labels}</small>`}</h3>
      ${lines.length > 0 && html`<span class="badge" title=${`${whole(points)} points of ${lines.length} runs`}>${badge(lines, isExact, points, isAcross)}</span>`}
      <span class="tools"><button class="quiet tool" title="save what is shown as CSV" aria-label="save as CSV" onClick=${() => download(`${curve.metric.replaceAll("/", "_")}.csv`, "text/csv", csv(lines, axis))}>⤓</button>
      ${!isFull && html`<a class="quiet tool" title="full screen" aria-label="full screen" href=${href(address.get().page, { run: address.get().run, params: { ...address.get().params, [FULL]: keyOf(curve) } })}>⤢</a>`}</span>
    </header>
    ${error && html`<${Failure} error=${error} retry=${retry} />`}
    ${!error && lines.length > 0 && html`<${Chart} ...${{ lines, width: answer.width, axis, zoom, span, height, theme, hasBand: view.hasBand, isLog: view.isLog, smooth: view.smooth, middle: curve.merges ? "last" : view.middle, link: isAcross ? "rl_step" : axis, onZoom: isAcross ? () => {} : changeZoom }} />`}
    ${!error && !lines.length && html`<div style=${{ height: `${height}px` }} class="card-empty">${isLoading ? html`<${Skeleton} />` : html`<p class="dim">no points here${view.zoom ? " in this window" : ""}</p>`}</div>`}`;
}

function badge(lines, isExact, points, isAcross) {
  if (lines[0].members) return `${lines.length} groups · mean ± std`;
  const runs = lines.length === 1 ? "1 run" : `${lines.length} runs`;
  if (isAcross) return `${runs} · by rl_step`;
  if (isExact) return `${runs} · exact`;
  const buckets = lines.reduce((most, line) => Math.max(most, line.table.x.length), 0);
  return `${runs} · ${buckets} buckets · ${short(points)} pts`;
}

const spans = new Map();
/** The width of x there is in all, for smoothing; remembered from when it was last seen whole. */
function spanOf(axis, lines, zoom) {
  const low = Math.min(...lines.map((line) => line.x_first));
  const high = Math.max(...lines.map((line) => line.x_last));
  if (!zoom && high > low) spans.set(axis, Math.max(spans.get(axis) || 0, high - low));
  return spans.get(axis) || (high > low ? high - low : 1);
}

function drawable(answer, shown, styles, isAcross) {
  if (!answer) return [];
  if (answer.by) {
    return answer.lines.filter((line) => line.found).map((line) => ({
      ...line,
      label: `${answer.by.replace(/^config\./, "")} ${plain(line.group)} · n ${line.members.length}`,
      state: "",
      colour: COLOURS[line.at % COLOURS.length],
      dash: line.at < COLOURS.length ? null : [8, 4],
    }));
  }
  const known = new Map(shown.map((run) => [run.run_uid, run]));
  const lines = answer.lines.filter((line) => line.found && line.table?.x.length && known.has(line.run_uid));
  // Beside buckets the points of a short run would look like another kind of curve.
  const isMixed = !isAcross && lines.some((line) => line.exact) && lines.some((line) => !line.exact);
  return lines
    .map((line) => (isMixed && line.exact ? { ...line, exact: false, table: bucketed(line.table, answer.width) } : line))
    .map((line) => {
      const run = known.get(line.run_uid);
      const { colour, dash } = styles.get(run.run_uid);
      return { ...line, label: run.name, state: run.state, colour, dash, isAcross };
    });
}

function csv(lines, axis) {
  const names = ["mean", "last", "min", "max", "std", "count"].filter((name) => lines.some((line) => line.table[name]));
  const rows = lines.flatMap((line) =>
    Array.from(line.table.x, (x, at) => [quoted(line.label), x, ...names.map((name) => line.table[name]?.[at] ?? "")].join(",")),
  );
  return [["run", axis, ...names].join(","), ...rows].join("\r\n") + "\r\n";
}

// A name that begins like a formula must not become one in a spreadsheet.
const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;

/** The answer to a card's question: asked when it changes, and again when its runs do. */
function useAnswer({ curve, shown, view, versions, box }) {
  const { workspace, project: name } = address.use((here) => here);
  const question = questionOf({ curve, shown, view, workspace, name, width: box.current?.clientWidth || 340 });
  const version = shown.reduce((sum, run) => sum + (versions.get(run.run_uid) || 0), 0);
  const last = useRef(null);
  const isRightEdge = !view.zoom || !last.current || last.current.lines.some((line) => line.x_last === null || line.x_last <= view.zoom[1]);
  const fresh = useFresh(JSON.stringify(question), view.isLive && isRightEdge ? version : 0, LIVE_MS, async (before, signal) => {
    if (!shown.length) return NOTHING;
    try {
      if (curve.family !== "standard") return await loadAcross(question, signal);
      if (view.by) return await loadGroups(question, signal);
      const answer = await loadBuckets(question, before, signal);
      if (view.axis === "step" && !view.zoom) noteNewest(answer.lines.map((line) => [line.run_uid, line.x_last]));
      return answer;
    } catch (error) {
      if (error.code === "not_found") return NOTHING;
      throw error;
    }
  });
  last.current = fresh.value;
  return { ...fresh, answer: fresh.value };
}

const NOTHING = { lines: [], width: 1 };

function questionOf({ curve, shown, view, workspace, name, width }) {
  const runs = shown.map((run) => run.run_uid);
  const what = { workspace, project: name, runs, metrics: [curve.metric], scale: curve.scale, labels: curve.labels };
  if (curve.family !== "standard") return what;
  const window = view.zoom ? { from_x: Math.floor(view.zoom[0]), to_x: Math.ceil(view.zoom[1]), pad: PAD } : {};
  if (view.by) {
    const { pad, ...cut } = window;
    return { ...what, ...cut, axis: view.axis, buckets: bucketsFor(width), by: [view.by] };
  }
  const middle = curve.merges ? ["last"] : view.middle === "last" ? ["last", "mean"] : ["mean"];
  return { ...what, ...window, axis: view.axis, buckets: bucketsFor(width), functions: [...middle, "min", "max"] };
}

/** Cards of about one width ask the same: a pixel more or less is no other question. */
const bucketsFor = (width) => Math.max(16, Math.round(width / 40) * 40 - 40);
