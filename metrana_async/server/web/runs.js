/** The runs as a table: what they are, what differs between them, how far they came. */
import { ask } from "./api.js";
import { RunsPanel } from "./panel.js";
import { address, go, href, noteNewest, project, setParams, shortId } from "./state.js";
import { ago, download, duration, Empty, Failure, flatten, html, plain, short, Skeleton, StateGlyph, useEffect, useFresh, useMemo, useState } from "./ui.js";

const SUMMARY_MS = 5000;
const METRICS_MAX = 4;
const RUNS_MAX = 200;

export function RunsPage() {
  const { runs, versions, isLoaded } = project.use((all) => all);
  const { params } = address.use((here) => here);
  const [chosen, setChosen] = useState(new Set());
  const [at, setAt] = useState(0);
  const configs = useMemo(() => new Map(runs.map((run) => [run.run_uid, new Map(flatten(run.config))])), [runs]);
  const keys = useMemo(() => differing(configs), [configs]);
  const summaries = useSummaries(runs.slice(0, RUNS_MAX), versions, params.cols);
  const columns = useMemo(() => columnsOf(keys, configs, summaries.value), [keys, configs, summaries.value]);
  const rows = useMemo(() => ordered(runs, columns, params.sort), [runs, columns, params.sort]);
  const toggle = (run) => {
    const next = new Set(chosen);
    if (!next.delete(run.run_uid)) next.add(run.run_uid);
    setChosen(next);
  };
  useKeys({ rows, at, setAt, toggle });
  if (!isLoaded) return html`<${RunsPanel} /><main><${Skeleton} /></main>`;
  const picked = rows.filter((run) => chosen.has(run.run_uid));
  return html`<${RunsPanel} />
    <main>
      <div class="toolbar">
        <span>${runs.length} runs</span>
        <${MetricPicker} all=${summaries.value?.metrics || []} chosen=${summaries.value?.chosen || []} />
        <span class="fill"></span>
        ${picked.length > 0 && html`<span>${picked.length} chosen</span>`}
        <button disabled=${picked.length < 2} onClick=${() => go(href("compare", { params: { r: picked.map(shortId).join(","), q: params.q ?? null } }))}>Compare</button>
        <button disabled=${!picked.length} onClick=${() => go(href("charts", { params: { r: picked.map(shortId).join(","), q: params.q ?? null } }))}>Chart</button>
        <button disabled=${!rows.length} onClick=${() => download("runs.csv", "text/csv", csv(picked.length ? picked : rows, columns))}>CSV</button>
      </div>
      ${summaries.error && html`<${Failure} error=${summaries.error} retry=${summaries.retry} />`}
      ${!rows.length && html`<${Empty} title="No runs"><p class="dim">${params.q ? "No run passes the filter." : "Nothing was logged to this project yet."}</p><//>`}
      ${rows.length > 0 && html`<div class="scroll"><table class="runs">
        <thead><tr>
          <th class="sticky"><span class="check"></span> <${Sorter} name="name" sort=${params.sort} /></th>
          ${columns.map((column) => html`<th key=${column.name} class=${column.isNumber ? "num" : ""} aria-sort=${sortOf(params.sort, column.name)} title=${column.title}><${Sorter} name=${column.name} text=${column.text} sort=${params.sort} /></th>`)}
        </tr></thead>
        <tbody>${rows.slice(0, RUNS_MAX * 5).map((run, index) => html`<${Row} key=${run.run_uid} ...${{ run, columns, isChosen: chosen.has(run.run_uid), isHere: index === at, toggle }} />`)}</tbody>
      </table></div>`}
      <p class="dim hint"><kbd>j</kbd> <kbd>k</kbd> move · <kbd>x</kbd> choose · <kbd>Enter</kbd> open</p>
    </main>`;
}

function Row({ run, columns, isChosen, isHere, toggle }) {
  const { styles } = project.get();
  return html`<tr class=${(isChosen ? "chosen" : "") + (isHere ? " here" : "")}>
    <td class="sticky"><input type="checkbox" checked=${isChosen} onChange=${() => toggle(run)} aria-label=${`choose ${run.name}`} />
      <i class="swatch" style=${{ background: styles.get(run.run_uid)?.colour }}></i>
      <a href=${href("run", { run: run.run_uid })}>${run.name}</a></td>
    ${columns.map((column) => html`<td key=${column.name} class=${column.isNumber ? "num" : "cut"}>${column.cell(run)}</td>`)}
  </tr>`;
}

const sortOf = (sort, name) => (sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined);

function Sorter({ name, text, sort }) {
  const direction = sortOf(sort, name);
  const next = direction === undefined ? name : direction === "ascending" ? `-${name}` : null;
  return html`<button onClick=${() => setParams({ sort: next }, { push: true })}>${text || name}${direction === "ascending" ? " ↑" : direction === "descending" ? " ↓" : ""}</button>`;
}

function MetricPicker({ all, chosen }) {
  if (!all.length) return null;
  return html`<details class="picker-box"><summary>summary columns</summary><div>
    ${all.slice(0, 200).map((metric) => html`<label key=${metric}><input type="checkbox" checked=${chosen.includes(metric)} onChange=${() => setParams({ cols: toggledText(chosen, metric) })} /> ${metric}</label>`)}
  </div></details>`;
}

const toggledText = (list, item) => (list.includes(item) ? list.filter((other) => other !== item) : [...list, item]).join(",") || "none";

/** The config keys that not all runs have the same value for. */
function differing(configs) {
  const seen = new Map();
  for (const config of configs.values()) {
    for (const [key, value] of config) {
      if (!seen.has(key)) seen.set(key, new Map());
      const counts = seen.get(key);
      const text = JSON.stringify(value);
      counts.set(text, (counts.get(text) || 0) + 1);
    }
  }
  const isSame = (counts) => counts.size === 1 && [...counts.values()][0] === configs.size;
  return [...seen].filter(([, counts]) => !isSame(counts)).map(([key]) => key).sort();
}

/** The last value and the extremes of some metrics of every run, asked again as they change. */
export function useSummaries(runs, versions, wanted) {
  const { workspace, project: name } = address.use((here) => here);
  const uids = runs.map((run) => run.run_uid);
  const version = uids.reduce((sum, uid) => sum + (versions.get(uid) || 0), 0);
  return useFresh(JSON.stringify([workspace, name, uids, wanted]), version, SUMMARY_MS, async () => {
    if (!uids.length) return null;
    const found = await ask("/query/definitions", { workspace, project: name });
    const metrics = [...new Set(found.metrics.filter((of) => of.family === "standard").map((of) => of.metric))];
    const chosen = wanted ? wanted.split(",").filter((metric) => metrics.includes(metric)) : metrics.slice(0, METRICS_MAX);
    if (!chosen.length) return { metrics, chosen, of: new Map() };
    const answer = await ask("/query/series_summaries", { workspace, project: name, runs: uids, metrics: chosen });
    const of = new Map();
    const { run, metric, last, min, max, mean, last_step: lastStep, count } = answer.columns;
    for (let at = 0; at < run.length; at++) {
      of.set(`${uids[run[at]]} ${chosen[metric[at]]}`, { last: last[at], min: min[at], max: max[at], mean: mean[at], lastStep: lastStep[at], count: count[at] });
    }
    noteNewest(uids.map((uid) => [uid, Math.max(...chosen.map((metric) => of.get(`${uid} ${metric}`)?.lastStep ?? -1))]).filter(([, step]) => step >= 0));
    return { metrics, chosen, of };
  });
}

function columnsOf(keys, configs, summaries) {
  const fact = (name, read, cell = read, isNumber = false) => ({ name, text: name, read, cell, isNumber });
  const columns = [
    fact("state", (run) => run.state, (run) => html`<${StateGlyph} state=${run.state} /> ${run.state}`),
    fact("age", (run) => Date.now() - run.created_ms, (run) => html`<span title=${new Date(run.created_ms).toISOString()}>${ago(run.created_ms)}</span>`, true),
    fact("duration", lengthOf, (run) => duration(lengthOf(run)), true),
    fact("tags", (run) => run.tags.join(" "), (run) => run.tags.map((tag) => html`<span class="tag">${tag}</span>`)),
  ];
  if (summaries) {
    const step = (run) => summaries.chosen.reduce((most, metric) => Math.max(most ?? -1, summaries.of.get(`${run.run_uid} ${metric}`)?.lastStep ?? -1), null);
    columns.push(fact("step", step, (run) => (step(run) >= 0 ? short(step(run)) : "–"), true));
  }
  for (const key of keys) {
    const read = (run) => configs.get(run.run_uid)?.get(key);
    const isNumber = [...configs.values()].every((config) => !config.has(key) || typeof config.get(key) === "number");
    columns.push({ ...fact(`config.${key}`, read, (run) => plain(read(run)), isNumber), text: key, title: `config.${key}` });
  }
  for (const metric of summaries?.chosen || []) {
    const of = (run) => summaries.of.get(`${run.run_uid} ${metric}`);
    columns.push({
      ...fact(`summary.${metric}.last`, (run) => of(run)?.last, (run) => of(run) && html`<span title=${`min ${short(of(run).min)} · max ${short(of(run).max)} · mean ${short(of(run).mean)} · ${short(of(run).count)} points`}>${short(of(run).last)}</span>`, true),
      text: metric,
      title: `${metric}, the last value`,
    });
  }
  return columns;
}

const lengthOf = (run) => (run.state === "running" ? Date.now() : run.state_ms) - run.created_ms;

function ordered(runs, columns, sort) {
  if (!sort) return runs;
  const name = sort.replace(/^-/, "");
  const read = name === "name" ? (run) => run.name : columns.find((column) => column.name === name)?.read;
  if (!read) return runs;
  const sign = sort.startsWith("-") ? -1 : 1;
  const isNothing = (value) => value === undefined || value === null || Number.isNaN(value);
  return [...runs].sort((a, b) => {
    const [left, right] = [read(a), read(b)];
    if (isNothing(left) || isNothing(right)) return isNothing(left) - isNothing(right);
    if (typeof left === "number" && typeof right === "number") return sign * (left - right);
    return sign * String(left).localeCompare(String(right), undefined, { numeric: true });
  });
}

function useKeys({ rows, at, setAt, toggle }) {
  useEffect(() => {
    const onKey = (event) => {
      if (event.target.matches?.("input[type=search], select") || event.ctrlKey || event.metaKey) return;
      if (event.key === "j") setAt(Math.min(rows.length - 1, at + 1));
      else if (event.key === "k") setAt(Math.max(0, at - 1));
      else if (event.key === "x" && rows[at]) toggle(rows[at]);
      else if (event.key === "Enter" && rows[at] && event.target === document.body) go(href("run", { run: rows[at].run_uid }));
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  });
}

function csv(rows, columns) {
  const cell = (value) => {
    const text = value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    const isFormula = typeof value === "string" && /^[=+\-@\t\r]/.test(text);
    return `"${(isFormula ? "'" : "") + text.replaceAll('"', '""')}"`;
  };
  const lines = rows.map((run) => [run.run_uid, run.name, ...columns.map((column) => column.read(run))].map(cell).join(","));
  return [["run_uid", "name", ...columns.map((column) => column.name)].map(cell).join(","), ...lines].join("\r\n") + "\r\n";
}
