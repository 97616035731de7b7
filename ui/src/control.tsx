/** Buttons to start, stop and replay; shown if the dashboard was started with --control. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { act, getControl, useResponse, type Control, type Job } from "./api";
import { count, moment, rowsText, seconds } from "./format";
import { useNow } from "./place";

const POLL_MS = 2000;

export function useControl(key: string) {
  const [enabled, setEnabled] = useState(true);
  const [done, setDone] = useState<Control | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const now = useNow(enabled ? POLL_MS : 0);
  const { value } = useResponse(
    (signal) =>
      getControl(key, signal).then((control) => {
        setEnabled(control.enabled);
        setDone(null);
        return control;
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

function ControlBar({ problem, children }: { problem: string; children: ComponentChildren }) {
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
    <ControlBar problem={problem}>
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
    </ControlBar>
  );
}

function LastJob({ job }: { job: Job }) {
  const failed = job.exit_code !== null && job.exit_code !== 0 && job.exit_code !== 130;
  return (
    <details class="job" open={failed}>
      <summary class={failed ? "bad-text" : "muted"}>
        {job.what}, started here at {moment(job.started)}:{" "}
        {job.ended === null ? "running" : `${failed ? `failed with exit code ${job.exit_code}` : job.exit_code ? "stopped" : "done"} after ${seconds((job.ended - job.started) / 1000)}`}
      </summary>
      <pre>{job.output || "no output"}</pre>
    </details>
  );
}

export function RefreshButtons({ pipelineKey, name, display }: { pipelineKey: string; name: string; display: string }) {
  const { control, ask, problem, busy, isFree } = useControl(pipelineKey);
  if (!control?.enabled) return null;
  return (
    <ControlBar problem={problem}>
      <button type="button" class="action-button" disabled={busy || !isFree} onClick={() => ask("start", { refresh: [name], continuous: false })}>
        Refresh
      </button>
      <button
        type="button"
        class="action-button danger"
        disabled={busy || !isFree}
        onClick={() =>
          ask("start", { full_refresh: [name], continuous: false }, `Truncate ${display} and recompute it from its sources? Rows that are no longer in the sources are lost.`)
        }
      >
        Full refresh
      </button>
      {!isFree && <span class="muted">not while the pipeline is running</span>}
    </ControlBar>
  );
}

interface ReplayProps {
  /** The result of `useControl`. */
  asking: ReturnType<typeof useControl>;
  name: string;
  display: string;
  rows: number | null;
  /** The rule by which rows are filtered, and the number of its rows. */
  rule: string;
  ruleRows: number | null;
  marked: ReadonlySet<string>;
  onClear: () => void;
  /** Called when a replay that was started here has succeeded. */
  onDone: () => void;
}

/** Replays all rows, the rows that violated a rule, or the marked rows. */
export function ReplayBar({ asking, name, display, rows, rule, ruleRows, marked, onClear, onDone }: ReplayProps) {
  const { control, ask, problem, busy, isFree } = asking;
  const isWaiting = useRef(false);
  const job = control?.jobs?.[0];
  const end = job?.what.startsWith("replay") ? job.ended : null;
  useEffect(() => {
    if (!isWaiting.current || end === null) return;
    isWaiting.current = false;
    if (job?.exit_code === 0) onDone();
  }, [job?.started, end]);
  if (!control?.enabled || (rows === 0 && !job?.what.startsWith("replay"))) return null;
  const replay = (which: string, body: object) => {
    const isSent = ask("replay", { name, ...body }, `Evaluate the rules of ${display} again for ${which} in quarantine? Rows that pass are added to the table.`);
    isWaiting.current = isWaiting.current || isSent;
  };
  const isOff = busy || !isFree;
  const all = rows === null ? "all rows" : rows === 1 ? "the only row" : `all ${rowsText(rows)}`;
  const violating = ruleRows === null ? "the rows" : ruleRows === 1 ? "the row" : `the ${rowsText(ruleRows)}`;
  const these = marked.size === 1 ? "the marked row" : `${count(marked.size)} marked rows`;
  return (
    <ControlBar problem={problem}>
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
        <button type="button" class="action-button" disabled={isOff} onClick={() => replay(`${violating} that violated ${rule}`, { rules: [rule] })}>
          Replay {violating} that violated {rule}
        </button>
      )}
      {rows !== 0 && (
        <button type="button" class="action-button" disabled={isOff} onClick={() => replay(all, {})}>
          Replay {all}
        </button>
      )}
      <span class="muted">{isFree ? "after a rule or the data was corrected" : "not while the pipeline is running"}</span>
      {job?.what.startsWith("replay") && <LastJob job={job} />}
    </ControlBar>
  );
}
