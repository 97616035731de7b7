/** Some rows of a table, asked for only when somebody wants to see them. */
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
  const [asked, setAsked] = useState(0);
  const [found, setFound] = useState<Rows | { problem: Problem } | null>(null);
  useEffect(() => {
    setFound(null);
    setAsked(0);
  }, [pipelineKey, name]);
  useEffect(() => {
    if (!asked) return;
    const stop = new AbortController();
    getRows(pipelineKey, name, stop.signal)
      .then(setFound)
      .catch((error: Error) => stop.signal.aborted || setFound({ problem: { message: `The rows could not be read: ${error.message}`, hint: "" } }));
    return () => stop.abort();
  }, [pipelineKey, name, asked]);
  return (
    <section class="panel" aria-labelledby="rows">
      <h2 id="rows">
        Rows
        {found && !found.problem && (
          <span class="muted">
            {count(found.rows.length)} of {found.total === null ? "the table" : count(found.total)}, version {found.version}
          </span>
        )}
        <button type="button" class="small-button" onClick={() => setAsked(asked + 1)} aria-busy={asked > 0 && !found}>
          {asked ? "Read again" : "Show rows"}
        </button>
      </h2>
      {asked > 0 && !found && <p class="muted">Reading…</p>}
      {found?.problem && <ProblemText problem={found.problem} />}
      {found && !found.problem && (found.rows.length ? <Grid found={found} /> : <p class="muted">The table is empty.</p>)}
    </section>
  );
}

function Grid({ found }: { found: Rows }) {
  return (
    <>
      <div class="scrolls rows" tabIndex={0} role="group" aria-label="Rows">
        <table>
          <thead>
            <tr>
              {found.columns.map((column) => (
                <th scope="col" title={column.type}>
                  {column.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.rows.map((row) => (
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
        {found.more_columns > 0 && <>; {count(found.more_columns)} more columns are not shown</>}.
      </p>
    </>
  );
}
