// Fetching from the origins that the study permits. The content security policy has the same list.

/** @typedef {import("./bytes.js").Bytes} Bytes */

/** Error with a code, for which the page has a text. */
export class SourceError extends Error {
  /** @param {string} code */
  constructor(code) {
    super(code);
    this.code = code;
  }
}

/** Return whether a URL is secure enough for records. @param {unknown} address */
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
 * Fetch from a permitted origin without cookies, cache, redirects or referrer.
 * @param {string} address @param {readonly string[]} permitted @param {number} maxBytes @param {RequestInit} [options]
 * @returns {Promise<{ status: number, body: Bytes }>}
 */
export async function fetchPermitted(address, permitted, maxBytes, options = {}) {
  if (!isPermitted(address, permitted)) throw new SourceError("source-not-permitted");
  /** @type {Response} */
  let response;
  try {
    response = await fetch(address, { ...options, credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer" });
  } catch {
    throw new SourceError("source-unreachable");
  }
  const reader = response.body?.getReader();
  /** @type {Bytes[]} */
  const pieces = [];
  let size = 0;
  for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
    size += piece.value.length;
    if (size > maxBytes) {
      await reader?.cancel();
      throw new SourceError("too-large");
    }
    pieces.push(/** @type {Bytes} */ (piece.value));
  }
  return { status: response.status, body: new Uint8Array(await new Blob(pieces).arrayBuffer()) };
}

/** Join texts into one file (RFC 7464). @param {Bytes[]} texts @returns {Promise<Bytes>} */
export async function joinTexts(texts) {
  return new Uint8Array(await new Blob(texts.flatMap((text) => ["\x1e", text, "\n"])).arrayBuffer());
}
