// Builds the citizen's page: Python for the browser packed small, our own scripts as they are, and a list of everything
// with its fingerprint. Two builds of the same sources give the same bytes.
//
//   node build.mjs WHEELS OUT [--unpacked]
//
// Packing for the way (brotli) takes a minute; --unpacked leaves it out.
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants } from "node:zlib";
import { buildSync } from "esbuild";
import { loadPyodide } from "pyodide";

const here = dirname(fileURLToPath(import.meta.url));
const sources = join(here, "..", "..", "..");
const [wheels, out, quick] = process.argv.slice(2);
if (!wheels || !out) throw new Error("say where the wheels are and where the page goes: node build.mjs WHEELS OUT [--unpacked]");

// The rooms that the page's Python is made of; `abaton.citizen.browser_api` needs no other.
const ROOMS = [
  "__init__.py", "canonical_json.py", "errors.py", "atomic_files.py", "plugins.py", "specs.py", "protocols.py", "documents",
  "records", "study", "governance/__init__.py", "governance/consent.py", "governance/identifiers.py",
  "citizen/__init__.py", "citizen/uploads.py", "citizen/browser_api.py", "citizen/uploads.py", "citizen/preview.py", "citizen/study_facts.py",
];

/** @param {string} place @returns {string[]} */
function filesUnder(place) {
  if (statSync(place).isFile()) return [place];
  return readdirSync(place).sort().filter((name) => name !== "__pycache__").flatMap((name) => filesUnder(join(place, name)));
}

const runtime = dirname(fileURLToPath(import.meta.resolve("pyodide")));
const python = await loadPyodide({ indexURL: `${runtime}/`, env: { PYTHONHASHSEED: "0", HOME: "/" } });

/** @param {string} name @param {Uint8Array} data */
function put(name, data) {
  python.FS.mkdirTree(dirname(name));
  python.FS.writeFile(name, data);
}
for (const room of ROOMS)
  for (const file of filesUnder(join(sources, "abaton", room)))
    put(`/stage/own/${relative(sources, file)}`, readFileSync(file));
for (const name of readdirSync(wheels).sort()) put(`/stage/wheels/${name}`, readFileSync(join(wheels, name)));
python.runPython(readFileSync(join(here, "pack.py"), "utf8"));

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
for (const name of ["python_stdlib.zip", "abaton.zip"]) writeFileSync(join(out, name), python.FS.readFile(`/out/${name}`));
for (const name of ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"]) {
  const data = readFileSync(join(runtime, name));
  // The maps that these lines point to are not part of the page.
  writeFileSync(join(out, name), name.endsWith(".mjs") ? data.toString("utf8").replace(/\n\/\/# sourceMappingURL=.*\s*$/, "\n") : data);
}
for (const folder of ["scripts", "texts", "looks"])
  cpSync(join(here, folder), out, { recursive: true, filter: (name) => !/\.d\.m?ts$/.test(name) });
buildSync({ entryPoints: [join(here, "lattice.js")], outfile: join(out, "lattice.js"), bundle: true, format: "esm", minify: true, target: "es2022", legalComments: "eof" });

/** @param {Uint8Array | string} data */
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const files = Object.fromEntries(
  filesUnder(out).map((file) => [relative(out, file), { sha256: sha256(readFileSync(file)), bytes: statSync(file).size }]),
);
const build = sha256(Object.entries(files).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, { sha256: mark }]) => `${mark}  ${name}\n`).join(""));
let small = 0;
for (const name of quick === "--unpacked" ? [] : Object.keys(files)) {
  const data = readFileSync(join(out, name));
  const packed = brotliCompressSync(data, {
    params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_LGWIN]: 24, [constants.BROTLI_PARAM_SIZE_HINT]: data.length },
  });
  small += packed.length;
  writeFileSync(join(out, `${name}.br`), packed);
}
writeFileSync(join(out, "manifest.json"), `${JSON.stringify({ build, packed_bytes: small, files }, null, 1)}\n`);
console.log(JSON.stringify({ build, files: Object.keys(files).length, packed_bytes: small }));
process.exit(0);
