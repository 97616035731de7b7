/** What stands behind a dataset: the code of its declaration, its files and its versions. */
import { getCode, getTable, useAnswer, type Code, type Table } from "./api";
import { bytes, count, when } from "./format";
import { ProblemText } from "./rows";

interface Props {
  pipelineKey: string;
  name: string;
}

export function CodePanel({ pipelineKey, name }: Props) {
  const { value } = useAnswer((signal) => getCode(pipelineKey, name, signal), `${pipelineKey} ${name}`, 0);
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
          {code.file}, from line {code.line}, as it is now
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
      {code.is_cut && <p class="muted small-text">It is truncated.</p>}
    </section>
  );
}

export function TablePanel({ pipelineKey, name, version }: Props & { version: number | null }) {
  const { value } = useAnswer((signal) => getTable(pipelineKey, name, signal), `${pipelineKey} ${name}`, version ?? 0);
  // What keeps rows from being shown is said where they would stand.
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
            {table.versions.map((one) => (
              <tr>
                <td class="number">{count(one.version)}</td>
                <td>{one.at ? when(one.at) : "–"}</td>
                <td>{one.operation.toLowerCase()}</td>
                <td>
                  {one.flow}
                  {one.batch_id !== null && `, batch ${count(one.batch_id)}`}
                </td>
                <td class="number">{one.rows === null ? "–" : count(one.rows)}</td>
                <td class="number">{count(one.files_added)}</td>
                <td class="number">{count(one.files_removed)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
