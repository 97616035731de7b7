/** The list of pipelines. */
import type { Pipeline } from "./api";
import { ago, moment, seconds } from "./format";
import { Dots, Empty, stateOf } from "./parts";
import { to, useNow } from "./place";
import { StateBadge } from "./state";

export function Pipelines({ pipelines, problem }: { pipelines: Pipeline[] | null; problem: string }) {
  const now = useNow(5000);
  const isDouble = (name: string) => (pipelines?.filter((each) => each.name === name).length ?? 0) > 1;
  if (!pipelines)
    return (
      <main id="main">
        <Empty title={problem ? "The pipelines could not be listed" : "Loading…"}>{problem}</Empty>
      </main>
    );
  return (
    <main id="main">
      <h1>Pipelines</h1>
      <ul class="pipelines">
        {pipelines.map((pipeline) => {
          const newest = pipeline.updates[0];
          return (
            <li class="panel">
              <div class="pipeline-head">
                <h2>
                  <a href={to.pipeline(pipeline.key)}>{pipeline.name}</a>
                  {isDouble(pipeline.name) && <span class="muted small-text">{pipeline.key}</span>}
                </h2>
                {newest && <StateBadge state={stateOf(newest)} />}
              </div>
              {newest ? (
                <>
                  <p class="muted">
                    <span title={moment(newest.started)}>started {ago(newest.started, now)}</span>
                    {newest.is_over && newest.ended !== null && `, took ${seconds((newest.ended - newest.started) / 1000)}`}
                    {newest.continuous && ", continuous"}
                  </p>
                  {newest.failed_flows > 0 && (
                    <p class="bad-text">{newest.failed_flows === 1 ? "1 flow has failed" : `${newest.failed_flows} flows have failed`}</p>
                  )}
                  {newest.error && newest.state === "FAILED" && <p class="bad-text">{newest.message}</p>}
                  <Dots pipeline={pipeline} />
                  <p class="muted small-text">
                    <a href={to.updates(pipeline.key)}>
                      {pipeline.total === 1 ? "1 update" : `${pipeline.total.toLocaleString("en-US")} updates`}
                    </a>
                  </p>
                </>
              ) : (
                <p class="muted">
                  No update yet. Start one with <code>penstock run</code>: it then appears here.
                </p>
              )}
              <p class="muted small-text path">{pipeline.event_log}</p>
            </li>
          );
        })}
      </ul>
    </main>
  );
}
