/** Charts over time. */
import { useEffect, useRef } from "preact/hooks";
import UPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { when } from "./format";
import { useTheme } from "./theme";

export interface Line {
  name: string;
  values: (number | null)[];
  color: string;
}

/** Range of the time axis before and after a single point. */
const SINGLE_POINT_SECONDS = 30;

interface ChartProps {
  title: string;
  at: number[];
  lines: Line[];
  format: (value: number) => string;
}

/** The current value of a custom property of the style sheet: a canvas cannot use `var()`. */
function colorOf(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

export function Chart({ title, at, lines, format }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<UPlot | null>(null);
  const theme = useTheme();
  const data = [at.map((ms) => ms / 1000), ...lines.map((line) => line.values)] as UPlot.AlignedData;
  const names = lines.map((line) => line.name).join("\n");

  useEffect(() => {
    const element = place.current!;
    const ink = colorOf("--muted");
    const grid = { stroke: colorOf("--line-soft"), width: 1 };
    const ticks = { stroke: colorOf("--line-soft"), size: 4 };
    const font = "11px system-ui, sans-serif";
    chart.current = new UPlot(
      {
        width: element.clientWidth || 300,
        height: 170,
        cursor: { sync: { key: "time" }, y: false, points: { size: 7 } },
        legend: { live: true },
        scales: { x: { range: (plot, low, high) => (plot.data[0].length < 2 || low === high ? [low - SINGLE_POINT_SECONDS, low + SINGLE_POINT_SECONDS] : [low, high]) }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
        series: [
          { label: "time", value: (_, value) => (value === null ? "–" : when(value * 1000)) },
          ...lines.map((line) => ({
            label: line.name,
            stroke: colorOf(line.color),
            width: 1.75,
            fill: lines.length === 1 ? colorOf(`${line.color}-soft`) : undefined,
            spanGaps: true,
            points: { show: (plot: UPlot) => plot.data[0].length < 2, size: 6, fill: colorOf(line.color) },
            value: (_: UPlot, value: number | null) => (value === null || value === undefined ? "–" : format(value)),
          })),
        ],
        axes: [
          { stroke: ink, grid: { show: false }, ticks, font, size: 30, space: 70, values: (_, times) => times.map((time) => tick(time, times)) },
          { stroke: ink, grid, ticks, font, size: 54, values: (_, values) => values.map(format) },
        ],
      },
      data,
      element,
    );
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height: 170 }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [names, theme]);
  useEffect(() => chart.current?.setData(data), [at.length, at[at.length - 1], lines.map((line) => line.values.at(-1)).join()]);

  const last = lines[0]?.values.findLast((value) => value !== null);
  const summary = `${title}: ${at.length} points${last !== undefined && last !== null ? `, last ${format(last)}` : ""}`;
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={summary} />
    </figure>
  );
}

function tick(time: number, times: number[]): string {
  const date = new Date(time * 1000);
  const step = times.length > 1 ? times[1]! - times[0]! : 0;
  if (step >= 86_400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const text = date.toLocaleTimeString("en-GB");
  return step >= 60 ? text.slice(0, 5) : text;
}

interface BarsProps {
  passed: number[];
  failed: number[];
  at: number[];
}

const MAX_BARS = 48;

/** The share of failed rows in each micro-batch. */
export function RuleBars({ passed, failed, at }: BarsProps) {
  const size = Math.max(1, Math.ceil(at.length / MAX_BARS));
  const bars: { good: number; bad: number; at: number }[] = [];
  for (let i = 0; i < at.length; i += size) {
    const sum = (values: number[]) => values.slice(i, i + size).reduce((all, value) => all + value, 0);
    bars.push({ good: sum(passed), bad: sum(failed), at: at[Math.min(i + size, at.length) - 1]! });
  }
  const shares = bars.map((bar) => (bar.good + bar.bad ? bar.bad / (bar.good + bar.bad) : 0));
  const most = Math.max(...shares, 0.01);
  const width = 100 / Math.max(bars.length, 12);
  const worst = Math.max(0, ...shares);
  return (
    <svg class="bars" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={`at most ${(100 * worst).toFixed(1)} % of a micro-batch`}>
      {bars.map((bar, i) => {
        const share = shares[i]!;
        const height = share ? Math.max(2, (22 * share) / most) : bar.good ? 1 : 0;
        return (
          <rect class={share ? "bad" : "good"} x={i * width} y={24 - height} width={width * 0.8} height={height}>
            <title>{`${when(bar.at)}: ${bar.bad} of ${bar.good + bar.bad} failed`}</title>
          </rect>
        );
      })}
    </svg>
  );
}
