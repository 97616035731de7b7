/** The light or dark theme: that of the system unless the user selects one. */
import { useEffect, useState } from "preact/hooks";

export type Theme = "light" | "dark";

const KEY = "penstock-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function stored(): Theme | null {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null;
  }
}

let chosen = stored();

const current = (): Theme => chosen ?? (dark.matches ? "dark" : "light");

function apply() {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  for (const listener of listeners) listener();
}

dark.addEventListener("change", apply);
apply();

export function toggleTheme() {
  const next = current() === "dark" ? "light" : "dark";
  chosen = next === (dark.matches ? "dark" : "light") ? null : next;
  try {
    if (chosen) localStorage.setItem(KEY, chosen);
    else localStorage.removeItem(KEY);
  } catch {
    // Without storage, the selection is lost when the page is closed.
  }
  apply();
}

export function useTheme(): Theme {
  const [theme, setTheme] = useState(current);
  useEffect(() => {
    const update = () => setTheme(current());
    listeners.add(update);
    return () => void listeners.delete(update);
  }, []);
  return theme;
}
