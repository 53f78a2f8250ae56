/** One run: what it was told, where it ran, what became of its points. */
import { ask } from "./api.js";
import { Charts } from "./charts.js";
import { RunsPanel } from "./panel.js";
import { address, href, project } from "./state.js";
import { ago, CopyButton, dateTime, duration, Failure, flatten, html, plain, short, Skeleton, StateGlyph, useFresh, whole } from "./ui.js";
import { useSummaries } from "./runs.js";

const RUN_MS = 3000;
/** What the server tells of a process, in the order people ask for it. */
const PROCESS_KEYS = ["host", "hostname", "pid", "argv", "command", "python", "cwd"];

/** The run of the address, kept fresh. */
export function useRun(uid) {
  const { workspace, project: name } = address.use((here) => here);
  const versions = project.use((all) => all.versions);
  return useFresh(JSON.stringify([workspace, name, uid]), versions.get(uid) || 0, RUN_MS, async () => {
    return { run: await ask("/query/run", { workspace, project: name, run: uid }) };
  });
}

export function RunPage() {
  const uid = address.use((here) => here.run);
  const { value, error, retry } = useRun(uid);
  return html`<${RunsPanel} isSingle=${true} />
    <main>
      ${error && html`<${Failure} error=${error} retry=${retry} />`}
      ${!value && !error && html`<${Skeleton} />`}
      ${value && html`<${Run} ...${value} />`}
    </main>`;
}

function Run({ run }) {
  const links = { r: run.run_uid.slice(0, 6) };
  const end = run.state === "running" ? Date.now() : run.state_ms;
  return html`<div class="title">
      <h1>${run.name}</h1>
      <span><${StateGlyph} state=${run.state} /> ${run.state}${run.exception_type && html` <span class="bad">${run.exception_type}</span>`}</span>
      <span class="dim">${dateTime(run.created_ms)} · ${duration(end - run.created_ms)}</span>
      ${run.tags.map((tag) => html`<span class="tag">${tag}</span>`)}
      <span class="fill"></span>
      <a class="button" href=${href("charts", { params: links })}>Charts</a>
      <a class="button" href=${href("envs", { run: run.run_uid })}>Environments</a>
      <a class="button" href=${href("episodes", { run: run.run_uid })}>Episodes</a>
    </div>
    ${run.description && html`<p>${run.description}</p>`}
    ${run.notes && html`<p class="dim">${run.notes}</p>`}
    <div class="columns">
      <div class="box"><h2>Config <span class="fill"></span><${CopyButton} text=${() => JSON.stringify(run.config, null, 2)}>Copy JSON<//></h2>
        <${Pairs} pairs=${flatten(run.config)} empty="no config was logged" /></div>
      <${Summary} run=${run} />
      <div class="box"><h2>Metadata</h2><${Pairs} pairs=${metadata(run)} /></div>
      <${Ledger} counters=${run.counters} />
      <${Writers} writers=${run.writers} />
    </div>
    <section><${Charts} shown=${[run]} /></section>`;
}

export function Pairs({ pairs, empty }) {
  if (!pairs.length) return html`<p class="dim">${empty}</p>`;
  return html`<table><tbody>${pairs.map(([key, value]) => html`<tr key=${key}><td class="key" title=${key}>${key}</td><td class="value">${plain(value)}</td></tr>`)}</tbody></table>`;
}

function metadata(run) {
  const others = Object.entries(run.attributes).filter(([path]) => !path.startsWith("config/") && !["sys/tags", "sys/description", "sys/notes"].includes(path));
  const process = run.writers[0]?.process || {};
  const known = PROCESS_KEYS.filter((key) => key in process).map((key) => [key, process[key]]);
  return [["uid", run.run_uid], ["job", run.orchestration_id], ...(run.git_sha ? [["git", run.git_sha]] : []), ...known, ...others];
}

function Summary({ run }) {
  const versions = project.use((all) => all.versions);
  const { value, error } = useSummaries([run], versions, null);
  const all = useSummaries([run], versions, value ? value.metrics.slice(0, 100).join(",") : null);
  const rows = (all.value?.chosen || []).map((metric) => [metric, all.value.of.get(`${run.run_uid} ${metric}`)]).filter(([, of]) => of);
  return html`<div class="box"><h2>Summary</h2>
    ${(error || all.error) && html`<${Failure} error=${error || all.error} />`}
    ${rows.length > 0 && html`<table>
      <thead><tr><th>metric</th><th class="num">last</th><th class="num">min</th><th class="num">max</th><th class="num">points</th></tr></thead>
      <tbody>${rows.map(([metric, of]) => html`<tr key=${metric}><td class="key" title=${metric}>${metric}</td><td class="num">${short(of.last)}</td><td class="num">${short(of.min)}</td><td class="num">${short(of.max)}</td><td class="num">${short(of.count)}</td></tr>`)}</tbody>
    </table>`}
  </div>`;
}

/** What became of the points that arrived; anything but "stored" is worth a look. */
export function Ledger({ counters, children }) {
  const rows = Object.entries(counters).filter(([, count]) => typeof count === "number");
  return html`<div class="box"><h2>Points that arrived ${children}</h2>
    ${rows.length ? html`<table><tbody>${rows.map(([reason, count]) => html`<tr key=${reason}><td class="key">${reason.replaceAll("_", " ")}</td><td class="num">${whole(count)}</td></tr>`)}</tbody></table>` : html`<p class="dim">nothing yet</p>`}
  </div>`;
}

export function Writers({ writers }) {
  return html`<div class="box"><h2>Writers</h2>
    <table><thead><tr><th>writer</th><th>process</th><th>state</th><th class="num">heard</th></tr></thead>
    <tbody>${writers.map((writer) => html`<tr key=${writer.writer_id}>
      <td class="key" title=${writer.writer_id}>${writer.logger_id || writer.writer_id.slice(0, 12)}</td>
      <td>${[writer.process.host || writer.process.hostname, writer.process.pid].filter(Boolean).join(" · ")}</td>
      <td>${writer.left || (writer.is_online ? "online" : "offline")}</td>
      <td class="num dim">${ago(writer.seen_ms)}</td></tr>`)}</tbody></table>
  </div>`;
}
