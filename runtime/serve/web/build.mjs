// Makes dist/ from src/: node build.mjs [FOLDER]. The same sources give the same
// bytes.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";

const out = process.argv[2] ?? "dist";
await rm(out, { recursive: true, force: true });
await mkdir(out + "/assets", { recursive: true });
const made = await build({
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  format: "esm",
  minify: true,
  legalComments: "none",
  metafile: true,
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  outdir: out + "/assets",
  logLevel: "warning",
});
await build({ entryPoints: ["src/style.css"], minify: true, outfile: out + "/assets/app.css", logLevel: "warning" });
await copyFile("src/index.html", out + "/index.html");
await copyFile("src/icon.svg", out + "/assets/icon.svg");

// What is bundled keeps its licence.
const packages = new Set(Object.keys(made.metafile.inputs).map((p) => p.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
let licences = "";
for (const name of [...packages].sort()) {
  const { version } = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
  licences += `${name} ${version}\n\n${(await readFile(`node_modules/${name}/LICENSE`, "utf8")).trim()}\n\n\n`;
}
await writeFile(out + "/assets/licences.txt", licences);
