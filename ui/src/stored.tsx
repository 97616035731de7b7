/** The code of a dataset, and the files and versions of its table. */
import { getCode, getTable, useResponse, type Code, type Table } from "./api";
import { bytes, count, when } from "./format";
import { ProblemText } from "./rows";

interface Props {
  pipelineKey: string;
  name: string;
}

export function CodePanel({ pipelineKey, name }: Props) {
  const { value } = useResponse((signal) => getCode(pipelineKey, name, signal), `${pipelineKey} ${name}`, 0);
  if (!value?.code) return null;
  return <Listing code={value.code} />;
}

function Listing({ code }: { code: Code }) {
  const lines = code.text.split("\n");
  return (
    <section class="panel" aria-labelledby="code">
      <h2 id="code">
        Code{" "}
        <span class="muted">
          {code.file}, line {code.line}, current version
        </span>
      </h2>
      <pre class="listing scrolls" tabIndex={0}>
        {lines.map((line, i) => (
          <span class="code-line" data-line={code.line + i}>
            {line}
            {"\n"}
          </span>
        ))}
      </pre>
      {code.is_cut && <p class="muted small-text">The code is truncated.</p>}
    </section>
  );
}

export function TablePanel({ pipelineKey, name, version }: Props & { version: number | null }) {
  const { value } = useResponse((signal) => getTable(pipelineKey, name, signal), `${pipelineKey} ${name}`, version ?? 0);
  // The panel of the rows shows the problem.
  if (!value || value.problem) return null;
  return <Versions table={value} />;
}

function Versions({ table }: { table: Table }) {
  return (
    <section class="panel" aria-labelledby="versions">
      <h2 id="versions">
        Table{" "}
        <span class="muted">
          version {count(table.version)}, {count(table.files)} {table.files === 1 ? "file" : "files"}, {bytes(table.bytes)}
        </span>
      </h2>
      {table.advice && <ProblemText problem={{ message: table.advice, hint: "" }} />}
      <div class="scrolls" tabIndex={0} role="group" aria-label="Newest versions">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col" class="number">
                Version
              </th>
              <th scope="col">Committed</th>
              <th scope="col">Operation</th>
              <th scope="col">By</th>
              {["Rows added", "Files added", "Files removed"].map((head) => (
                <th scope="col" class="number">
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.versions.map((entry) => (
              <tr>
                <td class="number">{count(entry.version)}</td>
                <td>{entry.at ? when(entry.at) : "–"}</td>
                <td>{entry.operation.toLowerCase()}</td>
                <td>
                  {entry.flow}
                  {entry.batch_id !== null && `, batch ${count(entry.batch_id)}`}
                </td>
                <td class="number">{entry.rows === null ? "–" : count(entry.rows)}</td>
                <td class="number">{count(entry.files_added)}</td>
                <td class="number">{count(entry.files_removed)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
