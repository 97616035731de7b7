/** Quarantined rows: their number per table, and the rows of a table with the rules that they violated. */
import { useEffect, useRef, useState } from "preact/hooks";
import { getQuarantine, getQuarantines, useResponse, type Pipeline, type Problem, type Quarantined, type Refused } from "./api";
import { ReplayBar, useControl } from "./control";
import { ago, count, moment, rowsText, short } from "./format";
import { Empty } from "./parts";
import { to, useNow, type Place } from "./place";
import { ProblemText } from "./rows";

const POLL_MS = 5000;
const TYPING_MS = 300;
/** The limit of rows in a replay. */
const MAX_MARKED = 1000;

interface Props {
  pipeline: Pipeline | null;
  place: Place;
}

const bare = (name: string) => name.split(".").pop() ?? name;
const byCount = (rules: Record<string, number>) => Object.entries(rules).sort((a, b) => b[1] - a[1]);

export function QuarantinePage({ pipeline, place }: Props) {
  const key = place.pipeline;
  const now = useNow(POLL_MS);
  const { value, problem } = useResponse((signal) => getQuarantines(key, signal), key, now);
  const tables = value && !value.problem ? value.tables : null;
  const table = tables?.find((each) => each.dataset === place.dataset);
  return (
    <main id="main">
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={to.pipeline(key)}>{pipeline?.name ?? key}</a>
        <span aria-hidden="true">/</span>
        {place.dataset ? (
          <>
            <a href={to.quarantine(key)}>Quarantine</a>
            <span aria-hidden="true">/</span>
            <span>{bare(place.dataset)}</span>
          </>
        ) : (
          <span>Quarantine</span>
        )}
      </nav>
      {place.dataset ? (
        <TableRows pipelineKey={key} name={place.dataset} rule={place.rule} table={table} />
      ) : (
        <>
          <h1>Quarantine</h1>
          {value?.problem && <ProblemText problem={value.problem} />}
          {!value && <Empty title={problem ? `The quarantine could not be read: ${problem}` : "Reading…"} />}
          {tables && !tables.length && <Empty title="No table has a quarantine">No row of this pipeline violated a rule that drops or quarantines rows.</Empty>}
          {tables && tables.length > 0 && <Overview pipelineKey={key} tables={tables} now={now} />}
        </>
      )}
    </main>
  );
}

function Overview({ pipelineKey, tables, now }: { pipelineKey: string; tables: Quarantined[]; now: number }) {
  return (
    <ul class="refused-tables">
      {tables.map((table) => (
        <li class="panel">
          <h2>
            <a href={to.quarantine(pipelineKey, table.dataset)}>{bare(table.dataset)}</a>
            <span class="muted">
              {!table.problem && `${table.rows === null ? "rows" : rowsText(table.rows)} in quarantine`}
              {table.newest !== null && table.newest !== undefined && `, the last ${ago(table.newest, now)}`}
            </span>
          </h2>
          {table.problem ? <ProblemText problem={table.problem} /> : <Rules table={table} chosen="" pipelineKey={pipelineKey} />}
        </li>
      ))}
    </ul>
  );
}

/** The number of rows per violated rule; each links to these rows. */
function Rules({ table, chosen, pipelineKey }: { table: Quarantined; chosen: string; pipelineKey: string }) {
  const rules = byCount(table.rules);
  const isPart = table.rows !== null && table.counted < table.rows;
  if (!rules.length) return <p class="muted">{table.rows === 0 ? "The quarantine is empty." : "Counting…"}</p>;
  return (
    <div class="by-rule">
      <ul class="chips" aria-label="By rule">
        {rules.map(([rule, rows]) => (
          <li>
            <a class="chip" href={to.quarantine(pipelineKey, table.dataset, rule === chosen ? "" : rule)} aria-current={rule === chosen ? "true" : undefined}>
              {rule} <strong>{short(rows)}</strong>
              {rule === chosen && <span aria-label="remove the filter"> ×</span>}
            </a>
          </li>
        ))}
      </ul>
      {isPart && <span class="muted small-text">counted: {count(table.counted)} of {count(table.rows!)} rows</span>}
    </div>
  );
}

interface Results {
  rows: Refused[];
  next: string | null;
  searched: number;
  total: number | null;
  problem?: Problem;
}

function TableRows({ pipelineKey, name, rule, table }: { pipelineKey: string; name: string; rule: string; table?: Quarantined }) {
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const [results, setResults] = useState<Results | null>(null);
  const [busy, setBusy] = useState(true);
  const stop = useRef<AbortController | null>(null);
  const asking = useControl(pipelineKey);
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  // Marks are kept when the search or the filter changes.
  const mark = (ids: string[], on: boolean) =>
    setMarked((old) => {
      const fresh = new Set(old);
      for (const id of ids) if (!on) fresh.delete(id);
      else if (fresh.size < MAX_MARKED) fresh.add(id);
      return fresh;
    });
  const clear = () => setMarked(new Set());
  useEffect(clear, [pipelineKey, name]);
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed.trim()), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);

  const load = (before: string, old: Results | null) => {
    stop.current?.abort();
    const own = (stop.current = new AbortController());
    setBusy(true);
    getQuarantine(pipelineKey, { name, search, rule, before }, own.signal)
      .then((page) => {
        setBusy(false);
        if (page.problem) return setResults({ rows: [], next: null, searched: 0, total: null, problem: page.problem });
        const rows = [...(old?.rows ?? []), ...page.rows];
        setResults({ rows, next: page.next, searched: (old?.searched ?? 0) + page.searched, total: page.total });
      })
      .catch((error: Error) => {
        if (own.signal.aborted) return;
        setBusy(false);
        setResults({ rows: old?.rows ?? [], next: old?.next ?? null, searched: 0, total: null, problem: { message: error.message, hint: "" } });
      });
  };
  useEffect(() => {
    load("", null);
    return () => stop.current?.abort();
  }, [pipelineKey, name, search, rule]);

  const isNarrow = !!(search || rule);
  const grew = results && table && results.total !== null && table.rows !== null && table.rows !== results.total;
  return (
    <>
      <div class="page-head">
        <div>
          <h1>
            Quarantine of {bare(name)} {table && !table.problem && table.rows !== null && <span class="muted count">{rowsText(table.rows)}</span>}
          </h1>
          <p class="muted">
            <a href={to.dataset(pipelineKey, name)}>{name}</a>
          </p>
        </div>
        <label class="filter">
          <span class="muted">Search </span>
          <input type="search" placeholder="values, rules, source" maxLength={200} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
      </div>
      {table && !table.problem && (
        <ReplayBar
          asking={asking}
          name={name}
          display={bare(name)}
          rows={table.rows}
          rule={rule}
          ruleRows={table.counted === table.rows ? (table.rules[rule] ?? 0) : null}
          marked={marked}
          onClear={clear}
          onDone={() => {
            clear();
            load("", null);
          }}
        />
      )}
      {table && !table.problem && <Rules table={table} chosen={rule} pipelineKey={pipelineKey} />}
      {results?.problem && <ProblemText problem={results.problem} />}
      {grew && !results.problem && (
        <p class="notice">
          The quarantine has changed.{" "}
          <button type="button" class="small-button" onClick={() => load("", null)}>
            Show its newest rows
          </button>
        </p>
      )}
      <p class="muted small-text" role="status">
        {busy
          ? "Reading…"
          : results && !results.problem
            ? isNarrow
              ? `${count(results.rows.length)} found in the ${results.next === null ? "" : "newest "}${count(results.searched)} rows`
              : `The newest ${count(results.rows.length)}${results.total === null ? "" : ` of ${count(results.total)}`} rows`
            : ""}
      </p>
      {results && !results.problem && !results.rows.length && !busy && results.next === null && (
        <Empty title={isNarrow ? "No rows match" : "The quarantine is empty"} />
      )}
      {asking.control?.enabled && !!results?.rows.length && !results.problem && <MarkAll ids={results.rows.map((row) => row.id)} marked={marked} onMark={mark} />}
      <ol class="refused">
        {results?.rows.map((row) => (
          <Row key={row.id} row={row} marked={asking.control?.enabled ? marked.has(row.id) : null} isFull={marked.size >= MAX_MARKED} onMark={mark} />
        ))}
      </ol>
      {results?.next != null && !results.problem && (
        <button type="button" class="load" disabled={busy} onClick={() => load(results.next!, results)}>
          {isNarrow ? "Search older rows" : "Show older rows"}
        </button>
      )}
    </>
  );
}

type Mark = (ids: string[], on: boolean) => void;

function MarkAll({ ids, marked, onMark }: { ids: string[]; marked: ReadonlySet<string>; onMark: Mark }) {
  const own = ids.filter((id) => marked.has(id)).length;
  const elsewhere = marked.size - own;
  return (
    <div class="mark-all">
      <label class="mark">
        <input
          type="checkbox"
          checked={own === ids.length}
          indeterminate={own > 0 && own < ids.length}
          onChange={(event) => onMark(ids, event.currentTarget.checked)}
        />
        {ids.length === 1 ? "The row shown" : `All ${count(ids.length)} shown`}
      </label>
      <span class="muted small-text" role="status">
        {marked.size > 0 && `${count(marked.size)} marked${elsewhere > 0 ? `, ${count(elsewhere)} of them not shown` : ""}`}
        {marked.size >= MAX_MARKED && ": the limit of a replay"}
      </span>
    </div>
  );
}

/** A row; has a check box unless `marked` is null. */
function Row({ row, marked, isFull, onMark }: { row: Refused; marked: boolean | null; isFull: boolean; onMark: Mark }) {
  return (
    <li class={marked ? "panel refused-row marked" : "panel refused-row"}>
      <header>
        {marked !== null && (
          <label class="mark">
            <input type="checkbox" checked={marked} disabled={isFull && !marked} onChange={(event) => onMark([row.id], event.currentTarget.checked)} />
            <span class="unseen">Mark for replay: {row.rules.join(", ")}</span>
          </label>
        )}
        <ul class="chips">
          {row.rules.map((rule) => (
            <li class="broken">{rule}</li>
          ))}
        </ul>
        <span class="muted small-text">
          {[row.flow && `flow ${row.flow}`, row.batch_id !== null && `batch ${count(row.batch_id)}`, moment(row.at)].filter(Boolean).join(" · ")}
        </span>
      </header>
      <pre>{pretty(row.row)}</pre>
      {row.is_cut && <p class="muted small-text">The row is truncated.</p>}
      {row.source && (
        <p class="muted small-text">
          from <code>{row.source}</code>
        </p>
      )}
    </li>
  );
}

/** Long JSON objects get a line per field; not if they have numbers that JavaScript would round. */
function pretty(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    const isExact = !/\d{16}/.test(text);
    return text.length > 160 && value && typeof value === "object" && isExact ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}
