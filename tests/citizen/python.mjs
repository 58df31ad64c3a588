// Run a job in the Python of the built page, for tests.
//   node python.mjs BUILT JOB.json   (the job: {script, files, call, arguments}; the result is JSON on stdout)
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [built, jobFile] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(resolve(built), "pyodide.mjs")).href);
const job = JSON.parse(readFileSync(jobFile, "utf8"));
const python = await loadPyodide({
  indexURL: `${resolve(built)}/`,
  lockFileContents: { info: { abi_version: "2026_0", arch: "wasm32", platform: "emscripten_5_0_3", python: "3.14.2", version: "314.0.7" }, packages: {} },
});
python.unpackArchive(new Uint8Array(readFileSync(join(built, "abaton.zip"))), "zip", { extractDir: "/abaton" });
python.runPython('import sys; sys.path.insert(0, "/abaton")');
python.FS.mkdirTree("/files");
job.files.forEach((name, i) => python.FS.writeFile(`/files/${i}`, readFileSync(name)));
python.globals.set("job", JSON.stringify(job));
try {
  python.runPython(job.script);
  process.stdout.write(python.runPython(job.call), () => process.exit(0));
} catch (error) {
  process.stderr.write(String(error.message), () => process.exit(1)); // without the stack, which quotes the whole script
}
