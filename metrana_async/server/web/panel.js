/** The runs of the project, beside every page that shows some of them. */
import { go, href, project, setParams, setTaste, shownRuns, taste, toggled, address } from "./state.js";
import { Failure, html, short, StateGlyph, useEffect, useRef, useState, Windowed } from "./ui.js";

const ROW_PX = 30;
const FILTER_MS = 400;

export function RunsPanel({ groups, isSingle }) {
  const { runs, styles, error, isLoaded, newestX } = project.use((all) => all);
  const params = address.use((here) => here.params);
  const { page, run: current } = address.use((here) => here);
  const isHidden = taste.use((mine) => mine.isPanelHidden);
  if (isHidden) {
    return html`<aside class="panel narrow">
      <button class="quiet" title="show the runs ([)" aria-label="show the runs" onClick=${() => setTaste({ isPanelHidden: false })}>›</button>
    </aside>`;
  }
  const shown = new Set(shownRuns(runs, params.r));
  const row = (at) => {
    const run = runs[at];
    const style = styles.get(run.run_uid);
    const isOn = isSingle ? run.run_uid === current || (!current && at === 0) : shown.has(run);
    const choose = () =>
      isSingle ? go(href(page, { run: run.run_uid, params: keepView(params) })) : setParams({ r: toggled(runs, params.r, run) });
    return html`<div class=${isOn ? "run-row" : "run-row off"} key=${run.run_uid} style=${{ height: `${ROW_PX}px` }}>
      <button class="dot" aria-pressed=${isOn} title=${isOn ? "hide" : "show"} aria-label=${`${isOn ? "hide" : "show"} ${run.name}`} onClick=${choose}>
        <i style=${{ background: style.colour }} class=${style.dash ? "dashed" : ""}></i>
      </button>
      <a class="run-name" href=${href(isSingle ? page : "run", { run: run.run_uid, params: isSingle ? keepView(params) : {} })} title=${run.name}>${run.name}</a>
      <${StateGlyph} state=${run.state} />
      <span class="run-progress">${newestX.has(run.run_uid) ? short(newestX.get(run.run_uid)) : ""}</span>
    </div>`;
  };
  return html`<aside class="panel" aria-label="runs">
    <${FilterBox} value=${params.q || ""} />
    ${groups}
    ${error && html`<${Failure} error=${error} />`}
    <${Windowed} count=${runs.length} rowHeight=${ROW_PX} row=${row} class="run-list" />
    <div class="panel-foot">
      ${isLoaded && html`<span>${isSingle ? runs.length : `${shown.size} of ${runs.length}`} runs</span>`}
      <span><kbd>/</kbd> filter</span>
      <button class="quiet" title="hide this panel" onClick=${() => setTaste({ isPanelHidden: true })}><kbd>[</kbd> hide</button>
    </div>
  </aside>`;
}

/** What of the view goes along to another run. */
const keepView = ({ metric, at, fn, by }) => ({ metric: metric ?? null, at: at === "latest" ? at : null, fn: fn ?? null, by: by ?? null });

function FilterBox({ value }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => setText(value), [value]);
  const change = (event) => {
    const next = event.target.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setParams({ q: next.trim() || null }), FILTER_MS);
  };
  return html`<input id="run-filter" class="wide" type="search" placeholder="filter: config.seed < 3" title="for example: config.optimizer.lr < 1e-3 and state = 'finished'" aria-label="filter of runs" value=${text} onInput=${change} spellcheck="false" />`;
}
