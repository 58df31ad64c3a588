// Python in a web worker, so that the page stays responsive. It fetches only its own files.
import { loadPyodide } from "./pyodide.mjs";

const baseUrl = new URL(".", import.meta.url).href;
const LOCK = /** @type {any} */ ({
  info: { abi_version: "2026_0", arch: "wasm32", platform: "emscripten_5_0_3", python: "3.14.2", version: "314.0.7" },
  packages: {},
});

/** @param {string} stage */
const progress = (stage) => postMessage({ stage });

async function start() {
  progress("loading");
  const bundle = fetch(`${baseUrl}abaton.zip`).then((response) => response.arrayBuffer());
  const python = await loadPyodide({
    indexURL: baseUrl, stdLibURL: `${baseUrl}python_stdlib.zip`, lockFileContents: LOCK, checkAPIVersion: false,
  });
  progress("unpacking");
  python.unpackArchive(await bundle, "zip", { extractDir: "/abaton" });
  progress("starting");
  python.runPython('import sys; sys.path.insert(0, "/abaton")');
  const api = python.pyimport("abaton.citizen.browser_api").BrowserApi();
  progress("ready");
  return api;
}

const api = start();
api.catch(() => progress("failed"));

self.addEventListener("message", async ({ data: { id, name, args } }) => {
  try {
    let result = (await api)[name](...args);
    if (result?.toJs) {
      const copy = result.toJs();
      result.destroy();
      result = copy;
    }
    postMessage({ id, result });
  } catch (error) {
    // Only the last line: the traceback may contain record content.
    postMessage({ id, error: String(error).trim().split("\n").at(-1) });
  }
});
