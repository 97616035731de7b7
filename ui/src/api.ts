/** What the server says, and how to hear it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { hearServerTime } from "./place";

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
  /** Rows that wait at its sources. */
  lag: number | null;
  waiting_files: number | null;
  /** Why a source gives no answer, and since when. */
  problem: { message: string; since: string } | null;
  quarantined: number;
  /** Rows that are in no quarantine. */
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
  /** Until retention removes what is not read yet. */
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
  /** Age of the oldest that waits. */
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
  /** Its process is known to be gone, or a later update has begun. */
  is_gone: boolean;
  message: string;
  started: number | null;
  ended: number | null;
  last_event: number | null;
  events: number;
  error: Failure | null;
  /** The newest ones, and how many there were. */
  warnings: string[];
  all_warnings: number;
  properties: Record<string, string | boolean | string[]>;
  changes: [number, string][];
}

export interface Update {
  pipeline: string;
  newest: boolean;
  /** Of a long log, how much is read by now. */
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

/** Why something cannot be shown, and the way out. */
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

/** Something that was one thing and is another; empty where it is not there. */
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

const at = (key: string) => `api/pipelines/${encodeURIComponent(key)}`;
const named = (update: string) => `update=${encodeURIComponent(update)}`;

async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  const answer = await fetch(address, { signal });
  hearServerTime(answer.headers.get("date"));
  if (!answer.ok) throw new Error((await answer.text()) || `status ${answer.status}`);
  return answer.json() as Promise<T>;
}

export const getPipelines = (signal?: AbortSignal) => get<{ pipelines: Pipeline[] }>("api/pipelines", signal);
export const getDataset = (key: string, update: string, name: string, signal?: AbortSignal) =>
  get<Dataset>(`${at(key)}/dataset?${named(update)}&name=${encodeURIComponent(name)}`, signal);
export const getHistory = (key: string, before: number | null, signal?: AbortSignal) =>
  get<History>(`${at(key)}/updates?limit=50${before === null ? "" : `&before=${before}`}`, signal);

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

export const getControl = (key: string, signal?: AbortSignal) => get<Control>(`${at(key)}/control`, signal);

/** Starts, stops or replays; a refusal is an error with its reason. */
export async function act(key: string, what: "start" | "stop" | "replay", body: object): Promise<Control> {
  const answer = await fetch(`${at(key)}/${what}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-penstock-control": "1" },
    body: JSON.stringify(body),
  });
  if (answer.ok) return answer.json() as Promise<Control>;
  const text = await answer.text();
  throw new Error(answer.status === 409 ? (JSON.parse(text) as { refused: string }).refused : text || `status ${answer.status}`);
}

export const getDifferences = (key: string, before: string, after: string, signal?: AbortSignal) =>
  get<Differences | { read_percent: number }>(`${at(key)}/differences?before=${encodeURIComponent(before)}&after=${encodeURIComponent(after)}`, signal);

export const getRows = (key: string, name: string, signal?: AbortSignal) =>
  get<Rows | { problem: Problem }>(`${at(key)}/rows?name=${encodeURIComponent(name)}`, signal);
export const getTable = (key: string, name: string, signal?: AbortSignal) =>
  get<Table | { problem: Problem }>(`${at(key)}/table?name=${encodeURIComponent(name)}`, signal);
export const getCode = (key: string, name: string, signal?: AbortSignal) =>
  get<{ code: Code | null }>(`${at(key)}/code?name=${encodeURIComponent(name)}`, signal);
export const getQuarantines = (key: string, signal?: AbortSignal) =>
  get<{ tables: Quarantined[]; problem?: undefined } | { problem: Problem }>(`${at(key)}/quarantines`, signal);
export const getQuarantine = (key: string, asked: { name: string; search: string; rule: string; before: string }, signal?: AbortSignal) =>
  get<RefusedPage | { problem: Problem }>(`${at(key)}/quarantine?${new URLSearchParams(asked)}`, signal);

/** Asks again whenever `again` changes, at most once per second, and keeps the last answer meanwhile. */
export function useAnswer<T>(ask: (signal: AbortSignal) => Promise<T>, about: string, again: unknown) {
  const [answer, setAnswer] = useState<{ about: string; value?: T; problem?: string }>({ about });
  const last = useRef({ about: "", at: 0, asked: 0, told: 0, stop: new AbortController() });
  useEffect(() => () => last.current.stop.abort(), []);
  useEffect(() => {
    const state = last.current;
    const isNew = state.about !== about;
    if (isNew) {
      state.stop.abort();
      state.stop = new AbortController();
      state.about = about;
    }
    const { signal } = state.stop;
    const wait = isNew ? 0 : Math.max(0, state.at + 1000 - Date.now());
    const timer = setTimeout(() => {
      const number = ++state.asked;
      state.at = Date.now();
      // An answer that was overtaken by a later one, or is about what was shown before, is old news.
      const isNews = () => {
        if (signal.aborted || number < state.told) return false;
        state.told = number;
        return true;
      };
      ask(signal)
        .then((value) => isNews() && setAnswer({ about, value }))
        .catch((error: Error) => {
          if (isNews()) setAnswer((old) => ({ about, value: old.about === about ? old.value : undefined, problem: error.message }));
        });
    }, wait);
    return () => clearTimeout(timer);
  }, [about, again]);
  return answer.about === about ? answer : { about };
}

function merged<T>(old: T[], changed: T[], key: (item: T) => string): T[] {
  if (!changed.length) return old;
  const fresh = new Map(changed.map((item) => [key(item), item]));
  return old.map((item) => fresh.get(key(item)) ?? item);
}

export type Link = "connecting" | "live" | "lost" | "missing";

const AGAIN_MS = 3000;

/** An update as it goes on. Nothing is asked for while the page is hidden. */
export function useUpdate(key: string, update: string): { body: Update | null; link: Link } {
  const [body, setBody] = useState<Update | null>(null);
  const [link, setLink] = useState<Link>("connecting");
  useEffect(() => {
    let stream: EventSource | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    setBody(null);
    const open = () => {
      if (stream || document.hidden) return;
      stream = new EventSource(`${at(key)}/stream?${named(update)}`);
      const own = stream;
      stream.addEventListener("open", () => setLink("live"));
      stream.addEventListener("error", () => {
        setLink("lost");
        // After an answer that is no stream (too many watch, a proxy is there alone) a browser gives up.
        if (own.readyState !== EventSource.CLOSED || stream !== own) return;
        close();
        retry = setTimeout(open, AGAIN_MS);
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
    const turn = () => (document.hidden ? close() : open());
    open();
    document.addEventListener("visibilitychange", turn);
    return () => {
      document.removeEventListener("visibilitychange", turn);
      close();
    };
  }, [key, update]);
  return { body, link };
}
