// The centre's intake: requests that are signed (RFC 9421), uploads that go on where they stood.
import { base64, hex, sha256, utf8 } from "./bytes.js";
import { signed } from "./keys.js";

/** @typedef {import("./keys.js").Signer} Signer */
/** @typedef {import("./keys.js").Statement} Statement */
/** @typedef {{ keys: { keys: import("./keys.js").KeyRow[] }, limits: { part_bytes: number } }} Centre */

const COVERED = '("@method" "@path" "@query" "content-digest" "abaton-centre")';

/** The centre said no, and why in one word; or it could not be reached ("away"). */
export class Refusal extends Error {
  /** @param {string} code @param {string} reason @param {number} [received] */
  constructor(code, reason = "", received = undefined) {
    super(`${code} ${reason}`.trim());
    this.code = code;
    this.reason = reason;
    this.received = received;
  }
}

/** @param {Promise<Response>} asked @returns {Promise<any>} */
async function answer(asked) {
  /** @type {Response} */
  let got;
  try {
    got = await asked;
  } catch {
    throw new Refusal("away");
  }
  const told = await got.json().catch(() => ({}));
  if (!got.ok) throw new Refusal(told.code ?? (got.status >= 500 ? "away" : "failed"), told.reason ?? "", told.received);
  return told;
}

/** Something that anybody may read. @param {string} path @returns {Promise<any>} */
export const read = (path) => answer(fetch(path));

/** A statement that speaks for itself. @param {string} path @param {unknown} body @returns {Promise<Statement>} */
export const tell = (path, body) =>
  answer(fetch(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } }));

/** A signed request. @param {Signer} signer @param {string} centre @param {string} method @param {string} path
 * @param {Uint8Array<ArrayBuffer>} [body] @param {string} [kind] @returns {Promise<any>} */
export async function ask(signer, centre, method, path, body = new Uint8Array(0), kind = "application/json") {
  const digest = `sha-256=:${base64(await sha256(body))}:`;
  const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  const created = Math.floor(Date.now() / 1000);
  const parameters = `${COVERED};created=${created};keyid="${signer.id}";alg="ed25519";nonce="${nonce}";tag="abaton-intake"`;
  const lines = [
    `"@method": ${method}`, `"@path": ${path}`, '"@query": ?', `"content-digest": ${digest}`, `"abaton-centre": ${centre}`,
    `"@signature-params": ${parameters}`,
  ];
  const signature = base64(await signed(signer, utf8(lines.join("\n"))));
  const headers = {
    "content-digest": digest, "abaton-centre": centre, "signature-input": `abaton=${parameters}`,
    signature: `abaton=:${signature}:`, "content-type": kind,
  };
  return answer(fetch(path, { method, headers, body: method === "GET" ? null : body }));
}

/** @param {unknown} data */
export const json = (data) => utf8(JSON.stringify(data));

/**
 * Bring an envelope to the centre, from the byte where it stands.
 * @param {Signer} signer @param {string} centre @param {Uint8Array<ArrayBuffer>} envelope @param {number} part
 * @param {(done: number) => void} progress
 * @returns {Promise<Statement>} the receipt
 */
export async function upload(signer, centre, envelope, part, progress) {
  const digest = hex(await sha256(envelope));
  let { received } = await ask(signer, centre, "POST", "/v1/uploads", json({ digest, size: envelope.length }));
  while (received < envelope.length) {
    progress(received / envelope.length);
    const piece = envelope.slice(received, received + part);
    try {
      const path = `/v1/uploads/${digest}/parts/${received}`;
      ({ received } = await ask(signer, centre, "PUT", path, piece, "application/octet-stream"));
    } catch (error) {
      if (!(error instanceof Refusal) || error.received === undefined) throw error;
      received = error.received;
    }
  }
  progress(1);
  return ask(signer, centre, "POST", `/v1/uploads/${digest}/finish`);
}
