import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { defineConfig } from "vite";

const here = import.meta.dirname;
const sources = ["src", "index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js"];

function filesOf(path) {
  try {
    return readdirSync(path).flatMap((name) => filesOf(join(path, name)));
  } catch (error) {
    if (error.code !== "ENOTDIR") throw error;
    return [path];
  }
}

const sha256 = (...parts) => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest("hex");
};

/** Records what the bundle was built from and what it holds; tests/guards compares both. */
function recordSources() {
  return {
    name: "record-sources",
    writeBundle(options, bundle) {
      const names = sources
        .flatMap((name) => filesOf(join(here, name)))
        .map((path) => relative(here, path).split(sep).join("/"))
        .sort();
      const parts = names.flatMap((name) => [name, "\0", readFileSync(join(here, name)), "\0"]);
      const files = {};
      for (const name of Object.keys(bundle).sort()) files[name] = sha256(readFileSync(join(options.dir, name)));
      const record = { sources: sha256(...parts), files };
      writeFileSync(join(options.dir, "bundle.json"), JSON.stringify(record, null, 2) + "\n");
    },
  };
}

export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [recordSources()],
  build: {
    outDir: process.env.OUT_DIR ?? "../src/penstock/_ui/static",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: "app.js", chunkFileNames: "[name].js", assetFileNames: "app[extname]" },
    },
  },
});
