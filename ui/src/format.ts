/** Formats of numbers and times. */
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value: number | null) => (value === null ? "–" : whole.format(value));
export const rowsText = (rows: number) => `${count(rows)} ${rows === 1 ? "row" : "rows"}`;
export const short = (value: number | null) => (value === null || Math.abs(value) < 100_000 ? count(value) : compact.format(value));

/** Unread rows or files at the sources of a dataset. */
export function lag(rows: number | null, files: number | null): string {
  if (rows !== null) return short(rows);
  return files === null ? "–" : `${short(files)} ${files === 1 ? "file" : "files"}`;
}

export function rate(value: number | null): string {
  if (value === null) return "–";
  return value > 0 && value < 10 ? value.toFixed(1) : short(value);
}

export function seconds(value: number | null): string {
  if (value === null) return "–";
  // Negative if the clocks of two machines differ.
  if (value <= 0) return "0 s";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.5) return `${value.toFixed(value < 9.95 ? 1 : 0)} s`;
  const rounded = Math.round(value);
  const minutes = Math.floor(rounded / 60);
  if (minutes < 60) return `${minutes} min ${rounded % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A short form of a duration. */
export function brief(value: number | null): string {
  if (value === null) return "–";
  if (value < 59.5) return seconds(value);
  if (value < 3600) return `${Math.round(value / 60)} min`;
  return value < 172_800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86_400)} d`;
}

/** The delay of a watermark. */
export function behind(delay: number | null): string {
  if (delay === null) return "–";
  return delay < 0 ? `${brief(-delay)} ahead` : `${brief(delay)} behind`;
}

export function bytes(value: number | null): string {
  if (value === null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  for (; size >= 1000 && unit < units.length - 1; unit++) size /= 1000;
  return `${size < 10 && unit ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

const clock = (at: number) => new Date(at).toLocaleTimeString("en-GB");

export function moment(at: number): string {
  const date = new Date(at);
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${date.toLocaleTimeString("en-GB")}`;
}

/** A time with its date, or without it if that is today. */
export const when = (at: number) => (new Date(at).toDateString() === new Date().toDateString() ? clock(at) : moment(at));

export function ago(at: number, now: number): string {
  const passed = Math.max(0, now - at) / 1000;
  return passed < 5 ? "just now" : `${brief(passed)} ago`;
}

export function percent(part: number, all: number): string {
  if (!all) return "–";
  const value = (100 * part) / all;
  if (part && value < 0.1) return "< 0.1 %";
  // Never round up to "100 %".
  return `${part < all && value > 99.9 ? "> 99.9" : value.toFixed(value === 0 || value === 100 ? 0 : 1)} %`;
}
