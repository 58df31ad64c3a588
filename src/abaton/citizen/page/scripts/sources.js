// Where records may be fetched from: the addresses that the study names, and no others. The page's policy says the same.

/** @typedef {import("./bytes.js").Bytes} Bytes */

/** Records could not be had, and why in one word, for which there are plain ones. */
export class Problem extends Error {
  /** @param {string} code */
  constructor(code) {
    super(code);
    this.code = code;
  }
}

/** Whether an address is one over which records may travel. @param {unknown} address */
export function isSafe(address) {
  try {
    const { protocol, hostname } = new URL(String(address));
    return protocol === "https:" || (protocol === "http:" && ["127.0.0.1", "localhost"].includes(hostname));
  } catch {
    return false;
  }
}

/** @param {string} address @param {readonly string[]} permitted */
export const isPermitted = (address, permitted) => isSafe(address) && permitted.includes(new URL(address).origin);

/**
 * Ask a permitted address; nothing of this browser goes along but what is asked.
 * @param {string} address @param {readonly string[]} permitted @param {number} most @param {RequestInit} [asked]
 * @returns {Promise<{ status: number, body: Bytes }>}
 */
export async function fetched(address, permitted, most, asked = {}) {
  if (!isPermitted(address, permitted)) throw new Problem("source-elsewhere");
  /** @type {Response} */
  let got;
  try {
    got = await fetch(address, { ...asked, credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer" });
  } catch {
    throw new Problem("source-away");
  }
  const reader = got.body?.getReader();
  /** @type {Bytes[]} */
  const pieces = [];
  let size = 0;
  for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
    size += piece.value.length;
    if (size > most) {
      await reader?.cancel();
      throw new Problem("too-large");
    }
    pieces.push(/** @type {Bytes} */ (piece.value));
  }
  return { status: got.status, body: new Uint8Array(await new Blob(pieces).arrayBuffer()) };
}

/** Several texts as one file (RFC 7464). @param {Bytes[]} texts @returns {Promise<Bytes>} */
export async function sequence(texts) {
  return new Uint8Array(await new Blob(texts.flatMap((each) => ["\x1e", each, "\n"])).arrayBuffer());
}
