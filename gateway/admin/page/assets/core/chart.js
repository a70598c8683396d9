// A chart of intervals over time, by uPlot: a line in a band for each series, a bound that they must keep, and marks.

import { h } from "./dom.js";
import { digits } from "./format.js";
import { colour } from "./theme.js";

const COLOURS = ["first", "second", "third", "fourth"];
const HEIGHT = 260;
// Intervals begin wide: the scale is made for what is known by now, so this part of the past is not asked.
const FORGOTTEN = 1 / 3;

/**
 * A chart; `set({times, series, bounds, marks})` shows it: times are seconds since 1970, series are {label, mid, low,
 * high} of numbers or nulls, bounds are {label, value}, marks are {time, label}. `format` writes values.
 */
export function chart(label, signal, format = digits) {
  const place = h("div", { class: "chart", role: "img", "aria-label": label });
  const legend = h("ul", { class: "legend" });
  const element = h("figure", { class: "stack" }, place, legend);
  let drawn = null;
  let shown = null;
  const draw = () => {
    drawn?.destroy();
    drawn = null;
    if (!shown?.times.length || !place.clientWidth) return;
    drawn = new uPlot(options(shown, format, place.clientWidth), dataOf(shown), place);
  };
  const sized = new ResizeObserver(() =>
    drawn ? drawn.setSize({ width: place.clientWidth, height: HEIGHT }) : draw(),
  );
  sized.observe(place);
  document.addEventListener("themechange", draw, { signal });
  signal.addEventListener("abort", () => {
    sized.disconnect();
    drawn?.destroy();
  });
  element.set = (told) => {
    const isSame = shown && signature(shown) === signature(told);
    shown = told;
    place.setAttribute("aria-label", `${label}. ${inWords(told, format)}`);
    if (!isSame) legend.replaceChildren(...entries(told, format));
    if (isSame && drawn) {
      drawn.marks = told.marks;
      drawn.setData(dataOf(told));
    } else draw();
  };
  return element;
}

function signature({ series, bounds }) {
  return JSON.stringify([series.map((each) => each.label), bounds]);
}

function dataOf({ times, series, bounds }) {
  const lines = series.flatMap(({ mid, low, high }) => [mid, low, high]);
  return [times, ...lines, ...bounds.map(({ value }) => times.map(() => value))];
}

function options(told, format, width) {
  const ink = colour("muted");
  const grid = { stroke: colour("line"), width: 1 };
  const bandOf = (index) => ({ series: [3 * index + 3, 3 * index + 2], fill: colour(COLOURS[index % 4], 0.18) });
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (plot) => rangeOf(plot, told) } },
    axes: [
      {
        stroke: ink,
        grid,
        ticks: grid,
        values: (_, splits) => splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")),
        space: 80,
      },
      { stroke: ink, grid, ticks: grid, size: 74, values: (_, splits) => splits.map(format) },
    ],
    series: [
      {},
      ...told.series.flatMap((_, index) => {
        const stroke = colour(COLOURS[index % 4]);
        const edge = { stroke: colour(COLOURS[index % 4], 0.5), width: 1, points: { show: false } };
        return [{ stroke, width: 2, points: { show: isAlone } }, edge, edge];
      }),
      ...told.bounds.map(() => ({ stroke: colour("bad"), width: 1.5, dash: [6, 4], points: { show: false } })),
    ],
    bands: told.series.map((_, index) => bandOf(index)),
    hooks: { draw: [(plot) => drawMarks(plot, plot.marks ?? told.marks)] },
  };
}

/** Whether a series has one point, of which no line can tell. */
function isAlone(plot, index) {
  return plot.data[index].filter((value) => value !== null).length === 1;
}

/** All that the later points say, the bounds, and zero where it is near. */
function rangeOf(plot, { bounds }) {
  const from = Math.floor(plot.data[0].length * FORGOTTEN);
  const values = plot.data
    .slice(1)
    .flatMap((column) => column.slice(from))
    .filter((value) => value !== null);
  values.push(...bounds.map(({ value }) => value));
  if (!values.length) return [0, 1];
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

function drawMarks(plot, marks) {
  const { ctx } = plot;
  const { top, height, left, width } = plot.bbox;
  ctx.save();
  ctx.strokeStyle = colour("strong-line");
  ctx.fillStyle = colour("muted");
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.setLineDash([2, 3]);
  for (const { time, label } of marks) {
    const x = plot.valToPos(time, "x", true);
    if (x < left || x > left + width) continue;
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.fillText(label, x + 4 * devicePixelRatio, top + height - 6 * devicePixelRatio);
  }
  ctx.restore();
}

function entries({ series, bounds }, format) {
  const lines = series.map(({ label }, index) =>
    h("li", {}, h("span", { class: `key key-${COLOURS[index % 4]}` }), label),
  );
  const dashed = bounds.map(({ label, value }) =>
    h("li", {}, h("span", { class: "key key-bound" }), `${label}: ${format(value)}`),
  );
  return [...lines, ...dashed];
}

/** The latest numbers, for whoever sees no picture. */
function inWords({ series }, format) {
  return series
    .map(
      ({ label, mid, low, high }) =>
        `${label}: ${format(mid.at(-1))}, between ${format(low.at(-1))} and ${format(high.at(-1))}`,
    )
    .join("; ");
}
