/** Routes of the dashboard: the fragment of the URL, after the `#`. */
import { useEffect, useLayoutEffect, useState } from "preact/hooks";

export interface Place {
  page: "pipelines" | "pipeline" | "dataset" | "updates" | "quarantine" | "compare";
  pipeline: string;
  update: string;
  dataset: string;
  rule: string;
  before: string;
}

export const LATEST = "latest";

const part = encodeURIComponent;

export const to = {
  pipelines: () => "#/",
  pipeline: (key: string, update = LATEST) => `#/${part(key)}${update === LATEST ? "" : `/update/${part(update)}`}`,
  dataset: (key: string, name: string, update = LATEST) => `${to.pipeline(key, update)}/dataset/${part(name)}`,
  updates: (key: string) => `#/${part(key)}/updates`,
  /** The comparison of two updates; of the newest two if the ids are empty. */
  compare: (key: string, before = "", after = "") => `#/${part(key)}/compare${before && after && `/${part(before)}/${part(after)}`}`,
  quarantine: (key: string, name = "", rule = "") =>
    `#/${part(key)}/quarantine${name && `/${part(name)}`}${name && rule && `/${part(rule)}`}`,
};

export function placeOf(hash: string): Place {
  const parts = hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  const place: Place = { page: "pipelines", pipeline: parts[0] ?? "", update: LATEST, dataset: "", rule: "", before: "" };
  if (!parts.length) return place;
  place.page = "pipeline";
  if (parts[1] === "updates") place.page = "updates";
  if (parts[1] === "compare") {
    place.page = "compare";
    place.before = parts[2] ?? "";
    place.update = parts[3] ?? LATEST;
    return place;
  }
  if (parts[1] === "quarantine") {
    place.page = "quarantine";
    place.dataset = parts[2] ?? "";
    place.rule = parts[3] ?? "";
    return place;
  }
  const rest = parts[1] === "update" ? parts.slice(3) : parts.slice(1);
  if (parts[1] === "update" && parts[2]) place.update = parts[2];
  if (rest[0] === "dataset" && rest[1]) {
    place.page = "dataset";
    place.dataset = rest[1];
  }
  return place;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  // A layout effect: a change before the first paint would be missed by an ordinary effect.
  useLayoutEffect(() => {
    const update = () => setPlace(placeOf(location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return place;
}

const MAX_CLOCK_ERROR_MS = 2000;
let clockOffset = 0;

/** Sets the clock from the `Date` of a response: events have the server's timestamps, and the local clock may be wrong. */
export function setServerTime(date: string | null): void {
  const at = Date.parse(date ?? "");
  if (Number.isNaN(at)) return;
  // `Date` is truncated to seconds.
  const offset = at + 500 - Date.now();
  clockOffset = Math.abs(offset) < MAX_CLOCK_ERROR_MS ? 0 : offset;
}

const serverNow = () => Date.now() + clockOffset;

/** The server's time, updated every `everyMs` milliseconds; `0` does not update it. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    if (!everyMs) return;
    setNow(serverNow());
    const timer = setInterval(() => setNow(serverNow()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
