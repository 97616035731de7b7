/** The graph of a pipeline: cards and edges on a plane that can be panned and zoomed. */
import { Graph as Layout, layout } from "@dagrejs/dagre";
import { Component } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Card, Edge } from "./api";
import { brief, lag, rate, short } from "./format";
import { to } from "./place";
import { look, StateBadge } from "./state";

const WIDTH = 246;
const HEIGHT = 138;
const SMALL = 48;
const MARGIN = 28;
const FAR = 0.5;
const TOOLS = 40;
const LEGIBLE = 0.24;
const MAX_ANIMATED_EDGES = 120;

interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

interface Plan {
  boxes: Map<string, Box>;
  paths: { edge: Edge; d: string }[];
  width: number;
  height: number;
}

const isSmall = (card: Card) => card.kind === "source" || card.kind === "temporary view";

function plan(cards: Card[], edges: Edge[], direction: "LR" | "TB"): Plan {
  const graph = new Layout();
  graph.setGraph({ rankdir: direction, nodesep: 26, ranksep: direction === "LR" ? 70 : 44, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  const known = new Set(cards.map((card) => card.id));
  for (const card of cards) graph.setNode(card.id, { width: WIDTH, height: isSmall(card) ? SMALL : HEIGHT });
  const drawn = edges.filter((edge) => known.has(edge.from) && known.has(edge.to) && edge.from !== edge.to);
  for (const edge of drawn) graph.setEdge(edge.from, edge.to);
  layout(graph);
  const boxes = new Map<string, Box>();
  for (const card of cards) {
    const node = graph.node(card.id) as { x: number; y: number; width: number; height: number };
    boxes.set(card.id, { x: node.x - node.width / 2, y: node.y - node.height / 2, w: node.width, h: node.height });
  }
  const paths = drawn.map((edge) => {
    const line = graph.edge(edge.from, edge.to) as { points: { x: number; y: number }[] };
    return { edge, d: curve(boxes.get(edge.from)!, boxes.get(edge.to)!, line.points, direction) };
  });
  const size = graph.graph() as { width?: number; height?: number };
  return { boxes, paths, width: size.width ?? 0, height: size.height ?? 0 };
}

/** The path between the sides of two boxes, through the points of the layout. */
function curve(from: Box, to: Box, points: { x: number; y: number }[], direction: "LR" | "TB"): string {
  const across = direction === "LR";
  const start = across ? [from.x + from.w, from.y + from.h / 2] : [from.x + from.w / 2, from.y + from.h];
  const end = across ? [to.x, to.y + to.h / 2] : [to.x + to.w / 2, to.y];
  const stops = [start, ...(points.length > 3 ? points.slice(1, -1).map((p) => [p.x, p.y]) : []), end] as number[][];
  let d = `M${start[0]} ${start[1]}`;
  for (let i = 1; i < stops.length; i++) {
    const [ax, ay] = stops[i - 1] as [number, number];
    const [bx, by] = stops[i] as [number, number];
    d += across
      ? `C${(ax + bx) / 2} ${ay} ${(ax + bx) / 2} ${by} ${bx} ${by}`
      : `C${ax} ${(ay + by) / 2} ${bx} ${(ay + by) / 2} ${bx} ${by}`;
  }
  return d;
}

function Figure({ name, value, alarm }: { name: string; value: string; alarm?: boolean }) {
  return (
    <span class={alarm ? "figure alarm" : "figure"}>
      <span class="figure-name">{name}</span>
      <span class="figure-value">{value}</span>
    </span>
  );
}

/** A long path is shortened to its last parts, another long name to its start and end. */
function shortened(name: string): string {
  const parts = name.split("/");
  if (name.length <= 28) return name;
  if (parts.length < 4) return `${name.slice(0, 8)}…${name.slice(-11)}`;
  const what = parts[0]!.split(" ")[0];
  return `${what} …/${parts.slice(-2).join("/")}`;
}

interface CardProps {
  card: Card;
  box: Box;
  href: string;
  dim: boolean;
  near: boolean;
  onFocus: (id: string) => void;
}

/** A card; rendered again only if its properties have changed. */
class CardBox extends Component<CardProps> {
  shouldComponentUpdate(next: CardProps) {
    const { card, box, href, dim, near } = this.props;
    return next.card !== card || next.box !== box || next.href !== href || next.dim !== dim || next.near !== near;
  }

  render({ card, box, href, dim, near, onFocus }: CardProps) {
    const style = { transform: `translate(${box.x}px, ${box.y}px)`, width: `${box.w}px`, height: `${box.h}px` };
    const classes = `card${isSmall(card) ? "" : ` tone-${look(card.state).tone}`}${isSmall(card) ? " small" : ""}${dim ? " dim" : ""}${near ? " near" : ""}`;
    const focus = () => onFocus(card.id);
    const delay = card.watermark_delay_seconds;
    if (isSmall(card))
      return (
        <a class={classes} style={style} href={href} data-card={card.id} title={card.name} onFocus={focus} draggable={false}>
          <span class="card-kind">{card.kind}</span>
          <span class="card-name">{shortened(card.name)}</span>
        </a>
      );
    return (
      <a class={classes} style={style} href={href} data-card={card.id} onFocus={focus} draggable={false}>
        <span class="card-head">
          <span class="card-kind">{card.kind || "dataset"}</span>
          <StateBadge state={card.state} />
        </span>
        <span class="card-name" title={card.name}>
          {shortened(card.name)}
        </span>
        <span class="figures">
          <Figure name="rows/s" value={rate(card.rows_per_second)} />
          <Figure name={card.kind === "materialized view" ? "refresh" : "batch"} value={brief(card.batch_seconds)} />
          <Figure name="rows" value={short(card.rows)} />
          <Figure name="lag" value={lag(card.lag, card.waiting_files)} alarm={!!card.lag && card.state === "RUNNING"} />
          <Figure name="watermark" value={delay === null ? "–" : `${delay < 0 ? "+" : "−"}${brief(Math.abs(delay))}`} alarm={(delay ?? 0) < 0} />
          {card.quarantined || !card.dropped ? (
            <Figure name="quarantined" value={short(card.quarantined)} alarm={card.quarantined > 0} />
          ) : (
            <Figure name="dropped" value={short(card.dropped)} alarm />
          )}
        </span>
      </a>
    );
  }
}

interface View {
  x: number;
  y: number;
  k: number;
}

interface GraphProps {
  pipeline: string;
  update: string;
  cards: Card[];
  edges: Edge[];
}

const clamp = (value: number, low: number, high: number) => Math.min(high, Math.max(low, value));

export function Graph({ pipeline, update, cards, edges }: GraphProps) {
  const frame = useRef<HTMLDivElement>(null);
  const plane = useRef<HTMLDivElement>(null);
  const search = useRef<HTMLInputElement>(null);
  const view = useRef<View>({ x: 0, y: 0, k: 1 });
  const moved = useRef(false);
  const rest = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const [direction, setDirection] = useState<"LR" | "TB">(innerWidth < 700 ? "TB" : "LR");
  const [wanted, setWanted] = useState("");
  const [focused, setFocused] = useState("");
  const shape = cards.map((card) => card.id).join("\n") + edges.map((edge) => `${edge.from}\t${edge.to}`).join("\n");
  const drawing = useMemo(() => plan(cards, edges, direction), [shape, direction]);

  const settle = () => {
    const { k } = view.current;
    plane.current?.classList.remove("moving");
    frame.current?.classList.toggle("far", k < FAR);
    frame.current?.style.setProperty("--k", Math.max(k, 0.12).toFixed(2));
  };
  const apply = () => {
    const { x, y, k } = view.current;
    if (!plane.current || !frame.current) return;
    plane.current.style.transform = `translate(${x}px, ${y}px) scale(${k})`;
    // While it moves, the plane is scaled as a bitmap; it is rendered again when it stops.
    plane.current.classList.add("moving");
    clearTimeout(rest.current);
    rest.current = setTimeout(settle, moved.current ? 160 : 0);
  };
  const zoomAt = (factor: number, px: number, py: number) => {
    const { x, y, k } = view.current;
    const next = clamp(k * factor, 0.06, 2);
    view.current = { x: px - ((px - x) * next) / k, y: py - ((py - y) * next) / k, k: next };
    moved.current = true;
    apply();
  };
  const zoom = (factor: number) => {
    const box = frame.current!.getBoundingClientRect();
    zoomAt(factor, box.width / 2, box.height / 2);
  };
  const fit = (least = 0.06) => {
    const box = frame.current?.getBoundingClientRect();
    if (!box?.width || !drawing.width) return;
    const height = box.height - TOOLS;
    const k = clamp(Math.min(box.width / drawing.width, height / drawing.height), least, 1);
    view.current = {
      // If the graph does not fit, show its start: data flows from the left, or from the top.
      x: Math.max(direction === "LR" ? 0 : -Infinity, (box.width - drawing.width * k) / 2),
      y: Math.max(direction === "TB" ? TOOLS : -Infinity, TOOLS + (height - drawing.height * k) / 2 - MARGIN * k * 0.5),
      k,
    };
    moved.current = false;
    apply();
  };
  const show = (id: string, centre: boolean) => {
    const box = drawing.boxes.get(id);
    const area = frame.current?.getBoundingClientRect();
    if (!box || !area) return;
    const { x, y, k } = view.current;
    const left = box.x * k + x;
    const top = box.y * k + y;
    const isIn = left >= 0 && top >= 0 && left + box.w * k <= area.width && top + box.h * k <= area.height;
    if (isIn && !centre) return;
    const size = centre ? Math.max(k, 0.8) : k;
    view.current = {
      x: area.width / 2 - (box.x + box.w / 2) * size,
      y: area.height / 2 - (box.y + box.h / 2) * size,
      k: size,
    };
    moved.current = true;
    apply();
  };

  useLayoutEffect(() => fit(LEGIBLE), [drawing]);
  useEffect(() => {
    const element = frame.current!;
    const resized = new ResizeObserver(() => {
      setDirection(element.clientWidth < 640 ? "TB" : "LR");
      if (!moved.current) fit(LEGIBLE);
    });
    resized.observe(element);
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const box = element.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey || !event.shiftKey) {
        zoomAt(Math.exp(-event.deltaY * (event.deltaMode ? 0.04 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
      } else {
        view.current = { ...view.current, x: view.current.x - event.deltaX - event.deltaY };
        moved.current = true;
        apply();
      }
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => {
      resized.disconnect();
      element.removeEventListener("wheel", wheel);
    };
  }, [drawing]);

  const pointers = useRef(new Map<number, { x: number; y: number }>());
  const travelled = useRef(0);
  const down = (event: PointerEvent) => {
    if (event.button !== 0 || (event.target as Element).closest(".graph-tools")) return;
    pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
    travelled.current = 0;
  };
  const move = (event: PointerEvent) => {
    const last = pointers.current.get(event.pointerId);
    if (!last) return;
    if (!event.buttons) {
      // The button was released outside of the window.
      pointers.current.delete(event.pointerId);
      return;
    }
    const box = frame.current!.getBoundingClientRect();
    const others = [...pointers.current].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    travelled.current += Math.abs(event.clientX - last.x) + Math.abs(event.clientY - last.y);
    if (travelled.current > 4 && !frame.current!.hasPointerCapture(event.pointerId)) frame.current!.setPointerCapture(event.pointerId);
    if (others[0]) {
      const before = Math.hypot(last.x - others[0].x, last.y - others[0].y);
      const after = Math.hypot(event.clientX - others[0].x, event.clientY - others[0].y);
      if (before > 0) zoomAt(after / before, (event.clientX + others[0].x) / 2 - box.left, (event.clientY + others[0].y) / 2 - box.top);
    } else {
      view.current = { ...view.current, x: view.current.x + event.clientX - last.x, y: view.current.y + event.clientY - last.y };
      if (travelled.current > 4) moved.current = true;
      apply();
    }
    pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
  };
  const up = (event: PointerEvent) => pointers.current.delete(event.pointerId);
  const click = (event: MouseEvent) => {
    if (travelled.current > 4) event.preventDefault();
    travelled.current = 0;
  };

  const matches = (card: Card) => !wanted || card.name.toLowerCase().includes(wanted.toLowerCase());
  const results = wanted ? cards.filter(matches) : [];
  const near = useMemo(() => connected(focused, edges), [focused, edges]);

  const key = (event: KeyboardEvent) => {
    if (event.target === search.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (step) {
      const next = neighbour(drawing.boxes, focused, step);
      if (next) frame.current!.querySelector<HTMLElement>(`[data-card="${CSS.escape(next)}"]`)?.focus({ preventScroll: true });
      event.preventDefault();
    } else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") fit();
  };
  useEffect(() => {
    const slash = (event: KeyboardEvent) => {
      const isTyping = (event.target as Element).closest?.("input, select, textarea");
      if (event.key !== "/" || isTyping) return;
      event.preventDefault();
      search.current?.focus();
    };
    addEventListener("keydown", slash);
    return () => removeEventListener("keydown", slash);
  }, []);

  const states = new Map(cards.map((card) => [card.id, card]));
  const flows = edges.length <= MAX_ANIMATED_EDGES;
  return (
    <div
      class="graph"
      ref={frame}
      role="group"
      aria-label="Pipeline graph. Arrow keys move between cards, Enter opens a card, plus and minus zoom, 0 fits the graph, slash searches."
      onPointerDown={down}
      onPointerMove={move}
      onPointerUp={up}
      onPointerCancel={up}
      onClickCapture={click}
      onKeyDown={key}
      onBlurCapture={(event) => !frame.current?.contains(event.relatedTarget as Element) && setFocused("")}
      onScroll={(event) => event.currentTarget.scrollTo(0, 0)}
    >
      <div class="plane" ref={plane}>
        <svg width={drawing.width} height={drawing.height} aria-hidden="true">
          <defs>
            <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0.500L7.500 4L0 7.500z" />
            </marker>
          </defs>
          {drawing.paths.map(({ edge, d }) => {
            const target = states.get(edge.to);
            const isNear = near.has(edge.from) && near.has(edge.to);
            const moves = flows && target?.state === "RUNNING" && (target.rows_per_second ?? 0) > 0;
            return (
              <g class={`edge${isNear ? " near" : ""}${target?.state === "FAILED" ? " broken" : ""}`}>
                <path d={d} marker-end="url(#tip)" />
                {moves && <path class="flowing" d={d} />}
              </g>
            );
          })}
        </svg>
        {cards.map((card) => (
          <CardBox
            key={card.id}
            card={card}
            box={drawing.boxes.get(card.id)!}
            href={to.dataset(pipeline, card.id, update)}
            dim={!matches(card)}
            near={near.has(card.id)}
            onFocus={(id) => {
              setFocused(id);
              show(id, false);
            }}
          />
        ))}
      </div>
      <div class="graph-tools">
        <input
          ref={search}
          type="search"
          placeholder="Find a dataset"
          aria-label="Find a dataset"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && results[0]) {
              show(results[0].id, true);
              frame.current!.querySelector<HTMLElement>(`[data-card="${CSS.escape(results[0].id)}"]`)?.focus({ preventScroll: true });
            }
            if (event.key === "Escape") setWanted("");
          }}
        />
        <span class="found" role="status">
          {wanted && `${results.length} of ${cards.length}`}
        </span>
        <button type="button" aria-label="Zoom in" title="Zoom in (+)" onClick={() => zoom(1.25)}>
          +
        </button>
        <button type="button" aria-label="Zoom out" title="Zoom out (−)" onClick={() => zoom(0.8)}>
          −
        </button>
        <button type="button" title="Fit (0)" onClick={() => fit()}>
          Fit
        </button>
      </div>
    </div>
  );
}

/** All datasets upstream and downstream of a dataset. */
function connected(id: string, edges: Edge[]): Set<string> {
  const result = new Set<string>();
  if (!id) return result;
  const walk = (from: "from" | "to", into: "from" | "to") => {
    const queue = [id];
    const seen = new Set(queue);
    for (let at = queue.pop(); at !== undefined; at = queue.pop())
      for (const edge of edges)
        if (edge[from] === at && !seen.has(edge[into])) {
          seen.add(edge[into]);
          queue.push(edge[into]);
        }
    for (const each of seen) result.add(each);
  };
  walk("from", "to");
  walk("to", "from");
  return result;
}

/** The nearest card in a direction; the first card if none has the focus. */
function neighbour(boxes: Map<string, Box>, from: string, [dx, dy]: [number, number]): string | null {
  const start = boxes.get(from);
  if (!start) return boxes.keys().next().value ?? null;
  let best: string | null = null;
  let least = Infinity;
  for (const [id, box] of boxes) {
    const x = box.x + box.w / 2 - start.x - start.w / 2;
    const y = box.y + box.h / 2 - start.y - start.h / 2;
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (id === from || along < 8) continue;
    const cost = along + 2 * aside;
    if (cost < least) {
      least = cost;
      best = id;
    }
  }
  return best;
}
