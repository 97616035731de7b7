/** Details of a dataset, sink or source. */
import { getDataset, useResponse, type Dataset, type Flow, type Link, type Update } from "./api";
import { Chart, RuleBars } from "./chart";
import { RefreshButtons } from "./control";
import { behind, bytes, count, lag, moment, percent, rate, rowsText, seconds, short, when } from "./format";
import { Empty, Fact, FailureBox, Reading, Unresponsive } from "./parts";
import { to } from "./place";
import { Waiting } from "./lag";
import { ColumnLineage } from "./lineage";
import { RowsPanel } from "./rows";
import { CodePanel, TablePanel } from "./stored";
import { StateBadge } from "./state";

interface Props {
  pipelineKey: string;
  update: string;
  name: string;
  body: Update | null;
  link: Link;
}

const NO_TABLE = new Set(["source", "sink", "temporary view"]);

export function DatasetPage({ pipelineKey, update, name, body, link }: Props) {
  const id = body?.update.update_id ?? "";
  const trigger = `${id} ${body?.update.events ?? ""}`;
  const { value, problem } = useResponse<Dataset>(
    (signal) => getDataset(pipelineKey, update, name, signal),
    `${pipelineKey}\n${update}\n${name}`,
    trigger,
  );
  if (!value)
    return (
      <main id="main">
        <Empty title={problem ? "This dataset is not in this update" : link === "lost" ? "The dashboard server does not respond" : "Loading…"}>
          {problem && <a href={to.pipeline(pipelineKey, update)}>Back to the pipeline</a>}
        </Empty>
      </main>
    );
  const card = body?.cards.find((each) => each.id === name) ?? value.card;
  const names = new Map(body?.cards.map((each) => [each.id, each.name]));
  const lineage = (ids: string[]) =>
    ids.length ? (
      <ul class="chips">
        {ids.map((each) => (
          <li>
            <a class="chip" href={to.dataset(pipelineKey, each, update)}>
              {names.get(each) ?? each.replace(/^source:/, "")}
            </a>
          </li>
        ))}
      </ul>
    ) : (
      <span class="muted">none</span>
    );
  const series = value.series;
  const hasPoints = !!series && series.at.length > 0;
  const hasComments = value.columns.some((column) => column.comment);
  const isSource = card.kind === "source";
  return (
    <main id="main">
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={to.pipeline(pipelineKey, update)}>{body?.update.pipeline_name ?? pipelineKey}</a>
        <span aria-hidden="true">/</span>
        <span>{card.name}</span>
      </nav>
      <div class="page-head">
        <div>
          <h1>
            {card.name} {card.state && <StateBadge state={card.state} />}
          </h1>
          <p class="muted">
            {card.kind || "dataset"}
            {value.format && `, ${value.format}`}
            {!isSource && card.id !== card.name && (
              <>
                {" · "}
                <code>{card.id}</code>
              </>
            )}
            {value.declared_at && (
              <>
                {" · declared at "}
                <code class="origin">{value.declared_at}</code>
              </>
            )}
          </p>
        </div>
        {!NO_TABLE.has(card.kind) && <RefreshButtons pipelineKey={pipelineKey} name={name} display={card.name} />}
      </div>
      <Reading body={body} />
      {value.error && (
        <FailureBox
          failure={value.error}
          title={`${card.state === "FAILED" ? "Failed" : "Last error"}${value.error.at !== null ? ` at ${when(value.error.at)}` : ""}`}
        />
      )}
      <Unresponsive cards={[card]} />
      {!isSource && (
        <dl class="facts">
          <Fact name="Rows written">{short(card.rows)}</Fact>
          <Fact name="Rows/s">{rate(card.rows_per_second)}</Fact>
          <Fact name="Last batch">{seconds(card.batch_seconds)}</Fact>
          <Fact name="Lag" alarm={!!card.lag && card.state === "RUNNING"}>
            {lag(card.lag, card.waiting_files)}
          </Fact>
          <Fact name="Watermark" alarm={(card.watermark_delay_seconds ?? 0) < 0}>
            {behind(card.watermark_delay_seconds)}
          </Fact>
          <Fact name="Quarantined" alarm={card.quarantined > 0}>
            {card.quarantined > 0 ? <a href={to.quarantine(pipelineKey, name)}>{short(card.quarantined)}</a> : "0"}
          </Fact>
          {card.dropped > 0 && (
            <Fact name="Dropped" alarm>
              {short(card.dropped)}
            </Fact>
          )}
          <Fact name="Table version">{card.table_version ?? "–"}</Fact>
        </dl>
      )}
      <section class="panel lineage" aria-label="Lineage">
        <div>
          <h2>Reads from</h2>
          {lineage(value.upstream)}
        </div>
        <div>
          <h2>Feeds</h2>
          {lineage(value.downstream)}
        </div>
      </section>
      {!isSource && (
        <section class="panel" aria-label="Throughput">
          {hasPoints ? (
            <div class="charts">
              <Chart title="Rows per second" at={series.at} format={(v) => rate(v)} lines={[{ name: "rows/s", values: series.rows_per_second, color: "--chart-a" }]} />
              <Chart title="Batch duration" at={series.at} format={(v) => seconds(v)} lines={[{ name: "duration", values: series.batch_seconds, color: "--chart-b" }]} />
              {series.lag.some((lag) => lag) && (
                <Chart title="Unread rows at the sources" at={series.at} format={(v) => short(v)} lines={[{ name: "lag", values: series.lag, color: "--chart-c" }]} />
              )}
              {series.quarantined_per_batch.some((rows) => rows) && (
                <Chart title="Rows into quarantine per batch" at={series.at} format={(v) => rate(v)} lines={[{ name: "rows", values: series.quarantined_per_batch, color: "--chart-c" }]} />
              )}
            </div>
          ) : (
            <Empty title="No micro-batch or refresh in this update" />
          )}
        </section>
      )}
      {value.rules.length > 0 && <Rules value={value} />}
      {value.flows.map((flow) => (
        <FlowPanel flow={flow} />
      ))}
      {value.lineage && <ColumnLineage lineage={value.lineage} columns={value.columns} names={names} link={(id) => to.dataset(pipelineKey, id, update)} />}
      {value.columns.length > 0 && (
        <section class="panel" aria-labelledby="schema">
          <h2 id="schema">
            Schema <span class="muted">{value.columns.filter((column) => !column.depth).length} columns</span>
          </h2>
          <div class="scrolls" tabIndex={0} role="group" aria-label="Schema">
            <table class="plain">
              <thead>
                <tr>
                  <th scope="col">Column</th>
                  <th scope="col">Type</th>
                  <th scope="col">Nullable</th>
                  {hasComments && <th scope="col">Comment</th>}
                </tr>
              </thead>
              <tbody>
                {value.columns.map((column) => (
                  <tr>
                    <td>
                      <code style={{ paddingLeft: `${column.depth * 1.25}rem` }}>{column.name}</code>
                    </td>
                    <td>
                      <code class="muted">{column.type}</code>
                    </td>
                    <td class="muted">{column.nullable ? "yes" : "no"}</td>
                    {hasComments && <td>{column.comment}</td>}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {value.batches.length > 0 && <Batches value={value} />}
      {value.declared_at && <CodePanel pipelineKey={pipelineKey} name={name} />}
      {!NO_TABLE.has(card.kind) && <TablePanel pipelineKey={pipelineKey} name={name} version={card.table_version} />}
      {!NO_TABLE.has(card.kind) && <RowsPanel pipelineKey={pipelineKey} name={name} />}
    </main>
  );
}

function Rules({ value }: { value: Dataset }) {
  return (
    <section class="panel" aria-labelledby="rules">
      <h2 id="rules">Expectations</h2>
      <ul class="rules">
        {value.rules.map((rule) => {
          const counts = value.series?.rules[rule.name];
          const all = (rule.passed ?? 0) + (rule.failed ?? 0);
          return (
            <li>
              <div class="rule-text">
                <strong>{rule.name}</strong>
                {rule.action && <span class={`action action-${rule.action}`}>{rule.action}</span>}
                {rule.condition && <code>{rule.condition}</code>}
              </div>
              {rule.passed === null ? (
                <span class="muted rule-numbers">not evaluated</span>
              ) : (
                <div class="rule-numbers">
                  <span class={rule.failed ? "rule-failed warn-text" : "rule-failed"}>{count(rule.failed ?? 0)} failed</span>
                  <span class="muted">
                    {percent(all - (rule.failed ?? 0), all)} of {short(all)} passed
                  </span>
                </div>
              )}
              {counts && value.series ? <RuleBars at={value.series.at} {...counts} /> : <span class="bars" />}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function FlowPanel({ flow }: { flow: Flow }) {
  const progress = flow.progress;
  const durations = Object.entries(progress?.durations_ms ?? {}).filter(([name, ms]) => name !== "triggerExecution" && ms > 0);
  const most = Math.max(1, ...durations.map(([, ms]) => ms));
  return (
    <section class="panel" aria-label={`Flow ${flow.name}`}>
      <h2>
        Flow {flow.name} <StateBadge state={flow.state} />
      </h2>
      {flow.comment && <p>{flow.comment}</p>}
      <p class="muted">
        {[
          flow.type.toLowerCase().replaceAll("_", " "),
          flow.once && "once",
          `${count(flow.batches)} ${flow.batches === 1 ? "batch" : "batches"}`,
          flow.batch_id !== null && `last batch id ${flow.batch_id}`,
          flow.technique && `last refresh: ${flow.technique === "NO_OP" ? "nothing to do" : flow.technique.toLowerCase().replaceAll("_", " ")}`,
          flow.message && flow.state !== "FAILED" && flow.message,
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      {progress && (
        <div class="flow-parts">
          {durations.length > 0 && (
            <div>
              <h3>Where the last batch spent its time</h3>
              <ul class="spent">
                {durations
                  .sort((a, b) => b[1] - a[1])
                  .map(([name, ms]) => (
                    <li>
                      <span>{name}</span>
                      <span class="bar" aria-hidden="true">
                        <span style={{ width: `${(100 * ms) / most}%` }} />
                      </span>
                      <span class="number">{seconds(ms / 1000)}</span>
                    </li>
                  ))}
              </ul>
            </div>
          )}
          {progress.state.length > 0 && (
            <div>
              <h3>State</h3>
              <dl class="pairs">
                {progress.state.map((operator) => (
                  <>
                    <dt>{operator.operator}</dt>
                    <dd>
                      {operator.rows !== null && `${rowsText(operator.rows)}, `}
                      {bytes(operator.memory_bytes)}
                      {!!operator.duplicates_dropped && `, ${count(operator.duplicates_dropped)} ${operator.duplicates_dropped === 1 ? "duplicate" : "duplicates"} in the last batch`}
                      {!!operator.dropped_by_watermark && `, ${rowsText(operator.dropped_by_watermark)} too late in the last batch`}
                    </dd>
                  </>
                ))}
                {progress.watermark && (
                  <>
                    <dt>watermark</dt>
                    <dd>
                      {moment(Date.parse(progress.watermark))}, {behind(progress.watermark_delay_seconds)}
                    </dd>
                  </>
                )}
              </dl>
            </div>
          )}
        </div>
      )}
      {progress?.sources.map((source) => <Waiting source={source} />)}
    </section>
  );
}

function Batches({ value }: { value: Dataset }) {
  const hasIds = value.batches.some((batch) => batch.batch_id !== null);
  const several = value.flows.length > 1;
  return (
    <section class="panel" aria-labelledby="batches">
      <h2 id="batches">{hasIds ? "Last micro-batches" : "Last refreshes"}</h2>
      <div class="scrolls" tabIndex={0} role="group" aria-label="Last micro-batches">
        <table class="plain">
          <thead>
            <tr>
              {several && <th scope="col">Flow</th>}
              {hasIds && (
                <th scope="col" class="number">
                  Batch
                </th>
              )}
              <th scope="col">Ended</th>
              {hasIds && (
                <th scope="col" class="number">
                  Rows in
                </th>
              )}
              <th scope="col" class="number">
                Rows written
              </th>
              <th scope="col" class="number">
                Quarantined
              </th>
              <th scope="col" class="number">
                Duration
              </th>
            </tr>
          </thead>
          <tbody>
            {value.batches.slice(0, 12).map((batch) => (
              <tr>
                {several && <td>{batch.flow}</td>}
                {hasIds && <td class="number">{batch.batch_id ?? "–"}</td>}
                <td>{when(batch.at)}</td>
                {hasIds && <td class="number">{count(batch.rows_in)}</td>}
                <td class="number">{count(batch.rows_out)}</td>
                <td class={batch.quarantined ? "number warn-text" : "number"}>{count(batch.quarantined)}</td>
                <td class="number">{batch.duration_ms ? seconds(batch.duration_ms / 1000) : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
