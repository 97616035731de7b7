/** Types and requests of the dashboard's HTTP API. */
import { useEffect, useRef, useState } from "preact/hooks";
import { setServerTime } from "./place";

export interface Failure {
  condition: string;
  class_name: string;
  message: string;
  declared_at: string;
  hint: string;
  at: number | null;
}

export interface Summary {
  update_id: string;
  pipeline_name: string;
  started: number;
  ended: number | null;
  state: string;
  is_over: boolean;
  is_gone: boolean;
  failed_flows: number;
  continuous: boolean;
  full_refresh: boolean;
  error: Failure | null;
  message: string;
}

export interface Pipeline {
  key: string;
  name: string;
  event_log: string;
  total: number;
  updates: Summary[];
}

export interface Card {
  id: string;
  name: string;
  kind: string;
  state: string;
  rows: number | null;
  rows_per_second: number | null;
  batch_seconds: number | null;
  /** Rows at its sources that are not read yet. */
  lag: number | null;
  waiting_files: number | null;
  /** Why a source does not respond, and since when. */
  problem: { message: string; since: string } | null;
  quarantined: number;
  /** Rows that expectations dropped without a quarantine. */
  dropped: number;
  failed_checks: number;
  watermark_delay_seconds: number | null;
  table_version: number | null;
  error: string | null;
}

export interface Edge {
  from: string;
  to: string;
  flow: string;
}

export interface Partition {
  topic: string;
  partition: string;
  offset: number;
  latest: number | null;
  lag: number | null;
  seconds_behind: number | null;
  /** Until retention removes unread records. */
  seconds_to_loss: number | null;
  loss: "none" | "unknown" | "expected" | "happened";
  lost_records: number | null;
}

export interface Source {
  description: string;
  rows: number | null;
  files: number | null;
  versions: number | null;
  waiting_rows: number | null;
  bytes: number | null;
  /** Age of the oldest unread file, version or record. */
  seconds_behind: number | null;
  problem: string | null;
  partitions: Partition[];
  shards: { stream: string; shard: string; behind_seconds: number }[];
  metrics: Record<string, string>;
}

export interface ColumnInput {
  dataset: string;
  place: string;
  column: string;
  how: string;
}

export interface Progress {
  batch_id: number | null;
  durations_ms: Record<string, number>;
  watermark: string | null;
  watermark_delay_seconds: number | null;
  sources: Source[];
  state: {
    operator: string;
    rows: number | null;
    memory_bytes: number | null;
    dropped_by_watermark: number | null;
    duplicates_dropped: number | null;
  }[];
}

export interface Flow {
  name: string;
  target: string;
  state: string;
  type: string;
  once: boolean;
  comment: string;
  inputs: string[];
  external_inputs: string[];
  batches: number;
  batch_id: number | null;
  rows: number | null;
  message: string;
  technique: string;
  changes: [number, string][];
  progress: Progress | null;
  error: Failure | null;
}

export interface Head {
  pipeline_name: string;
  update_id: string;
  state: string | null;
  has_ended: boolean;
  /** Its process ended without a final event, or a later update has started. */
  is_gone: boolean;
  message: string;
  started: number | null;
  ended: number | null;
  last_event: number | null;
  events: number;
  error: Failure | null;
  /** The newest warnings; `all_warnings` is the number of all. */
  warnings: string[];
  all_warnings: number;
  properties: Record<string, string | boolean | string[]>;
  changes: [number, string][];
}

export interface Update {
  pipeline: string;
  newest: boolean;
  /** Progress of reading a long event log. */
  read_percent: number | null;
  update: Head;
  cards: Card[];
  edges: Edge[];
  flows: Flow[];
}

export interface Rule {
  name: string;
  condition: string;
  action: string;
  passed: number | null;
  failed: number | null;
}

export interface Series {
  at: number[];
  rows_per_second: (number | null)[];
  rows_out: (number | null)[];
  batch_seconds: (number | null)[];
  quarantined_per_batch: number[];
  lag: (number | null)[];
  rules: Record<string, { passed: number[]; failed: number[] }>;
}

export interface Batch {
  flow: string;
  batch_id: number | null;
  at: number;
  rows_in: number;
  rows_out: number | null;
  duration_ms: number;
  quarantined: number;
}

export interface Dataset {
  card: Card;
  declared_at: string;
  format: string;
  columns: { name: string; type: string; nullable: boolean; comment: string; depth: number }[];
  lineage: { columns: Record<string, ColumnInput[]>; influences: ColumnInput[] } | null;
  rules: Rule[];
  flows: Flow[];
  upstream: string[];
  downstream: string[];
  error: Failure | null;
  series: Series | null;
  batches: Batch[];
}

export interface History {
  total: number;
  next: number | null;
  updates: Summary[];
}

/** Why data cannot be shown, and what to do. */
export interface Problem {
  message: string;
  hint: string;
}

export interface Rows {
  version: number;
  total: number | null;
  columns: { name: string; type: string }[];
  more_columns: number;
  rows: (string | null)[][];
  problem?: undefined;
}

export interface Code {
  file: string;
  line: number;
  text: string;
  is_cut: boolean;
}

export interface Table {
  version: number;
  files: number;
  bytes: number;
  small_files: number;
  advice: string | null;
  versions: {
    version: number;
    at: number;
    operation: string;
    flow: string;
    batch_id: number | null;
    files_added: number;
    files_removed: number;
    rows: number | null;
  }[];
  problem?: undefined;
}

export interface Quarantined {
  dataset: string;
  rows: number | null;
  counted: number;
  rules: Record<string, number>;
  newest: number | null;
  problem?: Problem;
}

export interface Refused {
  id: string;
  rules: string[];
  row: string;
  is_cut: boolean;
  source: string | null;
  at: number;
  flow: string;
  batch_id: number | null;
  version: number | null;
}

export interface RefusedPage {
  total: number | null;
  searched: number;
  next: string | null;
  rows: Refused[];
  problem?: undefined;
}

/** A property in two updates; empty in the update that does not have it. */
export interface Change {
  name: string;
  before: string;
  after: string;
}

export interface Difference {
  id: string;
  name: string;
  change: "added" | "removed" | "changed" | "same";
  numbers: Record<string, [number | null, number | null]>;
  states: [string | null, string | null];
  facts?: Change[];
  columns?: Change[];
  rules?: Change[];
  lineage?: string[];
}

export interface Differences {
  before: Head;
  after: Head;
  properties: Change[];
  datasets: Difference[];
  flows: Difference[];
  read_percent?: undefined;
}

const pipelineUrl = (key: string) => `api/pipelines/${encodeURIComponent(key)}`;
const updateQuery = (update: string) => `update=${encodeURIComponent(update)}`;

async function get<T>(url: string, signal?: AbortSignal): Promise<T> {
  const response = await fetch(url, { signal });
  setServerTime(response.headers.get("date"));
  if (!response.ok) throw new Error((await response.text()) || `status ${response.status}`);
  return response.json() as Promise<T>;
}

export const getPipelines = (signal?: AbortSignal) => get<{ pipelines: Pipeline[] }>("api/pipelines", signal);
export const getDataset = (key: string, update: string, name: string, signal?: AbortSignal) =>
  get<Dataset>(`${pipelineUrl(key)}/dataset?${updateQuery(update)}&name=${encodeURIComponent(name)}`, signal);
export const getHistory = (key: string, before: number | null, signal?: AbortSignal) =>
  get<History>(`${pipelineUrl(key)}/updates?limit=50${before === null ? "" : `&before=${before}`}`, signal);

export interface Job {
  what: string;
  started: number;
  ended: number | null;
  exit_code: number | null;
  output: string;
}

export interface Control {
  enabled: boolean;
  runs?: { command: string; since: string; is_here: boolean } | null;
  is_stopping?: boolean;
  jobs?: Job[];
}

export const getControl = (key: string, signal?: AbortSignal) => get<Control>(`${pipelineUrl(key)}/control`, signal);

/** Starts, stops or replays. Throws an error with the reason if the server refuses. */
export async function act(key: string, what: "start" | "stop" | "replay", body: object): Promise<Control> {
  const response = await fetch(`${pipelineUrl(key)}/${what}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-penstock-control": "1" },
    body: JSON.stringify(body),
  });
  if (response.ok) return response.json() as Promise<Control>;
  const text = await response.text();
  throw new Error(response.status === 409 ? (JSON.parse(text) as { refused: string }).refused : text || `status ${response.status}`);
}

export const getDifferences = (key: string, before: string, after: string, signal?: AbortSignal) =>
  get<Differences | { read_percent: number }>(`${pipelineUrl(key)}/differences?before=${encodeURIComponent(before)}&after=${encodeURIComponent(after)}`, signal);

export const getRows = (key: string, name: string, signal?: AbortSignal) =>
  get<Rows | { problem: Problem }>(`${pipelineUrl(key)}/rows?name=${encodeURIComponent(name)}`, signal);
export const getTable = (key: string, name: string, signal?: AbortSignal) =>
  get<Table | { problem: Problem }>(`${pipelineUrl(key)}/table?name=${encodeURIComponent(name)}`, signal);
export const getCode = (key: string, name: string, signal?: AbortSignal) =>
  get<{ code: Code | null }>(`${pipelineUrl(key)}/code?name=${encodeURIComponent(name)}`, signal);
export const getQuarantines = (key: string, signal?: AbortSignal) =>
  get<{ tables: Quarantined[]; problem?: undefined } | { problem: Problem }>(`${pipelineUrl(key)}/quarantines`, signal);
export const getQuarantine = (key: string, query: { name: string; search: string; rule: string; before: string }, signal?: AbortSignal) =>
  get<RefusedPage | { problem: Problem }>(`${pipelineUrl(key)}/quarantine?${new URLSearchParams(query)}`, signal);

/** Sends a request whenever `trigger` changes, at most once per second; keeps the last response until the next. */
export function useResponse<T>(request: (signal: AbortSignal) => Promise<T>, subject: string, trigger: unknown) {
  const [response, setResponse] = useState<{ subject: string; value?: T; problem?: string }>({ subject });
  const last = useRef({ subject: "", at: 0, sent: 0, received: 0, stop: new AbortController() });
  useEffect(() => () => last.current.stop.abort(), []);
  useEffect(() => {
    const state = last.current;
    const isNew = state.subject !== subject;
    if (isNew) {
      state.stop.abort();
      state.stop = new AbortController();
      state.subject = subject;
    }
    const { signal } = state.stop;
    const wait = isNew ? 0 : Math.max(0, state.at + 1000 - Date.now());
    const timer = setTimeout(() => {
      const number = ++state.sent;
      state.at = Date.now();
      // Ignore the response if a later one was received, or if another subject is shown now.
      const isCurrent = () => {
        if (signal.aborted || number < state.received) return false;
        state.received = number;
        return true;
      };
      request(signal)
        .then((value) => isCurrent() && setResponse({ subject, value }))
        .catch((error: Error) => {
          if (isCurrent()) setResponse((old) => ({ subject, value: old.subject === subject ? old.value : undefined, problem: error.message }));
        });
    }, wait);
    return () => clearTimeout(timer);
  }, [subject, trigger]);
  return response.subject === subject ? response : { subject };
}

function merged<T>(old: T[], changed: T[], key: (item: T) => string): T[] {
  if (!changed.length) return old;
  const fresh = new Map(changed.map((item) => [key(item), item]));
  return old.map((item) => fresh.get(key(item)) ?? item);
}

export type Link = "connecting" | "live" | "lost" | "missing";

const RECONNECT_MS = 3000;

/** Follows an update by server-sent events; the stream is closed while the page is hidden. */
export function useUpdate(key: string, update: string): { body: Update | null; link: Link } {
  const [body, setBody] = useState<Update | null>(null);
  const [link, setLink] = useState<Link>("connecting");
  useEffect(() => {
    let stream: EventSource | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    setBody(null);
    const open = () => {
      if (stream || document.hidden) return;
      stream = new EventSource(`${pipelineUrl(key)}/stream?${updateQuery(update)}`);
      const own = stream;
      stream.addEventListener("open", () => setLink("live"));
      stream.addEventListener("error", () => {
        setLink("lost");
        // Browsers do not reconnect after an error response: too many clients, or a proxy without the server.
        if (own.readyState !== EventSource.CLOSED || stream !== own) return;
        close();
        retry = setTimeout(open, RECONNECT_MS);
      });
      stream.addEventListener("missing", () => {
        close();
        setLink("missing");
      });
      stream.addEventListener("update", (event) => setBody(JSON.parse((event as MessageEvent<string>).data)));
      stream.addEventListener("changes", (event) => {
        const changes = JSON.parse((event as MessageEvent<string>).data) as Update;
        setBody(
          (old) =>
            old && {
              ...old,
              ...changes,
              edges: old.edges,
              cards: merged(old.cards, changes.cards, (card) => card.id),
              flows: merged(old.flows, changes.flows, (flow) => flow.name),
            },
        );
      });
    };
    const close = () => {
      clearTimeout(retry);
      stream?.close();
      stream = null;
    };
    const openOrClose = () => (document.hidden ? close() : open());
    open();
    document.addEventListener("visibilitychange", openOrClose);
    return () => {
      document.removeEventListener("visibilitychange", openOrClose);
      close();
    };
  }, [key, update]);
  return { body, link };
}
