/** Columns, and the columns that they are made of. */
import type { ColumnInput, Dataset } from "./api";

interface Props {
  lineage: NonNullable<Dataset["lineage"]>;
  columns: Dataset["columns"];
  names: Map<string, string>;
  link: (id: string) => string;
}

const words = (how: string) => how.toLowerCase().replaceAll("_", " ");

export function ColumnLineage({ lineage, columns, names, link }: Props) {
  const input = (one: ColumnInput) => (
    <li>
      {one.dataset ? (
        <a href={link(one.dataset)}>
          <code>
            {names.get(one.dataset) ?? one.dataset}.{one.column}
          </code>
        </a>
      ) : (
        <code>
          {one.place} {one.column}
        </code>
      )}
      {one.how !== "IDENTITY" && <span class="muted small-text"> {words(one.how)}</span>}
    </li>
  );
  const order = [...new Set([...columns.filter((column) => !column.depth).map((column) => column.name), ...Object.keys(lineage.columns)])];
  const known = order.flatMap((name) => (lineage.columns[name] ? [[name, lineage.columns[name]] as const] : []));
  return (
    <section class="panel" aria-labelledby="columns">
      <h2 id="columns">What its columns are made of</h2>
      <div class="scrolls" tabIndex={0} role="group" aria-label="Column lineage">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Column</th>
              <th scope="col">From</th>
            </tr>
          </thead>
          <tbody>
            {known.map(([name, inputs]) => (
              <tr>
                <td>
                  <code>{name}</code>
                </td>
                <td>
                  {inputs.length ? <ul class="inputs">{inputs.map(input)}</ul> : <span class="muted">no column: a constant, or made by the query</span>}
                </td>
              </tr>
            ))}
            {lineage.influences.length > 0 && (
              <tr>
                <td class="muted">which rows there are</td>
                <td>
                  <ul class="inputs">{lineage.influences.map(input)}</ul>
                </td>
              </tr>
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}
