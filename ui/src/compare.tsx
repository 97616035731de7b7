/** Comparison of two updates. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { getDifferences, getHistory, useResponse, type Change, type Difference, type Differences, type Head, type Pipeline, type Summary } from "./api";
import { count, moment, seconds } from "./format";
import { Empty, headState, stateOf } from "./parts";
import { LATEST, to, useNow, type Place } from "./place";
import { look, StateBadge } from "./state";

const NUMBERS: Record<string, [string, (value: number) => string]> = {
  rows: ["rows", count],
  quarantined: ["quarantined", count],
  dropped: ["dropped", count],
  failed_checks: ["checks failed", count],
  batches: ["batches", count],
  busy_seconds: ["time in batches", seconds],
};

interface Props {
  pipeline: Pipeline | null;
  place: Place;
}

export function ComparePage({ pipeline, place }: Props) {
  const key = place.pipeline;
  const [updates, setUpdates] = useState<Summary[] | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    getHistory(key, null, stop.signal)
      .then((history) => setUpdates(history.updates))
      .catch((error: Error) => stop.signal.aborted || (console.warn(error.message), setUpdates([])));
    return () => stop.abort();
  }, [key]);
  const after = place.update === LATEST ? (updates?.[0]?.update_id ?? "") : place.update;
  const before = place.before || updates?.[1]?.update_id || "";
  return (
    <main id="main">
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={to.pipeline(key)}>{pipeline?.name ?? key}</a>
        <span aria-hidden="true">/</span>
        <a href={to.updates(key)}>Updates</a>
        <span aria-hidden="true">/</span>
        <span>Differences</span>
      </nav>
      <h1>Differences between two updates</h1>
      {updates && updates.length > 0 && (
        <div class="choose">
          <Choice label="Before" updates={updates} chosen={before} choose={(id) => to.compare(key, id, after)} />
          <Choice label="After" updates={updates} chosen={after} choose={(id) => to.compare(key, before, id)} />
        </div>
      )}
      {before && after ? <Both pipelineKey={key} before={before} after={after} /> : <Empty title={updates ? "Fewer than two updates are recorded" : "Loading…"} />}
    </main>
  );
}

function Choice({ label, updates, chosen, choose }: { label: string; updates: Summary[]; chosen: string; choose: (id: string) => string }) {
  const isListed = updates.some((update) => update.update_id === chosen);
  return (
    <label>
      <span class="muted">{label} </span>
      <select value={chosen} onChange={(event) => (location.hash = choose(event.currentTarget.value))}>
        {!isListed && <option value={chosen}>{chosen}</option>}
        {updates.map((update) => (
          <option value={update.update_id}>
            {moment(update.started)}, {look(stateOf(update)).word.toLowerCase()}
          </option>
        ))}
      </select>
    </label>
  );
}

function Both({ pipelineKey, before, after }: { pipelineKey: string; before: string; after: string }) {
  const [isReading, setReading] = useState(false);
  const now = useNow(isReading ? 1000 : 0);
  const { value, problem } = useResponse(
    (signal) =>
      getDifferences(pipelineKey, before, after, signal).then((differences) => {
        setReading(differences.read_percent !== undefined);
        return differences;
      }),
    `${pipelineKey}\n${before}\n${after}`,
    now,
  );
  if (!value) return <Empty title={problem ? `The updates could not be compared: ${problem}` : "Reading…"} />;
  if (value.read_percent !== undefined) return <p class="notice">Reading a long event log: {value.read_percent} %.</p>;
  const changed = [...value.datasets, ...value.flows].filter((item) => item.change !== "same").length + value.properties.length;
  return (
    <>
      <Heads value={value} />
      <p role="status">{changed ? `${count(changed)} ${changed === 1 ? "definition has" : "definitions have"} changed.` : "Both updates have the same definitions."}</p>
      {value.properties.length > 0 && (
        <section class="panel" aria-labelledby="settings">
          <h2 id="settings">Settings of the update</h2>
          <Changes changes={value.properties} />
        </section>
      )}
      <Group title="Datasets" items={value.datasets} link={(id, gone) => to.dataset(pipelineKey, id, gone ? before : after)} />
      <Group title="Flows" items={value.flows} />
    </>
  );
}

function Heads({ value }: { value: Differences }) {
  const took = (head: Head) => {
    const end = head.ended ?? head.last_event;
    return head.started !== null && end !== null ? seconds((end - head.started) / 1000) : "–";
  };
  return (
    <section class="panel scrolls" aria-label="The two updates">
      <table class="plain tight">
        <thead>
          <tr>
            <th scope="col" />
            <th scope="col">Before</th>
            <th scope="col">After</th>
          </tr>
        </thead>
        <tbody>
          {(
            [
              ["result", (head) => <StateBadge state={headState(head)} />],
              ["started", (head) => (head.started === null ? "–" : moment(head.started))],
              ["took", took],
              ["error", (head) => head.error?.condition || "–"],
            ] as [string, (head: Head) => ComponentChildren][]
          ).map(([name, format]) => (
            <tr>
              <td class="muted">{name}</td>
              <td>{format(value.before)}</td>
              <td>{format(value.after)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Group({ title, items, link }: { title: string; items: Difference[]; link?: (id: string, gone: boolean) => string }) {
  if (!items.length) return null;
  return (
    <section class="panel" aria-label={title}>
      <h2>{title}</h2>
      <ul class="differences">
        {items.map((item) => (
          <li data-change={item.change}>
            <header>
              {link ? <a href={link(item.id, item.change === "removed")}>{item.name}</a> : <strong>{item.name}</strong>}
              {item.change !== "same" && <span class={`mark-${item.change}`}>{item.change}</span>}
              <Numbers item={item} />
            </header>
            <Changes changes={item.facts ?? []} />
            <Changes changes={item.columns ?? []} title="Columns" />
            <Changes changes={item.rules ?? []} title="Expectations" />
            {!!item.lineage?.length && <p class="muted">Lineage changed: {item.lineage.join(", ")}</p>}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Numbers({ item }: { item: Difference }) {
  const [was, is] = item.states;
  const shown = Object.entries(item.numbers).filter(([, [a, b]]) => a || b);
  return (
    <span class="muted small-text">
      {[
        ...(was !== is && was && is ? [`${look(was).word.toLowerCase()} → ${look(is).word.toLowerCase()}`] : []),
        ...shown.map(([name, [a, b]]) => {
          const [label, format] = NUMBERS[name] ?? [name, count];
          const text = (value: number | null) => (value === null ? "–" : format(value));
          return `${label} ${a === b ? text(b) : `${text(a)} → ${text(b)}`}`;
        }),
      ].join(" · ")}
    </span>
  );
}

function Changes({ changes, title }: { changes: Change[]; title?: string }) {
  if (!changes.length) return null;
  return (
    <div class="scrolls" tabIndex={0} role="group" aria-label={title ?? "What changed"}>
      <table class="plain changes">
        {title && <caption>{title}</caption>}
        <tbody>
          {changes.map((change) => (
            <tr>
              <td>{change.name}</td>
              <td>{change.before ? <del>{change.before}</del> : <span class="muted">none</span>}</td>
              <td>{change.after ? <ins>{change.after}</ins> : <span class="muted">removed</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
