/** The application: navigation bar and pages. */
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { getPipelines, useUpdate, type Link, type Pipeline } from "./api";
import { ComparePage } from "./compare";
import { DatasetPage } from "./dataset";
import { PipelinePage } from "./pipeline";
import { Pipelines } from "./pipelines";
import { QuarantinePage } from "./quarantine";
import { placeOf, to, useNow, usePlace, type Place } from "./place";
import "./style.css";
import { toggleTheme, useTheme } from "./theme";
import { UpdatesPage } from "./updates";

const POLL_MS = 4000;
const TIMEOUT_MS = 60_000;

function App() {
  const place = usePlace();
  const [pipelines, setPipelines] = useState<Pipeline[] | null>(null);
  const [problem, setProblem] = useState("");
  const isPending = useRef(false);
  const tick = useNow(POLL_MS);
  useEffect(() => {
    // Wait for a slow response: a new request would abort it.
    if (document.hidden || isPending.current) return;
    isPending.current = true;
    getPipelines(AbortSignal.timeout(TIMEOUT_MS))
      .then((response) => {
        setPipelines((old) => (JSON.stringify(old) === JSON.stringify(response.pipelines) ? old : response.pipelines));
        setProblem("");
      })
      .catch((error: Error) => setProblem(error.message))
      .finally(() => (isPending.current = false));
  }, [tick]);

  const shown = useRef("");
  useEffect(() => {
    const title = [place.dataset.split(".").pop(), place.page === "updates" && "updates", place.page === "quarantine" && "quarantine", place.page === "compare" && "differences", place.pipeline, "Penstock"];
    document.title = title.filter(Boolean).join(" · ");
    // Move the focus to the top of a new page, as a page load does.
    const now = `${place.page} ${place.pipeline} ${place.dataset}`;
    if (shown.current && shown.current !== now) {
      scrollTo(0, 0);
      document.getElementById("top")?.focus({ preventScroll: true });
    }
    shown.current = now;
  }, [place]);

  const only = pipelines?.length === 1 ? pipelines[0] : undefined;
  useEffect(() => {
    if (only && placeOf(location.hash).page === "pipelines") location.replace(to.pipeline(only.key));
  }, [only?.key, place.page]);

  const pipeline = pipelines?.find((each) => each.key === place.pipeline) ?? null;
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      {place.page === "pipeline" || place.page === "dataset" ? (
        <Watched key={`${place.pipeline} ${place.update}`} place={place} pipelines={pipelines} pipeline={pipeline} />
      ) : (
        <>
          <Bar place={place} pipelines={pipelines} link={null} />
          {place.page === "updates" ? (
            <UpdatesPage key={place.pipeline} pipeline={pipeline} pipelineKey={place.pipeline} />
          ) : place.page === "compare" ? (
            <ComparePage key={place.pipeline} pipeline={pipeline} place={place} />
          ) : place.page === "quarantine" ? (
            <QuarantinePage key={`${place.pipeline} ${place.dataset}`} pipeline={pipeline} place={place} />
          ) : (
            <Pipelines pipelines={pipelines} problem={problem} />
          )}
        </>
      )}
    </>
  );
}

function skip(event: MouseEvent) {
  event.preventDefault();
  const main = document.getElementById("main");
  main?.setAttribute("tabindex", "-1");
  main?.focus();
}

function Watched({ place, pipelines, pipeline }: { place: Place; pipelines: Pipeline[] | null; pipeline: Pipeline | null }) {
  const { body, link } = useUpdate(place.pipeline, place.update);
  const shared = { pipelineKey: place.pipeline, update: place.update, body, link };
  const isLive = body && !body.update.has_ended && !body.update.is_gone;
  return (
    <>
      <Bar place={place} pipelines={pipelines} link={isLive || link === "lost" ? link : null} />
      {place.page === "dataset" ? <DatasetPage {...shared} name={place.dataset} /> : <PipelinePage {...shared} pipelines={pipelines} pipeline={pipeline} />}
    </>
  );
}

function Bar({ place, pipelines, link }: { place: Place; pipelines: Pipeline[] | null; link: Link | null }) {
  const theme = useTheme();
  const several = (pipelines?.length ?? 0) > 1;
  return (
    <header class="topbar" id="top" tabIndex={-1}>
      <a class="brand" href={to.pipelines()}>
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <rect width="16" height="16" rx="4" />
          <path d="M4 3v7a3 3 0 0 0 3 3h6" />
        </svg>
        Penstock
      </a>
      {place.pipeline && (
        <nav aria-label="Pipeline">
          {several && (
            <select
              aria-label="Pipeline"
              value={place.pipeline}
              onChange={(event) => {
                location.hash = to.pipeline(event.currentTarget.value);
              }}
            >
              {pipelines!.map((each) => (
                <option value={each.key}>{each.name === each.key ? each.name : `${each.name} (${each.key})`}</option>
              ))}
            </select>
          )}
          <a href={to.pipeline(place.pipeline)} aria-current={place.page === "pipeline" ? "page" : undefined}>
            Pipeline
          </a>
          <a href={to.updates(place.pipeline)} aria-current={place.page === "updates" || place.page === "compare" ? "page" : undefined}>
            Updates
          </a>
          <a href={to.quarantine(place.pipeline)} aria-current={place.page === "quarantine" ? "page" : undefined}>
            Quarantine
          </a>
        </nav>
      )}
      <span class="spacer" />
      <span role="status" class={link ? `link link-${link}` : "link"}>
        {link && (link === "live" ? "Live" : link === "lost" ? "Reconnecting…" : "Connecting…")}
      </span>
      <button type="button" class="theme" onClick={toggleTheme} aria-label={`Use the ${theme === "dark" ? "light" : "dark"} theme`} title="Light or dark">
        <svg viewBox="0 0 16 16" aria-hidden="true">
          {theme === "dark" ? (
            <path d="M8 5a3 3 0 1 1 0 6a3 3 0 0 1 0-6zM8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1" />
          ) : (
            <path d="M13.500 9.500A6 6 0 0 1 6.500 2.500a6 6 0 1 0 7 7z" />
          )}
        </svg>
      </button>
    </header>
  );
}

const app = document.getElementById("app")!;
app.textContent = "";
render(<App />, app);
