/** Components that several pages use. */
import type { ComponentChildren } from "preact";
import type { Card, Failure, Head, Pipeline, Summary, Update } from "./api";
import { moment, seconds, when } from "./format";
import { to } from "./place";
import { look } from "./state";

export const stateOf = (summary: Summary) => (summary.is_gone ? "INTERRUPTED" : summary.state);

export function headState(head: Head): string | null {
  return head.is_gone ? "INTERRUPTED" : head.state;
}

/** The states of the last updates, oldest first, as icons. */
export function Dots({ pipeline, current }: { pipeline: Pipeline; current?: string }) {
  const updates = pipeline.updates;
  return (
    <ol class="dots" aria-label="Last updates, oldest first">
      {[...updates].reverse().map((update, i) => {
        const isNewest = i === updates.length - 1;
        const state = stateOf(update);
        const { word, tone, path } = look(state);
        const took = update.ended !== null && update.is_over ? `, ${seconds((update.ended - update.started) / 1000)}` : "";
        const text = `${word}, ${moment(update.started)}${took}`;
        return (
          <li>
            <a
              class={`dot tone-${tone}`}
              href={to.pipeline(pipeline.key, isNewest ? undefined : update.update_id)}
              title={text}
              aria-label={text}
              aria-current={update.update_id === current ? "true" : undefined}
            >
              <svg viewBox="0 0 16 16" aria-hidden="true">
                <path d={path} fill="none" stroke="currentColor" />
              </svg>
            </a>
          </li>
        );
      })}
    </ol>
  );
}

export function FailureBox({ failure, title, href }: { failure: Failure; title: ComponentChildren; href?: string }) {
  return (
    <section class="failure" aria-label="Error">
      <header>
        <strong>{title}</strong>
        <code class="condition">{failure.condition || failure.class_name}</code>
        {failure.declared_at && (
          <span class="origin">
            declared at <code>{failure.declared_at}</code>
          </span>
        )}
        {href && (
          <a class="more" href={href}>
            Open dataset
          </a>
        )}
      </header>
      <pre>{failure.message}</pre>
      {failure.hint && (
        <p class="hint">
          <strong>Hint</strong> {failure.hint}
        </p>
      )}
    </section>
  );
}

/** Datasets whose sources do not respond, grouped by problem. */
export function Unresponsive({ cards }: { cards: Card[] }) {
  const problems = new Map<string, { names: string[]; since: string }>();
  for (const { name, problem } of cards) {
    if (!problem) continue;
    const known = problems.get(problem.message);
    if (known) known.names.push(name);
    else problems.set(problem.message, { names: [name], since: problem.since });
  }
  return (
    <>
      {[...problems].map(([message, { names, since }]) => (
        <section class="failure warns" aria-label="No response" role="status">
          <strong>
            {names.length > 3 ? `${names.length} datasets wait` : `${names.join(", ")} ${names.length === 1 ? "waits" : "wait"}`}: {message}
          </strong>
          <p class="hint">
            {since && <>Since {when(Date.parse(since))}. </>}
            The flow continues from its last commit when the source responds. Until then, its lag is unknown.
          </p>
        </section>
      ))}
    </>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  );
}

export function Fact({ name, children, alarm }: { name: string; children: ComponentChildren; alarm?: boolean }) {
  return (
    <div class={alarm ? "fact alarm" : "fact"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Reading({ body }: { body: Update | null }) {
  if (!body || body.read_percent === null) return null;
  return (
    <p class="notice" role="status">
      Reading a long event log: {body.read_percent} %. Figures are incomplete until then.
    </p>
  );
}
