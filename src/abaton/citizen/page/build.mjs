// Build the citizen page: bundled Python for the browser, the scripts unchanged, and a manifest with the digest of every file.
// The build is reproducible.
//
//   node build.mjs WHEELS OUT [--uncompressed]
//
// Brotli compression takes a minute; --uncompressed skips it.
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants } from "node:zlib";
import { buildSync } from "esbuild";
import { loadPyodide } from "pyodide";

const here = dirname(fileURLToPath(import.meta.url));
const sources = join(here, "..", "..", "..");
const [wheels, out, option] = process.argv.slice(2);
if (!wheels || !out) throw new Error("arguments are missing: node build.mjs WHEELS OUT [--uncompressed]");

// Modules and packages that `abaton.citizen.browser_api` imports.
const PYTHON_SOURCES = [
  "__init__.py", "atomic_files.py", "canonical_json.py", "errors.py", "plugins.py", "protocols.py", "record_types.py", "specs.py",
  "strict_json.py", "strict_toml.py", "training.py", "deid", "documents", "fhir", "fhirpath", "study",
  "anonymity/__init__.py", "anonymity/settings.py", "anonymity/settings_reader.py", "disclosure/__init__.py", "disclosure/levels.py",
  "features/__init__.py", "features/data_quality.py", "features/specification.py",
  "views/__init__.py", "views/api.py", "views/conformance.py", "views/definition.py", "views/required_elements.py",
  "governance/__init__.py", "governance/consent.py", "governance/timestamps.py",
  "citizen/__init__.py", "citizen/browser_api.py", "citizen/preview.py", "citizen/study_facts.py", "citizen/uploads.py",
];

/** @param {string} path @returns {string[]} */
function filesUnder(path) {
  if (statSync(path).isFile()) return [path];
  return readdirSync(path).sort().filter((name) => name !== "__pycache__").flatMap((name) => filesUnder(join(path, name)));
}

const runtime = dirname(fileURLToPath(import.meta.resolve("pyodide")));
const python = await loadPyodide({ indexURL: `${runtime}/`, env: { PYTHONHASHSEED: "0", HOME: "/" } });

/** @param {string} name @param {Uint8Array} data */
function put(name, data) {
  python.FS.mkdirTree(dirname(name));
  python.FS.writeFile(name, data);
}
for (const source of PYTHON_SOURCES)
  for (const file of filesUnder(join(sources, "abaton", source)))
    put(`/stage/own/${relative(sources, file)}`, readFileSync(file));
for (const name of readdirSync(wheels).sort()) put(`/stage/wheels/${name}`, readFileSync(join(wheels, name)));
python.runPython(readFileSync(join(here, "python_bundle.py"), "utf8"));

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
for (const name of ["python_stdlib.zip", "abaton.zip"]) writeFileSync(join(out, name), python.FS.readFile(`/out/${name}`));
for (const name of ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"]) {
  const data = readFileSync(join(runtime, name));
  // Remove references to source maps, which are not part of the page.
  writeFileSync(join(out, name), name.endsWith(".mjs") ? data.toString("utf8").replace(/\n\/\/# sourceMappingURL=.*\s*$/, "\n") : data);
}
for (const folder of ["scripts", "texts", "assets"])
  cpSync(join(here, folder), out, { recursive: true, filter: (name) => !/\.d\.m?ts$/.test(name) });
buildSync({ entryPoints: [join(here, "post-quantum.js")], outfile: join(out, "post-quantum.js"), bundle: true, format: "esm", minify: true, target: "es2022", legalComments: "eof" });

/** @param {Uint8Array | string} data */
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const files = Object.fromEntries(
  filesUnder(out).map((file) => [relative(out, file), { sha256: sha256(readFileSync(file)), bytes: statSync(file).size }]),
);
const build = sha256(Object.entries(files).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, { sha256: digest }]) => `${digest}  ${name}\n`).join(""));
let compressedBytes = 0;
for (const name of option === "--uncompressed" ? [] : Object.keys(files)) {
  const data = readFileSync(join(out, name));
  const compressed = brotliCompressSync(data, {
    params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_LGWIN]: 24, [constants.BROTLI_PARAM_SIZE_HINT]: data.length },
  });
  compressedBytes += compressed.length;
  writeFileSync(join(out, `${name}.br`), compressed);
}
writeFileSync(join(out, "manifest.json"), `${JSON.stringify({ build, compressed_bytes: compressedBytes, files }, null, 1)}\n`);
console.log(JSON.stringify({ build, files: Object.keys(files).length, compressed_bytes: compressedBytes }));
process.exit(0);
