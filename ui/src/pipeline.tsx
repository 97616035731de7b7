/** An update of a pipeline: its state, graph, datasets and timeline. */
import { useState } from "preact/hooks";
import type { Card, Flow, Link, Pipeline, Update } from "./api";
import { ago, brief, count, lag, moment, rate, seconds, short, when } from "./format";
import { Controls } from "./control";
import { Graph } from "./graph";
import { Dots, Empty, Fact, FailureBox, headState, Reading, Unresponsive } from "./parts";
import { to, useNow } from "./place";
import { look, StateBadge } from "./state";

const QUIET_SECONDS = 120;

type Tab = "graph" | "table" | "timeline";

interface Props {
  pipelines: Pipeline[] | null;
  pipeline: Pipeline | null;
  pipelineKey: string;
  update: string;
  body: Update | null;
  link: Link;
}

const isReal = (card: Card) => card.kind !== "source" && card.kind !== "temporary view";
const total = (values: (number | null)[]) => values.reduce<number>((sum, value) => sum + (value ?? 0), 0);

export function PipelinePage({ pipelines, pipeline, pipelineKey, update, body, link }: Props) {
  const [tab, setTab] = useState<Tab>("graph");
  const runs = !!body && !body.update.has_ended && !body.update.is_gone;
  const now = useNow(runs ? 1000 : 0);
  if (!body) {
    if (pipelines && !pipeline)
      return (
        <main id="main">
          <Empty title={`No pipeline is called ${pipelineKey} here`}>
            <a href={to.pipelines()}>All pipelines</a>
          </Empty>
        </main>
      );
    if (pipeline && !pipeline.total)
      return (
        <main id="main">
          <h1>{pipeline.name}</h1>
          <Controls pipelineKey={pipelineKey} />
          <Empty title="No update yet">
            Start one with <code>penstock run</code>. It then appears on this page. The event log is{" "}
            <code>{pipeline.event_log}</code>
          </Empty>
        </main>
      );
    if (link === "missing")
      return (
        <main id="main">
          <Empty title="This update is not in the event log">
            <a href={to.pipeline(pipelineKey)}>Show the latest one</a>
          </Empty>
        </main>
      );
    return (
      <main id="main">
        <Empty title={link === "lost" ? "The dashboard server does not respond" : "Reading the event log…"}>
          {link === "lost" && "This page retries automatically."}
        </Empty>
      </main>
    );
  }
  const head = body.update;
  const real = body.cards.filter(isReal);
  const state = headState(head);
  const end = head.ended ?? (runs ? now : (head.last_event ?? now));
  const quiet = runs && body.read_percent === null && head.last_event ? (now - head.last_event) / 1000 : 0;
  const failed = body.flows.filter((flow) => flow.error && flow.state === "FAILED");
  const lags = real.map((card) => card.lag).filter((lag) => lag !== null);
  const quarantined = total(real.map((card) => card.quarantined));
  const dropped = total(real.map((card) => card.dropped));
  const broken = total(real.map((card) => card.failed_checks));
  return (
    <main id="main" class={tab === "graph" ? "fills" : ""}>
      <div class="page-head">
        <div>
          <h1>
            {head.pipeline_name || pipeline?.name} <StateBadge state={state} />
          </h1>
          <p class="muted">
            {head.started !== null && <>started {moment(head.started)}, </>}
            {runs ? "running for " : head.is_gone ? "ran for at least " : "took "}
            {head.started !== null && seconds((end - head.started) / 1000)}
            {head.properties.continuous ? ", continuous" : ", triggered"}
            {quiet > QUIET_SECONDS && (
              <span class="warn-text"> · no event for {brief(quiet)}: idle or stuck</span>
            )}
          </p>
        </div>
        {pipeline && <Dots pipeline={pipeline} current={head.update_id} />}
      </div>
      <Controls pipelineKey={pipelineKey} />
      <Reading body={body} />
      {head.is_gone && (
        <section class="failure" aria-label="Interrupted">
          <strong>This update was interrupted</strong>
          <p class="hint">
            Its process ended without a final event
            {head.last_event !== null && <>; its last event was at {moment(head.last_event)}</>}.
            {body.newest && (
              <>
                {" "}
                <strong>Hint</strong> start it again with <code>penstock run</code>: it continues from the last commits.
              </>
            )}
          </p>
        </section>
      )}
      {!body.newest && (
        <p class="notice">
          This is an earlier update. <a href={to.pipeline(pipelineKey)}>Show the latest one</a>
        </p>
      )}
      {failed.map((flow) => (
        <FailureBox
          failure={flow.error!}
          title={`Flow ${flow.name} failed`}
          href={to.dataset(pipelineKey, flow.target, update)}
        />
      ))}
      {head.error && !failed.length && <FailureBox failure={head.error} title="The update failed" />}
      {head.warnings.length > 0 && (
        <details class="warnings">
          <summary>
            {count(head.all_warnings)} {head.all_warnings === 1 ? "warning" : "warnings"}
            {head.all_warnings > head.warnings.length && `, the newest ${head.warnings.length}`}
          </summary>
          <ul>
            {head.warnings.map((text) => (
              <li>{text}</li>
            ))}
          </ul>
        </details>
      )}
      {runs && <Unresponsive cards={real} />}
      <dl class="facts">
        <Fact name="Datasets">{datasetsText(real)}</Fact>
        <Fact name="Rows/s read">{runs ? rate(total(real.map((card) => card.rows_per_second))) : "–"}</Fact>
        <Fact name="Rows written">{short(total(real.map((card) => card.rows)))}</Fact>
        <Fact name="Lag, rows" alarm={runs && total(lags) > 0}>
          {lags.length && !real.some((card) => card.problem) ? short(total(lags)) : "–"}
        </Fact>
        <Fact name="Quarantined" alarm={quarantined > 0}>
          {short(quarantined)}
        </Fact>
        {dropped > 0 && (
          <Fact name="Dropped" alarm>
            {short(dropped)}
          </Fact>
        )}
        <Fact name="Checks failed" alarm={broken > 0}>
          {short(broken)}
        </Fact>
      </dl>
      <div class="tabs" role="tablist" aria-label="Views of the update">
        {(["graph", "table", "timeline"] as Tab[]).map((name) => (
          <button
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={tab === name}
            aria-controls="view"
            tabIndex={tab === name ? 0 : -1}
            onClick={() => setTab(name)}
            onKeyDown={(event) => {
              const names: Tab[] = ["graph", "table", "timeline"];
              const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
              if (!by) return;
              const next = names[(names.indexOf(name) + by + names.length) % names.length]!;
              setTab(next);
              document.getElementById(`tab-${next}`)?.focus();
            }}
          >
            {name === "graph" ? "Graph" : name === "table" ? "Datasets" : "Timeline"}
          </button>
        ))}
      </div>
      <div id="view" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {!body.cards.length ? (
          <Empty title={runs ? "The pipeline is being analysed" : "This update ended before its datasets were known"}>
            {runs ? "Its datasets appear as soon as they are known." : head.message}
          </Empty>
        ) : tab === "graph" ? (
          <Graph pipeline={pipelineKey} update={update} cards={body.cards} edges={body.edges} />
        ) : tab === "table" ? (
          <Table pipelineKey={pipelineKey} update={update} cards={real} />
        ) : (
          <Timeline pipelineKey={pipelineKey} update={update} body={body} end={end} />
        )}
      </div>
      <details class="more-facts">
        <summary>About this update</summary>
        <dl class="pairs">
          <dt>Update</dt>
          <dd>
            <code>{head.update_id}</code>
          </dd>
          {Object.entries(head.properties)
            .filter(([, value]) => typeof value === "string" || (Array.isArray(value) && value.length))
            .map(([name, value]) => (
              <>
                <dt>{name.replaceAll("_", " ")}</dt>
                <dd>
                  <code>{String(value)}</code>
                </dd>
              </>
            ))}
          <dt>last event</dt>
          <dd>{head.last_event !== null ? `${moment(head.last_event)} (${ago(head.last_event, now)}), ${count(head.events)} read` : "–"}</dd>
        </dl>
      </details>
    </main>
  );
}

function datasetsText(cards: Card[]): string {
  const failed = cards.filter((card) => card.state === "FAILED").length;
  const running = cards.filter((card) => card.state === "RUNNING").length;
  const extra = failed ? `, ${failed} failed` : running ? `, ${running} running` : "";
  return `${cards.length}${extra}`;
}

type Column = "name" | "state" | "rows" | "rows_per_second" | "batch_seconds" | "lag" | "quarantined" | "dropped" | "failed_checks";

const COLUMNS: [Column, string][] = [
  ["name", "Dataset"],
  ["state", "State"],
  ["rows", "Rows"],
  ["rows_per_second", "Rows/s"],
  ["batch_seconds", "Batch"],
  ["lag", "Lag"],
  ["quarantined", "Quarantined"],
  ["dropped", "Dropped"],
  ["failed_checks", "Checks failed"],
];

function Table({ pipelineKey, update, cards }: { pipelineKey: string; update: string; cards: Card[] }) {
  const [order, setOrder] = useState<{ by: Column; down: boolean } | null>(null);
  const rows = [...cards];
  if (order)
    rows.sort((a, b) => {
      const [x, y] = [a[order.by], b[order.by]];
      const compared = typeof x === "string" ? x.localeCompare(String(y)) : ((x as number) ?? -1) - ((y as number) ?? -1);
      return order.down ? -compared : compared;
    });
  return (
    <div class="scrolls" tabIndex={0} role="group" aria-label="Datasets">
      <table>
        <thead>
          <tr>
            {COLUMNS.map(([column, title], i) => (
              <th
                scope="col"
                class={i > 1 ? "number" : ""}
                aria-sort={order?.by === column ? (order.down ? "descending" : "ascending") : "none"}
              >
                <button type="button" onClick={() => setOrder({ by: column, down: order?.by === column ? !order.down : i > 1 })}>
                  {title}
                  <span aria-hidden="true">{order?.by === column ? (order.down ? " ↓" : " ↑") : ""}</span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((card) => (
            <tr key={card.id}>
              <th scope="row">
                <a href={to.dataset(pipelineKey, card.id, update)}>{card.name}</a>
                <span class="muted small-text kind">{card.kind}</span>
              </th>
              <td>
                <StateBadge state={card.state} />
              </td>
              <td class="number">{count(card.rows)}</td>
              <td class="number">{rate(card.rows_per_second)}</td>
              <td class="number">{seconds(card.batch_seconds)}</td>
              <td class="number">{lag(card.lag, card.waiting_files)}</td>
              <td class={card.quarantined ? "number warn-text" : "number"}>{count(card.quarantined)}</td>
              <td class={card.dropped ? "number warn-text" : "number"}>{count(card.dropped)}</td>
              <td class={card.failed_checks ? "number warn-text" : "number"}>{count(card.failed_checks)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Stretch {
  state: string;
  from: number;
  to: number;
}

function stretches(flow: Flow, end: number): Stretch[] {
  return flow.changes.map(([from, state], i) => ({ state, from, to: flow.changes[i + 1]?.[0] ?? end }));
}

const FINAL = new Set(["COMPLETED", "FAILED", "SKIPPED", "STOPPED", "EXCLUDED"]);

function Timeline({ pipelineKey, update, body, end }: { pipelineKey: string; update: string; body: Update; end: number }) {
  const start = body.update.started ?? end;
  const span = Math.max(1, end - start);
  const at = (ms: number) => `${(100 * (Math.min(Math.max(ms, start), end) - start)) / span}%`;
  const names = new Map(body.cards.map((card) => [card.id, card.name]));
  const phases = body.update.changes.map(([from, state], i) => ({ state, from, to: body.update.changes[i + 1]?.[0] ?? end }));
  const marks = [0, 0.25, 0.5, 0.75, 1];
  const row = (parts: Stretch[]) => (
    <div class="track">
      {parts.map((part, i) => {
        const { word, tone } = look(part.state);
        const isLast = i === parts.length - 1;
        const text = `${word}: ${when(part.from)}, ${seconds((part.to - part.from) / 1000)}`;
        const style = { left: at(part.from), width: `calc(${at(part.to)} - ${at(part.from)})` };
        if (isLast && FINAL.has(part.state))
          return <span class={`end tone-${tone}`} style={{ left: at(part.from) }} title={`${word} at ${when(part.from)}`} />;
        return <span class={`stretch tone-${tone} state-${part.state.toLowerCase()}`} style={style} title={text} />;
      })}
    </div>
  );
  return (
    <div class="timeline panel">
      <div class="line axis" aria-hidden="true">
        <span />
        <div class="track">
          {marks.map((mark) => (
            <span class="tick" style={{ left: `${mark * 100}%` }}>
              {seconds((mark * span) / 1000)}
            </span>
          ))}
        </div>
        <span />
      </div>
      <div class="line">
        <span class="line-name">Update</span>
        {row(phases)}
        <span class="line-end">
          <StateBadge state={headState(body.update)} />
        </span>
      </div>
      {body.flows.map((flow) => {
        const isSame = names.get(flow.target) === flow.name;
        return (
          <div class="line" key={flow.name}>
            <span class="line-name">
              <a href={to.dataset(pipelineKey, flow.target, update)}>{flow.name}</a>
              {!isSame && <span class="muted small-text"> → {names.get(flow.target) ?? flow.target}</span>}
            </span>
            {row(stretches(flow, end))}
            <span class="line-end">
              <StateBadge state={flow.state} />
              <span class="muted small-text">{worked(flow, end)}</span>
            </span>
          </div>
        );
      })}
    </div>
  );
}

/** How long a flow was running. */
function worked(flow: Flow, end: number): string {
  const parts = stretches(flow, end).filter((part) => part.state === "RUNNING" || part.state === "STARTING");
  if (!parts.length) return "";
  return seconds(parts.reduce((sum, part) => sum + part.to - part.from, 0) / 1000);
}

