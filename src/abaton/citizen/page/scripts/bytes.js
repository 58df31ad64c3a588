// Bytes and their text encodings.

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/** @typedef {Uint8Array<ArrayBuffer>} Bytes */

/** Encode text as UTF-8. @param {string} text @returns {Bytes} */
export const utf8 = (text) => /** @type {Bytes} */ (new TextEncoder().encode(text));

/** Concatenate byte arrays. @param {...Uint8Array} pieces @returns {Bytes} */
export function concat(...pieces) {
  const bytes = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let offset = 0;
  for (const piece of pieces) {
    bytes.set(piece, offset);
    offset += piece.length;
  }
  return bytes;
}

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {Uint8Array} bytes */
export function base64(bytes) {
  let text = "";
  for (let offset = 0; offset < bytes.length; offset += 8192) text += String.fromCharCode(...bytes.subarray(offset, offset + 8192));
  return btoa(text);
}

/** @param {string} text @returns {Bytes} */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Encode bytes in base32 without padding. @param {Uint8Array} bytes */
export function base32(bytes) {
  let text = "";
  let buffer = 0;
  let bits = 0;
  for (const byte of bytes) {
    buffer = (buffer << 8) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      text += ALPHABET[(buffer >>> bits) & 31];
    }
    buffer &= (1 << bits) - 1;
  }
  return bits ? text + ALPHABET[(buffer << (5 - bits)) & 31] : text;
}

/** Decode {@link base32}; null if invalid. @param {string} text @returns {Bytes | null} */
export function fromBase32(text) {
  /** @type {number[]} */
  const bytes = [];
  let buffer = 0;
  let bits = 0;
  for (const char of text) {
    const value = ALPHABET.indexOf(char);
    if (value < 0) return null;
    buffer = (buffer << 5) | value;
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      bytes.push((buffer >>> bits) & 255);
      buffer &= (1 << bits) - 1;
    }
  }
  return Uint8Array.from(bytes);
}

/** Canonical JSON (RFC 8785): JSON as the browser writes it, with sorted keys.
 * @param {unknown} data @returns {string} */
export function canonicalJson(data) {
  if (Array.isArray(data)) return `[${data.map(canonicalJson).join(",")}]`;
  if (data && typeof data === "object") {
    const table = /** @type {Record<string, unknown>} */ (data);
    return `{${Object.keys(table).sort().map((key) => `${JSON.stringify(key)}:${canonicalJson(table[key])}`).join(",")}}`;
  }
  return JSON.stringify(data);
}

/** @param {Uint8Array} bytes @returns {Promise<Bytes>} */
export const sha256 = async (bytes) =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {Bytes} */ (bytes)));
