/** What a visitor may do, where the dashboard was started with --control; else nothing is shown. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { act, getControl, useAnswer, type Control, type Job } from "./api";
import { count, moment, rowsText, seconds } from "./format";
import { useNow } from "./place";

const AGAIN_MS = 2000;

export function useControl(key: string) {
  const [enabled, setEnabled] = useState(true);
  const [done, setDone] = useState<Control | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const now = useNow(enabled ? AGAIN_MS : 0);
  const { value } = useAnswer(
    (signal) =>
      getControl(key, signal).then((found) => {
        setEnabled(found.enabled);
        setDone(null);
        return found;
      }),
    key,
    now,
  );
  const ask = (what: "start" | "stop" | "replay", body: object, question?: string) => {
    if (question && !confirm(question)) return false;
    setBusy(true);
    setProblem("");
    act(key, what, body)
      .then(setDone)
      .catch((error: Error) => setProblem(error.message))
      .finally(() => setBusy(false));
    return true;
  };
  const control = done ?? value ?? null;
  const isFree = !!control?.enabled && !control.runs && !control.jobs?.some((job) => job.ended === null);
  return { control, ask, problem, busy, isFree };
}

function Said({ problem, children }: { problem: string; children: ComponentChildren }) {
  return (
    <div class="controls">
      {children}
      <span role="status" class="bad-text">
        {problem}
      </span>
    </div>
  );
}

export function Controls({ pipelineKey }: { pipelineKey: string }) {
  const { control, ask, problem, busy, isFree } = useControl(pipelineKey);
  if (!control?.enabled) return null;
  const { runs, is_stopping: isStopping } = control;
  const starting = !runs && !isFree;
  const job = control.jobs?.[0];
  return (
    <Said problem={problem}>
      {runs ? (
        isStopping ? (
          <button
            type="button"
            class="action-button danger"
            disabled={busy}
            onClick={() => ask("stop", { now: true }, "Interrupt the batches in flight? The next update runs them again.")}
          >
            Stop now
          </button>
        ) : (
          <button type="button" class="action-button" disabled={busy || !runs.is_here} onClick={() => ask("stop", {})}>
            Stop
          </button>
        )
      ) : (
        <>
          <button type="button" class="action-button" disabled={busy || starting} onClick={() => ask("start", { continuous: false })}>
            Run once
          </button>
          <button type="button" class="action-button" disabled={busy || starting} onClick={() => ask("start", { continuous: true })}>
            Run continuously
          </button>
        </>
      )}
      <span class="muted">
        {runs
          ? isStopping
            ? "stops after the batches in flight"
            : `held by ${runs.command || "a process"}${runs.is_here ? "" : " on another machine"}`
          : starting
            ? "starting…"
            : "not running"}
      </span>
      {job && <LastJob job={job} />}
    </Said>
  );
}

function LastJob({ job }: { job: Job }) {
  const failed = job.exit_code !== null && job.exit_code !== 0 && job.exit_code !== 130;
  return (
    <details class="job" open={failed}>
      <summary class={failed ? "bad-text" : "muted"}>
        {job.what} of {moment(job.started)}, started here:{" "}
        {job.ended === null ? "runs" : `${failed ? `failed with exit code ${job.exit_code}` : job.exit_code ? "stopped" : "done"} after ${seconds((job.ended - job.started) / 1000)}`}
      </summary>
      <pre>{job.output || "no output"}</pre>
    </details>
  );
}

export function RefreshButtons({ pipelineKey, name, display }: { pipelineKey: string; name: string; display: string }) {
  const { control, ask, problem, busy, isFree } = useControl(pipelineKey);
  if (!control?.enabled) return null;
  return (
    <Said problem={problem}>
      <button type="button" class="action-button" disabled={busy || !isFree} onClick={() => ask("start", { refresh: [name], continuous: false })}>
        Refresh
      </button>
      <button
        type="button"
        class="action-button danger"
        disabled={busy || !isFree}
        onClick={() =>
          ask("start", { full_refresh: [name], continuous: false }, `Empty ${display} and recompute it from its sources? Rows that they no longer have are lost.`)
        }
      >
        Full refresh
      </button>
      {!isFree && <span class="muted">not while the pipeline runs</span>}
    </Said>
  );
}

interface ReplayProps {
  /** Of `useControl`. */
  asking: ReturnType<typeof useControl>;
  name: string;
  display: string;
  rows: number | null;
  /** The only rule whose rows are shown, and how many these are. */
  rule: string;
  ruleRows: number | null;
  marked: ReadonlySet<string>;
  onClear: () => void;
  /** A replay that was asked for here has ended well. */
  onDone: () => void;
}

/** Replay of all rows, of those that broke a rule, or of those that are marked. */
export function ReplayBar({ asking, name, display, rows, rule, ruleRows, marked, onClear, onDone }: ReplayProps) {
  const { control, ask, problem, busy, isFree } = asking;
  const asked = useRef(false);
  const job = control?.jobs?.[0];
  const end = job?.what.startsWith("replay") ? job.ended : null;
  useEffect(() => {
    if (!asked.current || end === null) return;
    asked.current = false;
    if (job?.exit_code === 0) onDone();
  }, [job?.started, end]);
  if (!control?.enabled || (rows === 0 && !job?.what.startsWith("replay"))) return null;
  const replay = (which: string, body: object) => {
    const isAsked = ask("replay", { name, ...body }, `Evaluate the rules of ${display} again for ${which} in quarantine? Rows that pass are added to the table.`);
    asked.current = asked.current || isAsked;
  };
  const isOff = busy || !isFree;
  const all = rows === null ? "all rows" : rows === 1 ? "the only row" : `all ${rowsText(rows)}`;
  const broke = ruleRows === null ? "the rows" : ruleRows === 1 ? "the row" : `the ${rowsText(ruleRows)}`;
  const these = marked.size === 1 ? "the marked row" : `${count(marked.size)} marked rows`;
  return (
    <Said problem={problem}>
      {marked.size > 0 && (
        <>
          <button type="button" class="action-button chosen" disabled={isOff} onClick={() => replay(these, { rows: [...marked] })}>
            Replay {these}
          </button>
          <button type="button" class="small-button" onClick={onClear}>
            Clear marks
          </button>
        </>
      )}
      {rule && ruleRows !== 0 && (
        <button type="button" class="action-button" disabled={isOff} onClick={() => replay(`${broke} that broke ${rule}`, { rules: [rule] })}>
          Replay {broke} that broke {rule}
        </button>
      )}
      {rows !== 0 && (
        <button type="button" class="action-button" disabled={isOff} onClick={() => replay(all, {})}>
          Replay {all}
        </button>
      )}
      <span class="muted">{isFree ? "after a rule or the data was corrected" : "not while the pipeline runs"}</span>
      {job?.what.startsWith("replay") && <LastJob job={job} />}
    </Said>
  );
}
