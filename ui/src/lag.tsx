/** Unread data at a source of a flow, its age, and when retention removes it. */
import type { Partition, Source } from "./api";
import { brief, bytes, count, rowsText } from "./format";

function summary(source: Source): string[] {
  const { files, versions, waiting_rows: rows } = source;
  const parts: (string | false)[] = [
    files !== null && `${count(files)} ${files === 1 ? "file" : "files"} not read yet`,
    versions !== null && `${count(versions)} ${versions === 1 ? "version" : "versions"} not read yet`,
    rows !== null && rowsText(rows),
    source.bytes !== null && bytes(source.bytes),
    !!(files || versions) && source.seconds_behind !== null && `oldest ${brief(source.seconds_behind)} old`,
  ];
  return parts.filter((part): part is string => !!part);
}

export function Waiting({ source }: { source: Source }) {
  const facts = summary(source);
  const { partitions, shards } = source;
  if (!facts.length && !partitions.length && !shards.length && !source.problem) return null;
  return (
    <div class="waiting">
      <h3>
        <code>{source.description}</code>
      </h3>
      {source.problem && <p class="warn-text">{source.problem}</p>}
      {facts.length > 0 && <p class={source.files || source.versions ? "warn-text" : "muted"}>{facts.join(" · ")}</p>}
      {partitions.length > 0 && <Partitions partitions={partitions} />}
      {shards.length > 0 && (
        <dl class="pairs">
          {shards.map((shard) => (
            <>
              <dt>
                {shard.stream} {shard.shard}
              </dt>
              <dd>{brief(shard.behind_seconds)} behind</dd>
            </>
          ))}
        </dl>
      )}
    </div>
  );
}

function until(part: Partition) {
  if (part.loss === "happened") return <span class="bad-text">{part.lost_records === null ? "rows are lost" : `${count(part.lost_records)} rows are lost`}</span>;
  if (part.seconds_to_loss !== null) return <span class={part.loss === "expected" ? "bad-text" : ""}>{brief(part.seconds_to_loss)}</span>;
  return part.loss === "none" ? "not at risk" : "–";
}

function Partitions({ partitions }: { partitions: Partition[] }) {
  return (
    <div class="scrolls" tabIndex={0} role="group" aria-label="Partitions">
      <table class="plain tight">
        <thead>
          <tr>
            <th scope="col">Topic</th>
            {["Partition", "Read to", "Lag", "Behind"].map((name) => (
              <th scope="col" class="number">
                {name}
              </th>
            ))}
            <th scope="col" class="number" title="How long until retention removes rows that are not read yet">
              Until loss
            </th>
          </tr>
        </thead>
        <tbody>
          {partitions.map((part) => (
            <tr>
              <td>{part.topic}</td>
              <td class="number">{part.partition}</td>
              <td class="number">{count(part.offset)}</td>
              <td class={part.lag ? "number warn-text" : "number"}>{part.lag === null ? "–" : count(part.lag)}</td>
              <td class="number">{brief(part.seconds_behind)}</td>
              <td class="number">{until(part)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
