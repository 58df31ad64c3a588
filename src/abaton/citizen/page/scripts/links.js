// SMART Health Links: a short text with URL and key, and files encrypted with that key, which are decrypted here.
import { base64, fromBase64, utf8 } from "./bytes.js";
import { fetchPermitted, isSafe, SourceError } from "./sources.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */
/** @typedef {{ url: string, key: Bytes, flag: string }} Link */

const LINK_PREFIX = "shlink:/";
const CARD = "application/smart-health-card";
const FHIR = "application/fhir+json";
const RECIPIENT = "Abaton"; // does not reveal the study to the server

/** @param {string} text @returns {Bytes} */
export const fromBase64url = (text) => fromBase64(text.replaceAll("-", "+").replaceAll("_", "/"));

/** @param {Uint8Array} bytes */
export const base64url = (bytes) => base64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

/** Return whether a text is a link, possibly after a viewer URL. @param {string} text */
export const isLink = (text) => text.startsWith(LINK_PREFIX) || /^https:\/\/\S+#shlink:\//.test(text);

/** Return whether a text is a compact JWE (five parts). @param {string} text */
export const isEncrypted = (text) => /^eyJ[\w-]*\.[\w-]*\.[\w-]+\.[\w-]*\.[\w-]+$/.test(text);

/** @param {string} text @param {number} now @returns {Link} */
export function readLink(text, now) {
  /** @type {any} */
  let payload;
  /** @type {Bytes} */
  let key;
  try {
    payload = JSON.parse(new TextDecoder().decode(fromBase64url(text.slice(text.indexOf(LINK_PREFIX) + LINK_PREFIX.length).trim())));
    key = fromBase64url(payload.key);
  } catch {
    throw new SourceError("link-broken");
  }
  const { url, flag = "", exp, v = 1 } = payload;
  if (v !== 1 || key.length !== 32 || typeof flag !== "string" || !isSafe(url)) throw new SourceError("link-broken");
  if (exp !== undefined && !(Number(exp) * 1000 > now)) throw new SourceError("link-expired");
  return { url, key, flag };
}

/**
 * Decrypt a file (compact JWE, `dir` with A256GCM) of limited size.
 * @param {string} text @param {Bytes} secret @param {number} maxBytes @returns {Promise<Bytes>}
 */
export async function decrypt(text, secret, maxBytes) {
  const [header = "", encryptedKey, iv = "", body = "", tagText = ""] = text.split(".");
  /** @type {any} */
  let parameters;
  /** @type {Bytes[]} */
  let [start, ciphertext, tag] = [];
  try {
    parameters = JSON.parse(new TextDecoder().decode(fromBase64url(header)));
    [start, ciphertext, tag] = [iv, body, tagText].map(fromBase64url);
  } catch {
    throw new SourceError("link-broken");
  }
  if (parameters.alg !== "dir" || parameters.enc !== "A256GCM" || encryptedKey || start?.length !== 12 || tag?.length !== 16 || !ciphertext) throw new SourceError("link-broken");
  if (parameters.zip !== undefined && parameters.zip !== "DEF") throw new SourceError("link-broken");
  const key = await crypto.subtle.importKey("raw", secret, "AES-GCM", false, ["decrypt"]);
  const ciphertextAndTag = new Uint8Array(await new Blob([ciphertext, tag]).arrayBuffer());
  const plaintext = await crypto.subtle
    .decrypt({ name: "AES-GCM", iv: start, additionalData: utf8(header) }, key, ciphertextAndTag)
    .catch(() => { throw new SourceError("link-wrong-key"); });
  return parameters.zip ? inflate(new Uint8Array(plaintext), maxBytes) : new Uint8Array(plaintext);
}

/** @param {Bytes} compressed @param {number} maxBytes @returns {Promise<Bytes>} */
async function inflate(compressed, maxBytes) {
  const reader = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  /** @type {Bytes[]} */
  const pieces = [];
  let size = 0;
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      size += piece.value.length;
      if (size > maxBytes) break;
      pieces.push(/** @type {Bytes} */ (piece.value));
    }
  } catch {
    throw new SourceError("link-broken");
  }
  if (size > maxBytes) {
    await reader.cancel();
    throw new SourceError("too-large");
  }
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

/**
 * Fetch the files of a link from permitted origins and decrypt them.
 * @param {Link} link @param {string} passcode @param {readonly string[]} permitted @param {number} maxBytes @returns {Promise<Bytes[]>}
 */
export async function fetchLink(link, passcode, permitted, maxBytes) {
  if (link.flag.includes("P") && !passcode) throw new SourceError("link-passcode");
  /** @type {string[]} */
  let texts;
  if (link.flag.includes("U")) {
    const address = new URL(link.url);
    address.searchParams.set("recipient", RECIPIENT);
    texts = [await fetchText(address.href, permitted, maxBytes)];
  } else {
    const body = JSON.stringify(passcode ? { recipient: RECIPIENT, passcode } : { recipient: RECIPIENT });
    const options = { method: "POST", body, headers: { "content-type": "application/json" } };
    const { files } = JSON.parse(new TextDecoder().decode(await fetchOk(link.url, permitted, maxBytes, options)) || "{}");
    const readable = (Array.isArray(files) ? files : []).filter((file) => [FHIR, CARD].includes(String(file.contentType).split(";")[0] ?? ""));
    texts = await Promise.all(readable.map((file) => file.embedded ?? fetchText(String(file.location), permitted, maxBytes)));
  }
  if (!texts.length) throw new SourceError("link-nothing");
  return Promise.all(texts.map((encrypted) => decrypt(encrypted.trim(), link.key, maxBytes)));
}

/** @param {string} address @param {readonly string[]} permitted @param {number} maxBytes */
const fetchText = async (address, permitted, maxBytes) => new TextDecoder().decode(await fetchOk(address, permitted, maxBytes));

/** @param {string} address @param {readonly string[]} permitted @param {number} maxBytes @param {RequestInit} [options] */
async function fetchOk(address, permitted, maxBytes, options) {
  const { status, body } = await fetchPermitted(address, permitted, maxBytes, options);
  if (status === 200) return body;
  throw new SourceError(status === 401 ? "link-passcode-wrong" : status === 404 || status === 410 ? "link-gone" : "source-unreachable");
}
