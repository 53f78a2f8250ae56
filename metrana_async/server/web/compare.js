/** Some runs side by side: what was set differently, and what came of it. */
import { Charts } from "./charts.js";
import { RunsPanel } from "./panel.js";
import { useSummaries } from "./runs.js";
import { address, href, project, setParams, shownRuns } from "./state.js";
import { Empty, Failure, flatten, html, plain, short, Skeleton, StateGlyph } from "./ui.js";

const METRICS_MAX = 60;

export function ComparePage() {
  const { runs, isLoaded } = project.use((all) => all);
  const { params } = address.use((here) => here);
  const shown = shownRuns(runs, params.r);
  if (!isLoaded) return html`<${RunsPanel} /><main><${Skeleton} /></main>`;
  if (shown.length < 2) {
    return html`<${RunsPanel} /><main><${Empty} title="Nothing to compare"><p class="dim">Switch at least two runs on in the list on the left.</p><//></main>`;
  }
  return html`<${RunsPanel} />
    <main>
      <${Configs} runs=${shown} isAll=${params.all === "1"} />
      <${Summaries} runs=${shown} />
      <section><${Charts} shown=${shown} /></section>
    </main>`;
}

function Heads({ runs, first }) {
  const { styles } = project.get();
  return html`<thead><tr><th class="sticky">${first}</th>
    ${runs.map((run) => html`<th key=${run.run_uid}><i class="swatch" style=${{ background: styles.get(run.run_uid)?.colour }}></i><a href=${href("run", { run: run.run_uid })}>${run.name}</a> <${StateGlyph} state=${run.state} /></th>`)}
  </tr></thead>`;
}

function Configs({ runs, isAll }) {
  const configs = runs.map((run) => new Map(flatten(run.config)));
  const keys = [...new Set(configs.flatMap((config) => [...config.keys()]))].sort();
  const isDifferent = (key) => new Set(configs.map((config) => JSON.stringify(config.get(key)))).size > 1;
  const rows = isAll ? keys : keys.filter(isDifferent);
  return html`<div class="title"><h1>Config</h1>
      <span class="dim">${rows.length} of ${keys.length} keys${isAll ? "" : " differ"}</span>
      <label class="dim"><input type="checkbox" checked=${isAll} onChange=${(event) => setParams({ all: event.target.checked ? "1" : null })} /> all keys</label></div>
    <div class="scroll"><table><${Heads} runs=${runs} first="key" />
      <tbody>${rows.map((key) => html`<tr key=${key}><td class="sticky dim">${key}</td>${configs.map((config) => html`<td class=${isAll && isDifferent(key) ? "cut strong" : "cut"}>${plain(config.get(key))}</td>`)}</tr>`)}</tbody>
    </table>${!rows.length && html`<p class="dim">These runs have the same config.</p>`}</div>`;
}

function Summaries({ runs }) {
  const { versions } = project.use((all) => all);
  const found = useSummaries(runs, versions, null);
  const all = useSummaries(runs, versions, found.value ? found.value.metrics.slice(0, METRICS_MAX).join(",") : null);
  if (all.error) return html`<${Failure} error=${all.error} retry=${all.retry} />`;
  const metrics = all.value?.chosen || [];
  return html`<div class="title second"><h1>Last values</h1><span class="dim">with the least and the greatest of each run</span></div>
    <div class="scroll"><table><${Heads} runs=${runs} first="metric" />
      <tbody>${metrics.map((metric) => html`<tr key=${metric}><td class="sticky dim">${metric}</td>
        ${runs.map((run) => {
          const of = all.value.of.get(`${run.run_uid} ${metric}`);
          return html`<td>${of ? html`<b>${short(of.last)}</b> <span class="dim">${short(of.min)} … ${short(of.max)}</span>` : html`<span class="dim">–</span>`}</td>`;
        })}</tr>`)}</tbody>
    </table></div>`;
}
