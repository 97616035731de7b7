/** States are shown by an icon and a word, not by color alone. */

interface Look {
  word: string;
  tone: string;
  path: string;
}

const check = "M3.5 8.5l3 3 6-7";
const cross = "M4 4l8 8M12 4l-8 8";
const play = "M5.5 3.5l7 4.5-7 4.5z";
const square = "M4.5 4.5h7v7h-7z";
const hourglass = "M8 4v4l2.5 2.5M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11z";
const skip = "M4 4l5 4-5 4zM11.5 4v8";
const pause = "M6 4v8M10 4v8";
const minus = "M4 8h8";
const question = "M6 6a2 2 0 1 1 2.6 1.9c-.4.2-.6.5-.6 1V9.500M8 12v.2";

const LOOKS: Record<string, Look> = {
  RUNNING: { word: "Running", tone: "run", path: play },
  STARTING: { word: "Starting", tone: "run", path: hourglass },
  QUEUED: { word: "Queued", tone: "wait", path: hourglass },
  COMPLETED: { word: "Completed", tone: "good", path: check },
  FAILED: { word: "Failed", tone: "bad", path: cross },
  SKIPPED: { word: "Skipped", tone: "warn", path: skip },
  STOPPED: { word: "Stopped", tone: "wait", path: square },
  IDLE: { word: "Idle", tone: "calm", path: pause },
  EXCLUDED: { word: "Excluded", tone: "wait", path: minus },
  CREATED: { word: "Created", tone: "wait", path: hourglass },
  INITIALIZING: { word: "Initializing", tone: "run", path: hourglass },
  RESETTING: { word: "Resetting", tone: "run", path: hourglass },
  SETTING_UP_TABLES: { word: "Setting up tables", tone: "run", path: hourglass },
  STOPPING: { word: "Stopping", tone: "run", path: square },
  CANCELED: { word: "Stopped", tone: "wait", path: square },
  NO_ANSWER: { word: "No response", tone: "warn", path: question },
  INTERRUPTED: { word: "Interrupted", tone: "warn", path: question },
};
const UNKNOWN: Look = { word: "Unknown", tone: "wait", path: question };

export const look = (state: string | null): Look => LOOKS[state ?? ""] ?? UNKNOWN;

export function StateIcon({ state }: { state: string | null }) {
  const { path, tone } = look(state);
  const filled = path === play || path === square;
  return (
    <svg class={`icon tone-${tone}`} viewBox="0 0 16 16" aria-hidden="true">
      <path d={path} fill={filled ? "currentColor" : "none"} stroke="currentColor" />
    </svg>
  );
}

export function StateBadge({ state }: { state: string | null }) {
  const { word, tone } = look(state);
  return (
    <span class={`badge tone-${tone}`} data-state={state ?? ""}>
      <StateIcon state={state} />
      {word}
    </span>
  );
}
