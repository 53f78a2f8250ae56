/** Every project of the server; with none yet, how to begin. */
import { ask } from "./api.js";
import { href } from "./state.js";
import { ago, CopyButton, Failure, html, Skeleton, useLoad, whole } from "./ui.js";

const START = `import metrana_sync_shim as metrana

with metrana.init(project_name="first", config={"lr": 3e-4}) as run:
    for step in range(1000):
        metrana.log({"train/loss": 1 / (step + 1)}, step=step)
`;

export function HomePage() {
  const { value, error, retry } = useLoad(() => ask("/query/all_projects"), []);
  if (error) return html`<main><${Failure} error=${error} retry=${retry} /></main>`;
  if (!value) return html`<main><${Skeleton} /></main>`;
  return html`<main class="home">
    ${value.length ? html`<${Projects} projects=${value} />` : html`<${Beginning} retry=${retry} />`}
  </main>`;
}

function Projects({ projects }) {
  const isAlone = new Set(projects.map((entry) => entry.workspace)).size === 1;
  const row = ({ workspace, project, runs_count: runs, running_count: running, last_ms: last }) => {
    const url = href("charts", { workspace, project });
    return html`<tr key=${url}>
      ${!isAlone && html`<td class="dim">${workspace}</td>`}
      <td><a class="strong" href=${url}>${project}</a></td>
      <td class="num">${whole(runs)}</td>
      <td>${running > 0 && html`<span class="glyph running">●</span> ${running} running`}</td>
      <td class="num dim" title=${new Date(last).toISOString()}>${running ? "now" : ago(last)}</td>
      <td class="num"><a class="quiet" href=${href("runs", { workspace, project })}>runs</a></td>
    </tr>`;
  };
  return html`<div class="narrow-page">
    <h1>Projects</h1>
    <table>
      <thead><tr>${!isAlone && html`<th>workspace</th>`}<th>project</th><th class="num">runs</th><th>now</th><th class="num">last activity</th><th></th></tr></thead>
      <tbody>${projects.map(row)}</tbody>
    </table>
  </div>`;
}

function Beginning({ retry }) {
  return html`<div class="narrow-page">
    <h1>No runs yet</h1>
    <p class="dim">This server's store is empty. Log a first run with these lines; it appears here.</p>
    <pre class="code">${START}</pre>
    <p><${CopyButton} text=${START}>Copy<//> <button onClick=${retry}>Look again</button></p>
  </div>`;
}
