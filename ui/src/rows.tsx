/** Rows of a table, which are read when the user requests them. */
import { useEffect, useState } from "preact/hooks";
import { getRows, type Problem, type Rows } from "./api";
import { count } from "./format";

export function ProblemText({ problem }: { problem: Problem }) {
  return (
    <p class="notice">
      {problem.message}. {problem.hint && <>{problem.hint}.</>}
    </p>
  );
}

export function RowsPanel({ pipelineKey, name }: { pipelineKey: string; name: string }) {
  const [requests, setRequests] = useState(0);
  const [result, setResult] = useState<Rows | { problem: Problem } | null>(null);
  useEffect(() => {
    setResult(null);
    setRequests(0);
  }, [pipelineKey, name]);
  useEffect(() => {
    if (!requests) return;
    const stop = new AbortController();
    getRows(pipelineKey, name, stop.signal)
      .then(setResult)
      .catch((error: Error) => stop.signal.aborted || setResult({ problem: { message: `The rows could not be read: ${error.message}`, hint: "" } }));
    return () => stop.abort();
  }, [pipelineKey, name, requests]);
  return (
    <section class="panel" aria-labelledby="rows">
      <h2 id="rows">
        Rows
        {result && !result.problem && (
          <span class="muted">
            {count(result.rows.length)} of {result.total === null ? "the table" : count(result.total)}, version {result.version}
          </span>
        )}
        <button type="button" class="small-button" onClick={() => setRequests(requests + 1)} aria-busy={requests > 0 && !result}>
          {requests ? "Read again" : "Show rows"}
        </button>
      </h2>
      {requests > 0 && !result && <p class="muted">Reading…</p>}
      {result?.problem && <ProblemText problem={result.problem} />}
      {result && !result.problem && (result.rows.length ? <Grid result={result} /> : <p class="muted">The table is empty.</p>)}
    </section>
  );
}

function Grid({ result }: { result: Rows }) {
  return (
    <>
      <div class="scrolls rows" tabIndex={0} role="group" aria-label="Rows">
        <table>
          <thead>
            <tr>
              {result.columns.map((column) => (
                <th scope="col" title={column.type}>
                  {column.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {result.rows.map((row) => (
              <tr>
                {row.map((cell) => (
                  <td>{cell === null ? <span class="muted">NULL</span> : <code title={cell.length > 60 ? cell : undefined}>{cell}</code>}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="muted small-text">
        Rows of the newest files first. Values that look like secrets are masked
        {result.more_columns > 0 && <>; {count(result.more_columns)} more columns are not shown</>}.
      </p>
    </>
  );
}
