/** One chart: lines with their extremes, linked with the other charts of its axis. */
import { aligned, placeAt } from "./curves.js";
import { isDark } from "./state.js";
import { copyText, dateTime, duration, html, short, useEffect, useRef, useState, whole } from "./ui.js";

/** Where the pointer is, for the one tooltip there is. */
let hovered = null;
const TOOLTIP_ROWS = 12;
const BAND_ALPHA = "2b";
const ENVELOPE_ALPHA = "73";

const inks = () =>
  isDark()
    ? { text: "#9aa4b2", grid: "#232a33", card: "#151b22" }
    : { text: "#5f6b7a", grid: "#e7eaee", card: "#ffffff" };

export function axisText(axis, value) {
  if (axis === "time") return dateTime(value);
  if (axis === "relative_time") return duration(value);
  return whole(value);
}

/**
 * `lines`: `{label, colour, dash, table, exact, state}`; `zoom`: `[from, to]` or null, shared by all
 * charts of the axis. `onZoom(range | null)` is called when the reader chose another.
 */
export function Chart({ lines, width, axis, zoom, middle, smooth, span, hasBand, isLog, height, link, onZoom, theme }) {
  const box = useRef(null);
  const plot = useRef(null);
  const view = useRef({});
  const [tip, setTip] = useState(null);
  const shape = JSON.stringify([
    lines.map((line) => [line.label, line.colour, line.dash, line.state, line.exact]),
    axis, hasBand, isLog, height, theme, smooth > 0,
  ]);
  view.current = { lines, axis, zoom, onZoom, setTip, width, middle };

  useEffect(() => {
    const data = aligned(lines, { width, middle, smooth, span, isLog });
    const options = makeOptions(box.current, view, { lines, axis, hasBand, isLog, height, link, smooth });
    plot.current = new uPlot(options, data, box.current);
    const watch = new ResizeObserver(([entry]) => {
      const across = Math.floor(entry.contentRect.width);
      if (across > 0 && across !== plot.current.width) plot.current.setSize({ width: across, height });
    });
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape]);

  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false;
      return;
    }
    plot.current.setData(aligned(lines, { width, middle, smooth, span, isLog }));
  }, [lines, smooth, middle]);

  useEffect(() => {
    // What is there is stretched at once; the finer answer comes after it.
    const x = plot.current.data[0];
    if (zoom) plot.current.setScale("x", { min: zoom[0], max: zoom[1] });
    else if (x.length) plot.current.setScale("x", { min: x[0], max: x[x.length - 1] });
  }, [zoom && zoom[0], zoom && zoom[1]]);

  return html`<div class="plot" ref=${box} style=${{ height: `${height}px` }}>
    ${tip && html`<${Tooltip} ...${tip} axis=${axis} />`}
  </div>`;
}

function makeOptions(box, view, { lines, axis, hasBand, isLog, height, link, smooth }) {
  const ink = inks();
  const series = [{}];
  const bands = [];
  for (const line of lines) {
    const at = series.length;
    const envelope = { stroke: line.colour + ENVELOPE_ALPHA, width: 0.5, points: { show: false } };
    series.push(
      { stroke: line.colour, width: 1.5, dash: line.dash, points: { show: line.table.x.length === 1, size: 6 } },
      { ...envelope, show: hasBand && (!line.exact || Boolean(line.isAcross)) },
      { ...envelope, show: hasBand && (!line.exact || Boolean(line.isAcross)) },
    );
    if (hasBand) bands.push({ series: [at + 2, at + 1], fill: line.colour + BAND_ALPHA });
    if (smooth > 0 && line.exact && !line.isAcross) {
      // Raw points would vanish behind their mean: they stay, faintly.
      series[at + 1] = { ...envelope, show: true };
    }
  }
  const stroke = ink.text;
  const grid = { stroke: ink.grid, width: 1 };
  const font = "11px system-ui, sans-serif";
  return {
    width: Math.max(box.clientWidth, 120),
    height,
    ms: 1,
    legend: { show: false },
    padding: [10, 12, 0, 0],
    cursor: {
      drag: { x: true, y: false, setScale: false, dist: 4 },
      sync: { key: link, setSeries: false, scales: ["x", null] },
      points: { show: (u, at) => (at % 3 === 1 ? undefined : false), size: 6, width: 1 },
      bind: {
        dblclick: () => () => {
          view.current.onZoom(null);
          return null;
        },
      },
    },
    scales: {
      x: { time: axis === "time", range: (u, min, max) => rangeOfX(view.current.zoom, min, max) },
      y: { distr: isLog ? 3 : 1, range: (u, min, max) => rangeOfY(min, max, isLog) },
    },
    axes: [
      { stroke, grid, ticks: { ...grid, size: 4 }, font, size: 30, space: 64, ...xValues(axis) },
      { stroke, grid, ticks: { ...grid, size: 4 }, font, size: widthOfAxis, values: (u, splits) => splits.map((v) => (v === null ? "" : short(v))) },
    ],
    series,
    bands,
    plugins: [pointerPlugin(view), marksPlugin(view, ink)],
  };
}

/** Distances of marks on an axis that counts: there is no step 2.5. */
export const WHOLE_STEPS = Array.from({ length: 48 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3));

function xValues(axis) {
  if (axis === "time") return {};
  if (axis === "step") return { values: (u, splits) => splits.map(short), incrs: WHOLE_STEPS };
  return { values: (u, splits) => splits.map(duration) };
}

function widthOfAxis(u, values) {
  const longest = (values || []).reduce((most, value) => Math.max(most, value.length), 2);
  return 18 + longest * 6.3;
}

function rangeOfX(zoom, min, max) {
  if (zoom) return zoom;
  if (min === null) return [0, 1];
  return min === max ? [min - 1, max + 1] : [min, max];
}

function rangeOfY(min, max, isLog) {
  if (min === null) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) return [min / 1.15, max * 1.15];
  const room = (max - min || Math.abs(max) || 1) * 0.06;
  return [min - room, max + room];
}

// --- the pointer ----------------------------------------------------------------------------------
function pointerPlugin(view) {
  return {
    hooks: {
      ready: (u) => {
        u.over.addEventListener("mouseenter", () => (hovered = u));
        u.over.addEventListener("mouseleave", () => {
          if (hovered === u) hovered = null;
          view.current.setTip(null);
        });
        u.over.addEventListener("wheel", (event) => wheel(event, u, view), { passive: false });
        u.over.addEventListener("mousedown", (event) => grab(event, u, view), true);
      },
      setSelect: (u) => {
        if (u.select.width < 4) return;
        const from = u.posToVal(u.select.left, "x");
        const to = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (hovered === u) view.current.onZoom([from, to]);
      },
      setCursor: (u) => {
        if (hovered !== u || u.cursor.left < 0) return view.current.setTip(null);
        view.current.setTip(tipAt(u, view.current));
      },
      destroy: (u) => {
        if (hovered === u) hovered = null;
      },
    },
  };
}

function wheel(event, u, view) {
  if (!event.ctrlKey && !event.metaKey) return; // the plain wheel scrolls the page
  event.preventDefault();
  const { min, max } = u.scales.x;
  const at = u.posToVal(event.offsetX, "x");
  const factor = event.deltaY > 0 ? 1.25 : 0.8;
  view.current.onZoom([at - (at - min) * factor, at + (max - at) * factor], true);
}

/** Shift-drag moves the window, alt-drag chooses a range of y. */
function grab(event, u, view) {
  u.cursor.drag.x = !event.altKey;
  u.cursor.drag.y = event.altKey;
  u.cursor.drag.setScale = event.altKey;
  if (!event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const { min, max } = u.scales.x;
  const start = event.clientX;
  const perPixel = (max - min) / u.over.clientWidth;
  const shifted = (to) => [min - (to.clientX - start) * perPixel, max - (to.clientX - start) * perPixel];
  const move = (to) => view.current.onZoom(shifted(to), true);
  const drop = (to) => {
    document.removeEventListener("mousemove", move);
    document.removeEventListener("mouseup", drop);
    if (to.clientX !== start) view.current.onZoom(shifted(to));
  };
  document.addEventListener("mousemove", move);
  document.addEventListener("mouseup", drop);
}

function tipAt(u, { lines, width, middle }) {
  const x = u.posToVal(u.cursor.left, "x");
  const y = u.posToVal(u.cursor.top, "y");
  const rows = [];
  for (const line of lines) {
    const at = nearestPlace(line.table, x);
    if (at < 0) continue;
    const reach = Math.max(width, (u.scales.x.max - u.scales.x.min) / 50);
    if (Math.abs(line.table.x[at] - x) > reach) continue;
    const column = (name) => line.table[name]?.[at];
    const value = column(middle) ?? column("mean") ?? column("last");
    rows.push({
      label: line.label,
      colour: line.colour,
      x: line.table.x[at],
      value,
      min: column("min"),
      max: column("max"),
      std: column("std"),
      count: column("count"),
      nan: column("nan_count"),
    });
  }
  rows.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
  const near = rows.reduce((best, row) => (!best || Math.abs(row.value - y) < Math.abs(best.value - y) ? row : best), null);
  return {
    rows,
    near,
    left: u.over.offsetLeft + u.cursor.left,
    top: u.over.offsetTop + u.cursor.top,
    across: u.width,
    down: u.height,
  };
}

function nearestPlace(table, x) {
  const at = placeAt(table, x);
  if (at < 0) return table.x.length ? 0 : -1;
  return at + 1 < table.x.length && table.x[at + 1] - x < x - table.x[at] ? at + 1 : at;
}

function Tooltip({ rows, near, left, top, across, down, axis }) {
  if (!rows.length) return null;
  const isRight = left > across / 2;
  const style = {
    [isRight ? "right" : "left"]: `${(isRight ? across - left : left) + 14}px`,
    [top > down / 2 ? "bottom" : "top"]: `${top > down / 2 ? down - top : top}px`,
  };
  const shown = rows.slice(0, TOOLTIP_ROWS);
  return html`<div class="tooltip" style=${style} role="status">
    <div class="tooltip-x">${axisText(axis, (near || rows[0]).x)}</div>
    ${shown.map(
      (row) => html`<div class=${row === near ? "tooltip-row near" : "tooltip-row"}>
        <i style=${{ background: row.colour }}></i>
        <span class="name">${row.label}</span>
        <b>${short(row.value)}</b>
        <span class="dim">${rowDetails(row)}</span>
      </div>`,
    )}
    ${rows.length > shown.length && html`<div class="dim">${rows.length - shown.length} more</div>`}
  </div>`;
}

function rowDetails({ min, max, std, count, nan }) {
  const parts = [];
  if (Number.isFinite(std)) parts.push(`± ${short(std)}`);
  if (count > 1 && Number.isFinite(min)) parts.push(`${short(min)} … ${short(max)}`);
  if (count > 1) parts.push(`n ${short(count)}`);
  if (nan > 0) parts.push(`${nan} NaN`);
  return parts.join(" · ");
}

/** What is under the pointer as rows for a spreadsheet. */
export function copyHovered() {
  if (hovered?.metranaRows) copyText(hovered.metranaRows());
}

// --- marks ----------------------------------------------------------------------------------------
/** Where a line ended, and where values were that no line can show. */
function marksPlugin(view, ink) {
  return {
    hooks: {
      ready: (u) => {
        u.metranaRows = () =>
          tipAt(u, view.current)
            .rows.map((row) => [row.label, row.x, row.value, row.min, row.max, row.count].join("\t"))
            .join("\n");
      },
      draw: (u) => {
        const { ctx, bbox } = u;
        const scale = devicePixelRatio;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top - 4 * scale, bbox.width + 8 * scale, bbox.height + 8 * scale);
        ctx.clip();
        view.current.lines.forEach((line, index) => {
          drawNonFinite(u, line, scale);
          drawEnd(u, line, u.data[1 + 3 * index], scale, ink);
        });
        ctx.restore();
      },
    },
  };
}

function drawNonFinite(u, { table, colour }, scale) {
  const counts = [table.nan_count, table.positive_inf_count, table.negative_inf_count];
  u.ctx.fillStyle = colour;
  for (let at = 0; at < table.x.length; at++) {
    if (!counts.some((count) => count && count[at] > 0)) continue;
    const x = u.valToPos(table.x[at], "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    const y = u.bbox.top + u.bbox.height;
    u.ctx.beginPath();
    u.ctx.moveTo(x - 3 * scale, y);
    u.ctx.lineTo(x + 3 * scale, y);
    u.ctx.lineTo(x, y - 6 * scale);
    u.ctx.fill();
  }
}

function drawEnd(u, { table, colour, state }, column, scale, ink) {
  if (!["running", "failed", "crashed"].includes(state) || !column) return;
  let at = column.length - 1;
  while (at >= 0 && (column[at] === undefined || column[at] === null)) at -= 1;
  if (at < 0) return;
  const x = u.valToPos(u.data[0][at], "x", true);
  const y = u.valToPos(column[at], "y", true);
  if (x > u.bbox.left + u.bbox.width + 1 || x < u.bbox.left) return;
  const { ctx } = u;
  ctx.strokeStyle = colour;
  ctx.fillStyle = colour;
  ctx.lineWidth = 1.5 * scale;
  ctx.beginPath();
  if (state === "running") {
    ctx.arc(x, y, 3.2 * scale, 0, 7);
    ctx.fill();
    ctx.strokeStyle = ink.card;
    ctx.lineWidth = scale;
    ctx.stroke();
    return;
  }
  const arm = 3.5 * scale;
  ctx.moveTo(x - arm, y - arm);
  ctx.lineTo(x + arm, y + arm);
  ctx.moveTo(x + arm, y - arm);
  ctx.lineTo(x - arm, y + arm);
  ctx.stroke();
}
