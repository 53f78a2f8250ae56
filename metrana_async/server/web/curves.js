/** Curves as the server answers them, and as a chart draws them: one x for all lines of a card. */
import { ask } from "./api.js";

export const AXES = { step: "step", relative_time: "time since start", time: "wall time" };

/**
 * Ask for one card's lines. `before` is the last answer to the same question: what did not change
 * since is not sent again.
 */
export async function loadBuckets(question, before, signal) {
  const query = { ...question };
  if (before) query.if_version = before.lines.map((line) => line.version).filter(Boolean);
  else query.if_version = [];
  const answer = await ask("/query/buckets", query, signal);
  const tables = splitByLine(answer);
  const lines = answer.lines.map((facts, at) => {
    const fresh = tables.get(at) || emptyTable(answer.columns);
    const old = before?.lines.find((line) => line.run_uid === facts.run_uid && line.metric === facts.metric);
    if (facts.unchanged) return old ? { ...old, ...facts } : { ...facts, table: fresh };
    if (facts.revised_from !== null && facts.revised_from !== undefined && old) {
      return { ...facts, table: replaceTail(old.table, fresh, facts.revised_from) };
    }
    return { ...facts, table: fresh };
  });
  return { lines, width: answer.width, functions: answer.functions };
}

function splitByLine({ columns }) {
  const tables = new Map();
  const line = columns.line;
  let start = 0;
  for (let at = 1; at <= line.length; at++) {
    if (at < line.length && line[at] === line[start]) continue;
    const table = {};
    for (const [name, column] of Object.entries(columns)) table[name] = column.subarray(start, at);
    if (line.length) tables.set(line[start], table);
    start = at;
  }
  return tables;
}

const emptyTable = (columns) =>
  Object.fromEntries(Object.keys(columns).map((name) => [name, new Float64Array(0)]));

function replaceTail(old, tail, from) {
  let keep = old.x.length;
  while (keep > 0 && old.x[keep - 1] >= from) keep -= 1;
  return Object.fromEntries(
    Object.entries(old).map(([name, column]) => {
      const joined = new Float64Array(keep + tail[name].length);
      joined.set(column.subarray(0, keep));
      joined.set(tail[name], keep);
      return [name, joined];
    }),
  );
}

/**
 * Curves across the environments of each run, by rl_step: mean, and the environments' extremes.
 * In the same form as `loadBuckets`; every rl_step is there.
 */
export async function loadAcross(question, signal) {
  const { runs, from_x: from, to_x: to, ...rest } = question;
  const range = from === undefined ? {} : { rl_step_range: [Math.max(0, Math.floor(from)), Math.max(0, Math.ceil(to))] };
  const answers = await Promise.all(
    runs.map((run) =>
      ask("/query/across", { ...rest, ...range, runs: [run], over: "rl_step", functions: ["mean", "std", "min", "max"] }, signal).catch((error) => {
        if (error.code === "not_found") return null;
        throw error;
      }),
    ),
  );
  const lines = answers.map((answer, at) => {
    if (!answer) return { run_uid: runs[at], found: false, table: null };
    const { x, mean, std, min, max, count, points_count: points, nan_count: nan } = answer.columns;
    const zero = new Float64Array(x.length);
    return {
      run_uid: runs[at],
      found: true,
      exact: true,
      points_count: points.reduce((sum, n) => sum + n, 0),
      x_first: x.length ? x[0] : null,
      x_last: x.length ? x[x.length - 1] : null,
      table: { x, mean, std, min, max, count, nan_count: nan, positive_inf_count: zero, negative_inf_count: zero },
    };
  });
  return { lines, width: 1, isAcross: true };
}

/**
 * Statistics across the runs of each group, as the server computes them: mean, and the standard
 * deviation around it. In the same form as `loadBuckets`, a line a group.
 */
export async function loadGroups(question, signal) {
  const { columns, groups, width } = await ask("/query/group_runs", { ...question, functions: ["mean", "std", "min", "max"] }, signal);
  const tables = splitByLine({ columns: { ...columns, line: columns.group } });
  const lines = groups.map(({ by, members }, at) => {
    const table = tables.get(at) || emptyTable(columns);
    const zero = new Float64Array(table.x.length);
    const low = table.mean.map((mean, place) => mean - (table.std[place] || 0));
    const high = table.mean.map((mean, place) => mean + (table.std[place] || 0));
    return {
      group: Object.values(by)[0],
      members,
      at,
      found: table.x.length > 0,
      exact: false,
      points_count: table.points_count.reduce((sum, n) => sum + n, 0),
      x_first: table.x[0] ?? null,
      x_last: table.x[table.x.length - 1] ?? null,
      table: { x: table.x, mean: table.mean, std: table.std, min: low, max: high, count: table.count, nan_count: table.nan_count, positive_inf_count: zero, negative_inf_count: zero },
    };
  });
  return { lines, width, by: question.by[0] };
}

/** Points of one line in the buckets that the other lines of its card have. */
export function bucketed(table, width) {
  const ends = [];
  for (let at = 0; at < table.x.length; at++) {
    if (at + 1 === table.x.length || Math.floor(table.x[at] / width) !== Math.floor(table.x[at + 1] / width)) ends.push(at + 1);
  }
  const names = Object.keys(table).filter((name) => name !== "line");
  const made = Object.fromEntries(names.map((name) => [name, new Float64Array(ends.length)]));
  ends.forEach((end, place) => {
    const start = place ? ends[place - 1] : 0;
    for (const name of names) made[name][place] = REDUCE[name]?.(table[name], start, end) ?? sumOf(table[name], start, end);
    made.x[place] = Math.floor(table.x[start] / width) * width;
  });
  return made;
}

const finite = (column, start, end) => Array.from(column.subarray(start, end)).filter(Number.isFinite);
const sumOf = (column, start, end) => column.subarray(start, end).reduce((sum, value) => sum + value, 0);
/** How points become a bucket; counts are sums. */
const REDUCE = {
  x: (column, start) => column[start],
  x_first: (column, start) => column[start],
  x_last: (column, start, end) => column[end - 1],
  first: (column, start, end) => finite(column, start, end)[0] ?? NaN,
  last: (column, start, end) => finite(column, start, end).pop() ?? NaN,
  min: (column, start, end) => finite(column, start, end).reduce((a, b) => Math.min(a, b), Infinity),
  max: (column, start, end) => finite(column, start, end).reduce((a, b) => Math.max(a, b), -Infinity),
  mean: (column, start, end) => {
    const values = finite(column, start, end);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
  },
};

// --- drawing ----------------------------------------------------------------------------------------
const EMPTY_BUCKETS_MAX = 3;

/**
 * Lines on one x: `[x, middle, low, high, middle, low, high, …]`, three columns a line.
 * Where a line has no point at an x it has `undefined` (the line goes on) or, after a gap of more
 * than three empty buckets and where it has only NaN, `null` (the line breaks).
 */
export function aligned(lines, { width, middle, smooth, span, isLog }) {
  const all = new Set();
  for (const { table, exact } of lines) {
    const x = table.x;
    for (let at = 0; at < x.length; at++) {
      all.add(x[at]);
      if (!exact && at && x[at] - x[at - 1] > (EMPTY_BUCKETS_MAX + 1) * width) all.add(x[at - 1] + width);
    }
  }
  const x = Float64Array.from(all).sort();
  const place = new Map();
  for (let at = 0; at < x.length; at++) place.set(x[at], at);
  const data = [x];
  for (const { table, exact } of lines) {
    const centre = table[middle] || table.mean || table.last;
    const shown = smooth > 0 ? smoothed(table.x, centre, smooth, span) : centre;
    data.push(spread(table.x, shown, exact, width, x.length, place, isLog));
    const hasBand = table.min && table.max;
    data.push(hasBand ? spread(table.x, table.min, exact, width, x.length, place, isLog) : []);
    data.push(hasBand ? spread(table.x, table.max, exact, width, x.length, place, isLog) : []);
  }
  return data;
}

function spread(x, values, exact, width, length, place, isLog) {
  const column = new Array(length);
  for (let at = 0; at < x.length; at++) {
    const value = values[at];
    column[place.get(x[at])] = Number.isFinite(value) && !(isLog && value <= 0) ? value : null;
    if (!exact && at && x[at] - x[at - 1] > (EMPTY_BUCKETS_MAX + 1) * width) {
      column[place.get(x[at - 1] + width)] = null;
    }
  }
  return column;
}

const SMOOTH_PLACES = 100;

/**
 * An exponential mean whose weights go by distance in x, so that neither zoom nor density changes
 * it; corrected for its beginning. `span` is the width of x that the curve has in all.
 */
export function smoothed(x, values, amount, span) {
  const unit = span / SMOOTH_PLACES || 1;
  const result = new Float64Array(values.length);
  let sum = 0;
  let weight = 0;
  let before = NaN;
  for (let at = 0; at < values.length; at++) {
    const value = values[at];
    if (!Number.isFinite(value)) {
      result[at] = NaN;
      continue;
    }
    const keep = Number.isNaN(before) ? amount : Math.pow(amount, Math.max(x[at] - before, 0) / unit);
    const share = Math.max(1 - keep, 1e-9);
    sum = sum * keep + value * share;
    weight = weight * keep + share;
    result[at] = sum / weight;
    before = x[at];
  }
  return result;
}

/** The last place at or before an x where a line has a point; -1 before its first. */
export function placeAt(table, x) {
  let low = 0;
  let high = table.x.length;
  while (low < high) {
    const at = (low + high) >> 1;
    if (table.x[at] <= x) low = at + 1;
    else high = at;
  }
  return low - 1;
}
