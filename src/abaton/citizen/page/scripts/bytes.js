// Bytes and their forms as text.

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/** @typedef {Uint8Array<ArrayBuffer>} Bytes */

/** Text as UTF-8. @param {string} text @returns {Bytes} */
export const utf8 = (text) => /** @type {Bytes} */ (new TextEncoder().encode(text));

/** Pieces one after the other. @param {...Uint8Array} pieces @returns {Bytes} */
export function joined(...pieces) {
  const whole = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {Uint8Array} bytes */
export function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** @param {string} text @returns {Bytes} */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

/** Bytes as letters and digits, five bits each, without padding. @param {Uint8Array} bytes */
export function base32(bytes) {
  let text = "";
  let held = 0;
  let bits = 0;
  for (const byte of bytes) {
    held = (held << 8) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      text += ALPHABET[(held >>> bits) & 31];
    }
    held &= (1 << bits) - 1;
  }
  return bits ? text + ALPHABET[(held << (5 - bits)) & 31] : text;
}

/** The bytes of {@link base32}, or nothing if it is none. @param {string} text @returns {Bytes | null} */
export function fromBase32(text) {
  /** @type {number[]} */
  const bytes = [];
  let held = 0;
  let bits = 0;
  for (const sign of text) {
    const value = ALPHABET.indexOf(sign);
    if (value < 0) return null;
    held = (held << 5) | value;
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      bytes.push((held >>> bits) & 255);
      held &= (1 << bits) - 1;
    }
  }
  return Uint8Array.from(bytes);
}

/** The one form that stands for some data (RFC 8785, which is how a browser writes JSON, with sorted keys).
 * @param {unknown} data @returns {string} */
export function canonical(data) {
  if (Array.isArray(data)) return `[${data.map(canonical).join(",")}]`;
  if (data && typeof data === "object") {
    const table = /** @type {Record<string, unknown>} */ (data);
    return `{${Object.keys(table).sort().map((key) => `${JSON.stringify(key)}:${canonical(table[key])}`).join(",")}}`;
  }
  return JSON.stringify(data);
}

/** @param {Uint8Array} bytes @returns {Promise<Bytes>} */
export const sha256 = async (bytes) =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {Bytes} */ (bytes)));
