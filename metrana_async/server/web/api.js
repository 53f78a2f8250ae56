/** The server: questions and their answers, binary columns, and news of what changed. */

const TAIL = /[^/]*$/;
/** Where the dashboard is mounted, whatever prefix a proxy put before it. Ends in a slash. */
export const ROOT = new URL(document.baseURI).pathname.replace(TAIL, "");

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `the server answered ${status}`);
    this.status = status;
    this.code = error.code || "unknown";
    this.hint = error.hint || null;
  }
}

let onLoggedOut = () => {};
/** Called when the server asks for a login. */
export function whenLoggedOut(callback) {
  onLoggedOut = callback;
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(ROOT + path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "the server cannot be reached", code: "connect" });
  }
  if (response.ok || response.status === 304) return response;
  const content = await response.json().catch(() => ({}));
  const error = new ApiError(response.status, content.error || {});
  if (error.code === "auth" || response.status === 401) onLoggedOut();
  throw error;
}

/** Ask an endpoint; JSON comes back as it is, columns decoded. */
export async function ask(path, query = {}, signal = undefined) {
  const response = await send(`api/v1${path}`, {
    method: "POST",
    headers: { "X-Metrana-Page": "1", "Content-Type": "application/json" },
    body: JSON.stringify(query),
    signal,
  });
  if (response.headers.get("Content-Type").startsWith("application/json")) return response.json();
  return decodeColumns(await response.arrayBuffer());
}

export async function logIn(key) {
  await send("login", {
    method: "POST",
    headers: { "X-Metrana-Page": "1", "Content-Type": "application/json" },
    body: JSON.stringify({ key }),
  });
}

/** A number of a JSON answer, where NaN and the infinities are words. */
export const number = (value) =>
  typeof value === "string" ? { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] : value;

// --- columns --------------------------------------------------------------------------------------
const NARROW = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

/** The wire form of columns (see the HTTP reference); integers become float64, exact to 2^53. */
export function decodeColumns(buffer) {
  const headerLength = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headerLength)));
  let offset = 4 + headerLength;
  const pad = () => {
    offset += (8 - (offset % 8)) % 8;
  };
  pad();
  const columns = {};
  for (const [name, [kind, count, base, more]] of header.columns) {
    let column;
    if (kind === "c") column = new Float64Array(count).fill(base);
    else if (kind === "a") column = Float64Array.from({ length: count }, (_, at) => base + at * more);
    else if (kind === "n") {
      const narrow = new NARROW[more](buffer, offset, count);
      column = Float64Array.from(narrow, (value) => value + base);
      offset += narrow.byteLength;
    } else if (kind === "i8") {
      column = Float64Array.from(new BigInt64Array(buffer, offset, count), Number);
      offset += count * 8;
    } else {
      column = kind === "f4" ? new Float32Array(buffer, offset, count) : new Float64Array(buffer, offset, count);
      offset += column.byteLength;
    }
    pad();
    columns[name] = column;
  }
  return { columns, ...header.scalars };
}

// --- news -----------------------------------------------------------------------------------------
const POLL_MS = 5000;
const SOCKET_EVERY = 6; // polls, then a socket is tried again
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 16000, 30000];

/**
 * Follow a project: `tell({runs, reset})` for news, `state("live" | "polling" | "lost")`.
 * A socket where one can be had; asking every few seconds where a proxy lets none through.
 * Returns what ends it.
 */
export function follow({ workspace, project }, tell, state) {
  let cursor = null;
  let socket = null;
  let timer = 0;
  let failures = 0;
  let polls = 0;
  let isOver = false;

  const take = (news) => {
    cursor = news.cursor;
    tell(news);
  };
  const subscribe = () =>
    socket?.readyState === 1 &&
    socket.send(JSON.stringify({ sub: { workspace, project, cursor, hidden: document.hidden } }));
  const later = (action, ms) => {
    clearTimeout(timer);
    if (!isOver) timer = setTimeout(action, ms);
  };
  const poll = async () => {
    const query = new URLSearchParams({ workspace, project, ...(cursor && { cursor }) });
    try {
      const response = await send(`api/v1/changes?${query}`, {});
      if (response.status === 200) take(await response.json());
      state("polling");
    } catch {
      state("lost");
    }
    polls += 1;
    later(polls % SOCKET_EVERY ? poll : connect, POLL_MS);
  };
  const connect = () => {
    const url = new URL(`${ROOT}api/v1/live`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    socket = new WebSocket(url);
    socket.onopen = () => {
      failures = 0;
      state("live");
      subscribe();
    };
    socket.onmessage = (event) => take(JSON.parse(event.data));
    socket.onclose = () => {
      if (isOver) return;
      failures += 1;
      if (failures > 2) return poll();
      state("lost");
      const pause = BACKOFF_MS[Math.min(failures, BACKOFF_MS.length) - 1];
      later(connect, pause * (0.5 + Math.random()));
    };
  };
  document.addEventListener("visibilitychange", subscribe);
  connect();
  return () => {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", subscribe);
    socket?.close();
  };
}
