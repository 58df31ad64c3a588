// Python in a worker of its own, so that the page stays quick. It is given bytes and gives back text; it asks nobody for anything
// but its own files.
import { loadPyodide } from "./pyodide.mjs";

const place = new URL(".", import.meta.url).href;
const LOCK = /** @type {any} */ ({
  info: { abi_version: "2026_0", arch: "wasm32", platform: "emscripten_5_0_3", python: "3.14.2", version: "314.0.7" },
  packages: {},
});

/** @param {string} stage */
const progress = (stage) => postMessage({ stage });

async function started() {
  progress("loading");
  const packed = fetch(`${place}abaton.zip`).then((got) => got.arrayBuffer());
  const python = await loadPyodide({
    indexURL: place, stdLibURL: `${place}python_stdlib.zip`, lockFileContents: LOCK, checkAPIVersion: false,
  });
  progress("unpacking");
  python.unpackArchive(await packed, "zip", { extractDir: "/abaton" });
  progress("starting");
  python.runPython('import sys; sys.path.insert(0, "/abaton")');
  const phone = python.pyimport("abaton.citizen.browser_api").Phone();
  progress("ready");
  return phone;
}

const phone = started();
phone.catch(() => progress("failed"));

self.addEventListener("message", async ({ data: { id, call, given } }) => {
  try {
    let answer = (await phone)[call](...given);
    if (answer?.toJs) {
      const copied = answer.toJs();
      answer.destroy();
      answer = copied;
    }
    postMessage({ id, answer });
  } catch (error) {
    // Only the last line: what Python stumbled over stays where it is.
    postMessage({ id, error: String(error).trim().split("\n").at(-1) });
  }
});
