/** The updates of a pipeline. */
import { useEffect, useState } from "preact/hooks";
import { getHistory, type Pipeline, type Summary } from "./api";
import { moment, seconds } from "./format";
import { Empty, stateOf } from "./parts";
import { to } from "./place";
import { look, StateBadge } from "./state";

function joined(first: Summary[], second: Summary[]): Summary[] {
  const ids = new Set(first.map((update) => update.update_id));
  return [...first, ...second.filter((update) => !ids.has(update.update_id))];
}

export function UpdatesPage({ pipeline, pipelineKey }: { pipeline: Pipeline | null; pipelineKey: string }) {
  const [updates, setUpdates] = useState<Summary[]>([]);
  const [next, setNext] = useState<number | null | undefined>(undefined);
  const [busy, setBusy] = useState(false);
  const [total, setTotal] = useState<number | null>(null);
  const [problem, setProblem] = useState("");
  const [only, setOnly] = useState("");

  const load = (before: number | null, signal?: AbortSignal) =>
    getHistory(pipelineKey, before, signal)
      .then((history) => {
        // Keep the older updates that were loaded already.
        setUpdates((old) => (before === null ? joined(history.updates, old) : joined(old, history.updates)));
        setNext((old) => (before === null && old !== undefined ? old : history.next));
        setTotal(history.total);
        setProblem("");
      })
      .catch((error: Error) => signal?.aborted || setProblem(error.message));
  const older = (before: number) => {
    setBusy(true);
    void load(before).finally(() => setBusy(false));
  };
  const newest = pipeline?.updates[0];
  useEffect(() => {
    const stop = new AbortController();
    void load(null, stop.signal);
    return () => stop.abort();
  }, [pipelineKey, newest?.update_id, newest?.state, newest?.is_gone]);

  const longest = Math.max(1, ...updates.map((update) => (update.ended ?? update.started) - update.started));
  const states = [...new Set(updates.map(stateOf))];
  const shown = updates.map((update) => ({ update, state: stateOf(update) })).filter(({ state }) => !only || state === only);
  return (
    <main id="main">
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={to.pipeline(pipelineKey)}>{pipeline?.name ?? pipelineKey}</a>
        <span aria-hidden="true">/</span>
        <span>Updates</span>
      </nav>
      <div class="page-head">
        <h1>
          Updates {total !== null && <span class="muted count">{total.toLocaleString("en-US")}</span>}
        </h1>
        {total !== null && total > 1 && <a href={to.compare(pipelineKey)}>Compare two updates</a>}
        {states.length > 1 && (
          <label class="filter">
            Result{" "}
            <select value={only} onChange={(event) => setOnly(event.currentTarget.value)}>
              <option value="">all</option>
              {states.map((state) => (
                <option value={state}>{look(state).word}</option>
              ))}
            </select>
          </label>
        )}
      </div>
      {problem && <p class="notice">The history could not be read: {problem}</p>}
      {total === 0 && (
        <Empty title="No update yet">
          Start one with <code>penstock run</code>.
        </Empty>
      )}
      <ol class="updates">
        {shown.map(({ update, state }) => {
          const isNewest = update === updates[0];
          const took = update.ended === null ? null : (update.ended - update.started) / 1000;
          return (
            <li key={update.update_id}>
              <a class="update panel" href={to.pipeline(pipelineKey, isNewest ? undefined : update.update_id)}>
                <StateBadge state={state} />
                <span class="update-when">{moment(update.started)}</span>
                <span class="update-what muted">
                  {[update.continuous ? "continuous" : "triggered", update.full_refresh && "full refresh"].filter(Boolean).join(", ")}
                </span>
                <span class="update-bar" aria-hidden="true">
                  <span class={`tone-${look(state).tone}`} style={{ width: `${took === null ? 0 : Math.max(0.5, (100_000 * took) / longest)}%` }} />
                </span>
                <span class="update-took number">{update.is_over || update.is_gone ? seconds(took) : "running"}</span>
                {update.state === "FAILED" && (
                  <span class="update-error bad-text">
                    {update.error && <code>{update.error.condition}</code>} {update.message}
                  </span>
                )}
              </a>
            </li>
          );
        })}
      </ol>
      {!!next && (
        <button type="button" class="load" disabled={busy} onClick={() => older(next)}>
          Show older updates
        </button>
      )}
    </main>
  );
}
