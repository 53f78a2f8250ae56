/** The episodes of one run: a table, all of them against time, and one of them step by step. */
import { ask } from "./api.js";
import { Chart, WHOLE_STEPS } from "./chart.js";
import { fitting, leastWidth, useRlInfo, useRunOfPage } from "./envs.js";
import { RunsPanel } from "./panel.js";
import { address, COLOURS, href, isDark, project, setParams } from "./state.js";
import { Empty, Failure, html, short, shortOrNone, Skeleton, useEffect, useFresh, useLoad, useMemo, useRef, whole, Windowed } from "./ui.js";

const FRESH_MS = 3000;
const ROW_PX = 30;
const ROWS_MAX = 5000;
const METRICS_MAX = 8;
const CHART_PX = 200;

export function EpisodesPage() {
  const { run, isLoaded } = useRunOfPage();
  return html`<${RunsPanel} isSingle=${true} />
    <main class="fixed">${run ? html`<${Run} key=${run.run_uid} run=${run} />` : isLoaded ? html`<${Empty} title="No such run" />` : html`<${Skeleton} />`}</main>`;
}

function Run({ run }) {
  const info = useRlInfo(run);
  if (info.error) return html`<${Failure} error=${info.error} retry=${info.retry} />`;
  if (!info.value) return html`<${Skeleton} />`;
  const plain = info.value.series.filter((row) => row.points_count > 0 && !Object.keys(row.labels).length);
  const ofEpisodes = plain.filter((row) => row.family === "rl_episode").slice(0, METRICS_MAX);
  const ofSteps = plain.filter((row) => row.family === "rl_env_step" && row.episodic !== false);
  if (!ofEpisodes.length) {
    return html`<${Empty} title=${`${run.name} has no episodes`}><p class="dim">They appear with <code>log_rl_episode</code>.</p><//>`;
  }
  return html`<${Episodes} ...${{ run, metrics: ofEpisodes.map((row) => row.metric), steps: ofSteps }} />`;
}

function Episodes({ run, metrics, steps }) {
  const { workspace, project: name, params } = address.use((here) => here);
  const { versions } = project.use((all) => all);
  const main = metrics.find((metric) => metric === params.metric) || metrics.find((metric) => /return|reward/i.test(metric)) || metrics[0];
  const order = params.sort || "-rl_step";
  const query = { workspace, project: name, runs: [run.run_uid], metrics, order_by: order, limit: ROWS_MAX, ...(params.env && { env_id: params.env }) };
  const found = useFresh(JSON.stringify(query), versions.get(run.run_uid) || 0, FRESH_MS, (before, signal) => ask("/query/episode_table", query, signal));
  const shown = readShown(params.ep);
  return html`<div class="toolbar">
      <b class="strong">${run.name}</b>
      <label>environment <${EnvBox} value=${params.env || ""} /></label>
      <label>metric <select aria-label="metric" value=${main} onChange=${(event) => setParams({ metric: event.target.value })}>${metrics.map((metric) => html`<option>${metric}</option>`)}</select></label>
      ${params.env && html`<button onClick=${() => setParams({ env: null })}>All environments</button>`}
    </div>
    ${found.error && html`<${Failure} error=${found.error} retry=${found.retry} />`}
    ${!found.value && !found.error && html`<${Skeleton} />`}
    ${found.value && html`<${Scatter} answer=${found.value} metric=${main} />
      ${shown && html`<${Steps} ...${{ run, steps, ...shown }} />`}
      <${Table} ...${{ answer: found.value, metrics, order, shown, run }} />`}`;
}

const readShown = (text) => {
  const at = (text || "").lastIndexOf(":");
  return at > 0 ? { env: text.slice(0, at), episode: Number(text.slice(at + 1)) } : null;
};

function EnvBox({ value }) {
  return html`<input type="search" class="short" aria-label="environment" placeholder="all" value=${value} onChange=${(event) => setParams({ env: event.target.value.trim() || null })} spellcheck="false" />`;
}

function Table({ answer, metrics, order, shown, run }) {
  const { columns, env_names: names, total_count: total } = answer;
  const count = columns.env.length;
  const heads = [["env", "environment"], ["episode", "episode"], ["rl_step", "rl_step"], ...metrics.map((metric) => [metric, metric]), ["restarts", "restarts"]];
  const template = `minmax(120px, 1.2fr) ${heads.slice(1).map(([, text]) => fitting(text)).join(" ")}`;
  const minWidth = heads.reduce((sum, [, text]) => sum + leastWidth(text) + 12, 150);
  const row = (at) => {
    const env = names[columns.env[at]];
    const episode = columns.episode[at];
    const isChosen = shown && shown.env === env && shown.episode === episode;
    const open = () => setParams({ ep: isChosen ? null : `${env}:${episode}` }, { push: true });
    return html`<div class=${isChosen ? "row chosen" : "row"} role="row" tabindex="0" key=${`${env} ${episode}`} style=${{ gridTemplateColumns: template, height: `${ROW_PX}px` }} onClick=${open} onKeyDown=${(event) => event.key === "Enter" && open()}>
      <span>${env}</span><span class="num">${whole(episode)}</span><span class="num">${whole(columns.rl_step[at])}</span>
      ${metrics.map((metric) => html`<span class="num">${shortOrNone(columns[metric]?.[at])}</span>`)}
      <span class=${columns.restarts[at] ? "num bad" : "num dim"}>${columns.restarts[at] || "–"}</span>
    </div>`;
  };
  return html`<h2 class="table-title">Episodes <span class="dim">${count < total ? `the first ${whole(count)} of ${whole(total)}` : whole(total)} · click a row for its steps</span></h2>
    <${Windowed} count=${count} rowHeight=${ROW_PX} row=${row} class="rows" minWidth=${minWidth} head=${html`<div class="rows-head" style=${{ gridTemplateColumns: template, minWidth: `${minWidth}px` }}>
      ${heads.map(([name, text]) => {
        const direction = order === name ? "ascending" : order === `-${name}` ? "descending" : undefined;
        return html`<span class=${name === "env" ? "" : "num"} aria-sort=${direction}><button class="head" title=${text} onClick=${() => setParams({ sort: direction === "descending" ? name : `-${name}` })}>${text}${direction ? (direction === "ascending" ? " ↑" : " ↓") : ""}</button></span>`;
      })}
    </div>`} />`;
}

/** One dot an episode. */
function Scatter({ answer, metric }) {
  const { theme } = project.use((all) => all);
  const box = useRef(null);
  const { columns } = answer;
  const data = useMemo(() => {
    if (!columns[metric]) return [[], []]; // the answer to the question before
    const rows = Array.from(columns.rl_step.keys()).filter((at) => Number.isFinite(columns[metric][at]));
    rows.sort((a, b) => columns.rl_step[a] - columns.rl_step[b]);
    return [rows.map((at) => columns.rl_step[at]), rows.map((at) => columns[metric][at])];
  }, [columns, metric]);
  useEffect(() => {
    const [text, grid] = isDark() ? ["#9aa4b2", "#232a33"] : ["#5f6b7a", "#e7eaee"];
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot(
      {
        width: box.current.clientWidth,
        height: CHART_PX,
        legend: { show: false },
        padding: [10, 12, 0, 0],
        cursor: { y: false, drag: { x: false, y: false } },
        // A little wider than the points: those on the edge would be cut.
        scales: { x: { time: false, range: (u, min, max) => [(min ?? 0) - 0.5, (max ?? 1) + 0.5] }, y: {} },
        axes: [{ ...axis, size: 30, incrs: WHOLE_STEPS, values: (u, splits) => splits.map(short) }, { ...axis, size: 56, values: (u, splits) => splits.map(short) }],
        series: [{}, { stroke: null, paths: () => null, points: { show: true, size: 4, width: 0, fill: `${COLOURS[0]}80` } }],
      },
      data,
      box.current,
    );
    const watch = new ResizeObserver(([entry]) => plot.setSize({ width: Math.max(120, Math.floor(entry.contentRect.width)), height: CHART_PX }));
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [data, theme]);
  return html`<article class="card" aria-label=${`${metric} of each episode`}><header class="card-head"><h3>${metric} of each episode</h3><span class="badge">${whole(data[0].length)} episodes · by rl_step</span></header>
    <div class="plot" ref=${box} style=${{ height: `${CHART_PX}px` }}></div></article>`;
}

/** What was logged in one episode, step by step. */
function Steps({ run, steps, env, episode }) {
  const { workspace, project: name } = address.use((here) => here);
  const { theme } = project.use((all) => all);
  const found = useLoad(
    () => Promise.all(steps.map(({ metric, scale }) =>
      ask("/query/buckets", { workspace, project: name, runs: [run.run_uid], metrics: [metric], scale, env_id: env, episode, axis: "step", buckets: 600, functions: ["mean", "min", "max"] })
        .then(({ columns, width, lines }) => ({ metric, columns, width, exact: lines[0].exact }))
        .catch((error) => {
          if (error.code === "not_found") return null;
          throw error;
        }))),
    [run.run_uid, env, episode, steps.length],
  );
  if (found.error) return html`<${Failure} error=${found.error} retry=${found.retry} />`;
  if (!found.value) return html`<${Skeleton} />`;
  const there = found.value.filter((answer) => answer && answer.columns.x.length);
  return html`<h2 class="table-title">${env}, episode ${whole(episode)} <span class="dim">step by step</span> <button class="quiet" onClick=${() => setParams({ ep: null })}>close</button>
      <a class="quiet dim" href=${href("envs", { run: run.run_uid, params: { at: `ep:${episode}`, sel: env } })}>all environments in this episode</a></h2>
    ${there.length ? html`<div class="grid steps">${there.map(({ metric, columns, width, exact }) => html`<article class="card" key=${metric} aria-label=${metric}>
      <header class="card-head"><h3>${metric}</h3><span class="badge">${exact ? `${columns.x.length} steps · exact` : `${columns.x.length} buckets`}</span></header>
      <${Chart} ...${{ lines: [{ label: env, colour: COLOURS[0], dash: null, exact, state: "", table: columns }], width, axis: "step", zoom: null, middle: "mean", smooth: 0, span: 1, hasBand: true, isLog: false, height: 160, link: "env_step", onZoom: () => {}, theme }} />
    </article>`)}</div>` : html`<p class="dim">No steps were logged in this episode.</p>`}`;
}
