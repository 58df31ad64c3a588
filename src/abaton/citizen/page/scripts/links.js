// SMART Health Links: a short text with an address and a key, and files that are locked with that key. They are unlocked here.
import { base64, fromBase64, utf8 } from "./bytes.js";
import { fetched, isSafe, Problem } from "./sources.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */
/** @typedef {{ url: string, key: Bytes, flag: string }} Link */

const MARK = "shlink:/";
const CARD = "application/smart-health-card";
const FHIR = "application/fhir+json";
const RECIPIENT = "Abaton"; // whoever keeps the records need not learn for which study they are fetched

/** @param {string} text @returns {Bytes} */
export const fromBase64url = (text) => fromBase64(text.replaceAll("-", "+").replaceAll("_", "/"));

/** @param {Uint8Array} bytes */
export const base64url = (bytes) => base64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

/** Whether a text is a link, bare or behind the address of a viewer. @param {string} text */
export const isLink = (text) => text.startsWith(MARK) || /^https:\/\/\S+#shlink:\//.test(text);

/** Whether a text is locked with a key: five parts, of which the first says how. @param {string} text */
export const isLocked = (text) => /^eyJ[\w-]*\.[\w-]*\.[\w-]+\.[\w-]*\.[\w-]+$/.test(text);

/** @param {string} text @param {number} now @returns {Link} */
export function readLink(text, now) {
  /** @type {any} */
  let told;
  /** @type {Bytes} */
  let key;
  try {
    told = JSON.parse(new TextDecoder().decode(fromBase64url(text.slice(text.indexOf(MARK) + MARK.length).trim())));
    key = fromBase64url(told.key);
  } catch {
    throw new Problem("link-broken");
  }
  const { url, flag = "", exp, v = 1 } = told;
  if (v !== 1 || key.length !== 32 || typeof flag !== "string" || !isSafe(url)) throw new Problem("link-broken");
  if (exp !== undefined && !(Number(exp) * 1000 > now)) throw new Problem("link-expired");
  return { url, key, flag };
}

/**
 * What is in a locked file (JWE, compact form, `dir` with A256GCM), never more than some number of bytes.
 * @param {string} text @param {Bytes} secret @param {number} most @returns {Promise<Bytes>}
 */
export async function unlocked(text, secret, most) {
  const [head = "", wrapped, iv = "", body = "", mark = ""] = text.split(".");
  /** @type {any} */
  let how;
  /** @type {Bytes[]} */
  let [start, locked, tag] = [];
  try {
    how = JSON.parse(new TextDecoder().decode(fromBase64url(head)));
    [start, locked, tag] = [iv, body, mark].map(fromBase64url);
  } catch {
    throw new Problem("link-broken");
  }
  if (how.alg !== "dir" || how.enc !== "A256GCM" || wrapped || start?.length !== 12 || tag?.length !== 16 || !locked) throw new Problem("link-broken");
  if (how.zip !== undefined && how.zip !== "DEF") throw new Problem("link-broken");
  const key = await crypto.subtle.importKey("raw", secret, "AES-GCM", false, ["decrypt"]);
  const whole = new Uint8Array(await new Blob([locked, tag]).arrayBuffer());
  const plain = await crypto.subtle
    .decrypt({ name: "AES-GCM", iv: start, additionalData: utf8(head) }, key, whole)
    .catch(() => { throw new Problem("link-wrong-key"); });
  return how.zip ? unpacked(new Uint8Array(plain), most) : new Uint8Array(plain);
}

/** @param {Bytes} packed @param {number} most @returns {Promise<Bytes>} */
async function unpacked(packed, most) {
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  /** @type {Bytes[]} */
  const pieces = [];
  let size = 0;
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      size += piece.value.length;
      if (size > most) break;
      pieces.push(/** @type {Bytes} */ (piece.value));
    }
  } catch {
    throw new Problem("link-broken");
  }
  if (size > most) {
    await reader.cancel();
    throw new Problem("too-large");
  }
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

/**
 * Fetch the files of a link from addresses that the study permits, and unlock them.
 * @param {Link} link @param {string} passcode @param {readonly string[]} permitted @param {number} most @returns {Promise<Bytes[]>}
 */
export async function linked(link, passcode, permitted, most) {
  if (link.flag.includes("P") && !passcode) throw new Problem("link-passcode");
  /** @type {string[]} */
  let texts;
  if (link.flag.includes("U")) {
    const address = new URL(link.url);
    address.searchParams.set("recipient", RECIPIENT);
    texts = [await text(address.href, permitted, most)];
  } else {
    const body = JSON.stringify(passcode ? { recipient: RECIPIENT, passcode } : { recipient: RECIPIENT });
    const asked = { method: "POST", body, headers: { "content-type": "application/json" } };
    const { files } = JSON.parse(new TextDecoder().decode(await got(link.url, permitted, most, asked)) || "{}");
    const usable = (Array.isArray(files) ? files : []).filter((file) => [FHIR, CARD].includes(String(file.contentType).split(";")[0] ?? ""));
    texts = await Promise.all(usable.map((file) => file.embedded ?? text(String(file.location), permitted, most)));
  }
  if (!texts.length) throw new Problem("link-nothing");
  return Promise.all(texts.map((each) => unlocked(each.trim(), link.key, most)));
}

/** @param {string} address @param {readonly string[]} permitted @param {number} most */
const text = async (address, permitted, most) => new TextDecoder().decode(await got(address, permitted, most));

/** @param {string} address @param {readonly string[]} permitted @param {number} most @param {RequestInit} [asked] */
async function got(address, permitted, most, asked) {
  const { status, body } = await fetched(address, permitted, most, asked);
  if (status === 200) return body;
  throw new Problem(status === 401 ? "link-passcode-wrong" : status === 404 || status === 410 ? "link-gone" : "source-away");
}
