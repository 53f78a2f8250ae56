/** The frame around every page: header, login, keys; and which page the address means. */
import { ask, logIn, ROOT, whenLoggedOut } from "./api.js";
import { copyHovered } from "./chart.js";
import { ChartsPage } from "./charts.js";
import { address, applyTheme, closeProject, go, href, onLinkClick, openProject, project, setParams, setTaste, taste } from "./state.js";
import { CopyButton, createStore, duration, Empty, Failure, html, short, Skeleton, useEffect, useLoad, useState } from "./ui.js";
import { Component, render } from "./vendor/preact.js";

const TABS = [["runs", "Runs"], ["charts", "Charts"], ["compare", "Compare"], ["envs", "Environments"], ["episodes", "Episodes"], ["system", "System"]];
const OF_ONE_RUN = ["run", "envs", "episodes"];
/** Pages that few open first are fetched when they are. */
const LATER = {
  home: () => import("./home.js").then((module) => module.HomePage),
  runs: () => import("./runs.js").then((module) => module.RunsPage),
  run: () => import("./run.js").then((module) => module.RunPage),
  compare: () => import("./compare.js").then((module) => module.ComparePage),
  envs: () => import("./envs.js").then((module) => module.EnvironmentsPage),
  episodes: () => import("./episodes.js").then((module) => module.EpisodesPage),
  system: () => import("./system.js").then((module) => module.SystemPage),
};

let isStyled = null;
/** The style of those pages; the charts, which come first, do without. */
function pageStyle() {
  isStyled ??= new Promise((done) => {
    const link = document.createElement("link");
    Object.assign(link, { rel: "stylesheet", href: `${ROOT}web/pages.css`, onload: done, onerror: done });
    document.head.append(link);
  });
  return isStyled;
}

const session = createStore({ isOut: false, told: null });
whenLoggedOut(() => session.set({ isOut: true }));

function App() {
  const { workspace, project: name, page, params } = address.use((here) => here);
  const { isOut } = session.use((mine) => mine);
  useEffect(() => {
    if (isOut) return;
    if (name === null) closeProject();
    else openProject(workspace, name, params.q);
  }, [workspace, name, params.q, isOut]);
  useEffect(() => {
    document.title = name === null ? "Metrana" : `${name} · ${page} · Metrana`;
  }, [name, page]);
  if (isOut) return html`<${Login} />`;
  return html`<${Header} /><div class="body"><${Boundary} key=${page}>${page === "charts" ? html`<${ChartsPage} />` : html`<${Later} page=${page} />`}<//></div>`;
}

/** Says what went wrong instead of leaving an empty page; the header stays. */
class Boundary extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }
  render({ children }, { error }) {
    if (!error) return children;
    return html`<main><${Failure} error=${{ message: "this page could not be shown", hint: String(error) }} retry=${() => this.setState({ error: null })} /></main>`;
  }
}

function Later({ page }) {
  const { value: Page, error, retry } = useLoad(async () => {
    const [Page] = await Promise.all([LATER[page](), pageStyle()]);
    return { Page };
  }, [page]);
  if (error) return html`<main><${Failure} error=${error} retry=${retry} /></main>`;
  return Page ? html`<${Page.Page} />` : html`<main><${Skeleton} /></main>`;
}

// --- header ---------------------------------------------------------------------------------------
function Header() {
  const { page, project: name, workspace, params, run } = address.use((here) => here);
  const kept = { r: params.r ?? null, q: params.q ?? null, g: params.g ?? null };
  return html`<header class="top">
    <a class="brand" href=${href("home")} aria-label="all projects"><img src=${`${ROOT}web/icon.svg`} alt="" width="20" height="20" /> metrana</a>
    ${name !== null && html`<${ProjectPicker} name=${name} workspace=${workspace} />
      <nav aria-label="pages">
        ${TABS.map(([tab, text]) => html`<a class=${tab === page ? "tab here" : "tab"} aria-current=${tab === page ? "page" : undefined} href=${href(tab, { params: kept, run: OF_ONE_RUN.includes(tab) && OF_ONE_RUN.includes(page) ? run : null })}>${text}</a>`)}
      </nav>`}
    <span class="fill"></span>
    ${name !== null && html`<${LivePill} params=${params} />`}
    ${name !== null && html`<${CopyButton} text=${() => location.href} title="the address says all of this view">Copy link<//>`}
    <${ThemeButton} />
  </header>`;
}

function ProjectPicker({ name, workspace }) {
  const { value } = useLoad(() => ask("/query/all_projects"), [name]);
  const projects = value || [{ project: name, workspace }];
  const key = (entry) => JSON.stringify([entry.workspace, entry.project]);
  const isAlone = new Set(projects.map((entry) => entry.workspace)).size === 1;
  const choose = (event) => {
    const [chosen, project] = JSON.parse(event.target.value);
    go(href("charts", { workspace: chosen, project }));
  };
  return html`<select class="picker" aria-label="project" value=${key({ workspace, project: name })} onChange=${choose}>
    ${projects.map((entry) => html`<option value=${key(entry)}>${isAlone ? entry.project : `${entry.workspace} / ${entry.project}`}</option>`)}
  </select>`;
}

function LivePill({ params }) {
  const { live, newestX, lastNewsMs, runs } = project.use((all) => all);
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const isPaused = params.live === "0";
  const isRunning = runs.some((run) => run.state === "running");
  const newest = newestX.size ? short(Math.max(...newestX.values())) : null;
  let text = isRunning ? "live" : "up to date";
  let tone = isRunning ? "on" : "idle";
  if (isPaused) [text, tone] = ["paused", "idle"];
  else if (live === "lost") [text, tone] = [lastNewsMs ? `no server · ${duration(Date.now() - lastNewsMs)}` : "connecting", "off"];
  else if (live === "polling" && isRunning) text = "live (5 s)";
  return html`<button class=${`pill ${tone}`} title=${isPaused ? "go on" : "pause"} onClick=${() => setParams({ live: isPaused ? null : "0" })}>
    <i></i>${text}${newest && isRunning ? ` · ${newest}` : ""}
  </button>`;
}

function ThemeButton() {
  const { theme } = taste.use((mine) => mine);
  const next = { auto: "dark", dark: "light", light: "auto" }[theme];
  return html`<button class="quiet" title=${`colours: ${theme}`} aria-label=${`colours: ${theme}; change to ${next}`} onClick=${() => setTaste({ theme: next })}>${{ auto: "◐", dark: "☾", light: "☀" }[theme]}</button>`;
}

// --- login ----------------------------------------------------------------------------------------
function Login() {
  const [key, setKey] = useState("");
  const { told } = session.use((mine) => mine);
  const enter = async (event) => {
    event.preventDefault();
    if (await tryLogIn(key.trim())) session.set({ isOut: false, told: null });
  };
  return html`<main class="login"><${Empty} title="This server asks who you are">
    <p>On the machine it runs on, <code>metrana-async ui</code> prints a link that logs this browser in.</p>
    <form onSubmit=${enter}>
      <input type="password" autocomplete="off" aria-label="token" placeholder="or paste the server's token" value=${key} onInput=${(event) => setKey(event.target.value)} />
      <button class="primary" disabled=${!key.trim()}>Log in</button>
    </form>
    ${told && html`<p class="failure" role="alert">${told}</p>`}
  <//></main>`;
}

async function tryLogIn(key) {
  try {
    await logIn(key);
    return true;
  } catch (error) {
    session.set({ isOut: true, told: error.hint ? `${error.message}: ${error.hint}` : error.message });
    return false;
  }
}

// --- keys -----------------------------------------------------------------------------------------
function onKey(event) {
  const isTyping = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && isTyping) return event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const box = document.getElementById("run-filter");
    if (box) {
      event.preventDefault();
      box.focus();
    }
  } else if (event.key === "[") setTaste({ isPanelHidden: !taste.get().isPanelHidden });
  else if (event.key === "c") copyHovered();
}

async function begin() {
  applyTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onLinkClick);
  const login = location.hash.match(/^#login=([\w-]+)$/);
  if (login) {
    history.replaceState(null, "", location.pathname + location.search); // used up: out of sight
    await tryLogIn(login[1]);
  }
  render(html`<${App} />`, document.getElementById("app"));
}

begin();
