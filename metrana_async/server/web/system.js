/** Whether the logging itself is well: the server, its writers, and what became of their points. */
import { ask } from "./api.js";
import { RunsPanel } from "./panel.js";
import { address, href, project, shownRuns } from "./state.js";
import { ago, duration, Empty, Failure, html, plain, Skeleton, useFresh, useState, whole } from "./ui.js";

const FRESH_MS = 3000;
/** What a writer says of itself, in the order of a point's way. */
const WAY = ["accepted", "in_flight", "spooled", "committed"];
const TROUBLE = /^(rejected|lost)\//;

export function SystemPage() {
  const { runs, versions, isLoaded } = project.use((all) => all);
  const { params } = address.use((here) => here);
  const shown = shownRuns(runs, params.r);
  if (!isLoaded) return html`<${RunsPanel} /><main><${Skeleton} /></main>`;
  return html`<${RunsPanel} />
    <main>
      <${Server} />
      ${shown.length ? html`<${Writers} ...${{ shown, versions }} />` : html`<${Empty} title="All runs are hidden" />`}
    </main>`;
}

function Server() {
  const { value, error, retry } = useFresh("health", 0, FRESH_MS, () => ask("/health"));
  if (error) return html`<${Failure} error=${error} retry=${retry} />`;
  if (!value) return html`<${Skeleton} />`;
  const skew = Date.now() - value.time_ms;
  return html`<div class="title"><h1>Server</h1>
    <span class="dim">version ${value.version} · process ${value.pid}${value.process?.host ? ` on ${value.process.host}` : ""} · protocol ${value.protocol}${Math.abs(skew) > 2000 ? ` · its clock is ${duration(Math.abs(skew))} ${skew > 0 ? "behind" : "ahead"}` : ""}</span></div>`;
}

function Writers({ shown, versions }) {
  const { workspace, project: name } = address.use((here) => here);
  const uids = shown.map((run) => run.run_uid);
  const version = uids.reduce((sum, uid) => sum + (versions.get(uid) || 0), 0);
  const found = useFresh(JSON.stringify([workspace, name, uids]), version, FRESH_MS, () =>
    Promise.all(uids.map((run) => ask("/query/run", { workspace, project: name, run }))),
  );
  if (found.error) return html`<${Failure} error=${found.error} retry=${found.retry} />`;
  if (!found.value) return html`<${Skeleton} />`;
  const rows = found.value.flatMap((run) => run.writers.map((writer) => ({ run, writer })));
  const troubles = [...new Set(rows.flatMap(({ writer }) => Object.entries(writer.counters).filter(([key, count]) => TROUBLE.test(key) && count > 0).map(([key]) => key)))].sort();
  return html`<div class="title"><h1>Writers</h1><span class="dim">what each process says of its own points; the numbers come with its heartbeats</span></div>
    <div class="scroll"><table>
      <thead><tr><th class="sticky">run</th><th>process</th><th>state</th><th class="num">heard</th>${WAY.map((key) => html`<th class="num">${key.replace("_", " ")}</th>`)}${troubles.map((key) => html`<th class="num">${key.replace("/", ": ").replaceAll("_", " ")}</th>`)}<th class="num">notices</th></tr></thead>
      <tbody>${rows.map(({ run, writer }) => html`<tr key=${writer.writer_id}>
        <td class="sticky"><a href=${href("run", { run: run.run_uid })}>${run.name}</a></td>
        <td class="dim" title=${writer.writer_id}>${[writer.process.host, writer.process.pid].filter(Boolean).map(plain).join(" · ")}</td>
        <td>${writer.left || (writer.is_online ? "online" : "offline")}</td>
        <td class="num dim">${ago(writer.seen_ms)}</td>
        ${WAY.map((key) => html`<td class="num">${whole(writer.counters[key])}</td>`)}
        ${troubles.map((key) => html`<td class=${writer.counters[key] ? "num bad" : "num"}>${whole(writer.counters[key] || 0)}</td>`)}
        <td class="num">${whole(noticesOf(writer))}</td>
      </tr>`)}</tbody>
    </table></div>
    <div class="title second"><h1>Points that arrived</h1><span class="dim">what became of them, by run</span></div>
    <${Arrived} runs=${found.value} />`;
}

const noticesOf = ({ counters }) =>
  Object.entries(counters).reduce((sum, [key, count]) => sum + (key.startsWith("warned/") ? count : 0), 0);

function Arrived({ runs }) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.counters)))];
  return html`<div class="scroll"><table>
    <thead><tr><th class="sticky">run</th>${keys.map((key) => html`<th class="num">${key.replaceAll("_", " ")}</th>`)}<th class="num">checked by reading</th></tr></thead>
    <tbody>${runs.map((run) => html`<tr key=${run.run_uid}><td class="sticky">${run.name}</td>${keys.map((key) => html`<td class="num">${whole(run.counters[key] || 0)}</td>`)}<td class="num"><${Check} run=${run} /></td></tr>`)}</tbody>
  </table></div>`;
}

/** Reads every point of a run and says whether the sum of the ledger is right. */
function Check({ run }) {
  const { workspace, project: name } = address.use((here) => here);
  const [state, setState] = useState(null);
  const check = async () => {
    setState({ isBusy: true });
    try {
      const { committed, visible, merged, duplicate, replaced, superseded, discarded_by_restart: discarded } = await ask("/query/ledger", { workspace, project: name, run: run.run_uid });
      const off = committed - (visible + merged + duplicate + replaced + superseded + discarded);
      setState({ visible, off });
    } catch (error) {
      setState({ error });
    }
  };
  if (state?.isBusy) return html`<span class="dim">reading …</span>`;
  if (state?.error) return html`<span class="bad">${state.error.message}</span>`;
  if (state) return html`<span class=${state.off ? "bad" : ""}>${whole(state.visible)} visible, ${state.off ? `${whole(state.off)} unaccounted` : "all accounted for"}</span>`;
  return html`<button class="quiet" onClick=${check}>check</button>`;
}
