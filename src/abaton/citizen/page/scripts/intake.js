// Client of the centre's intake: signed requests (RFC 9421) and resumable uploads.
import { base64, hex, sha256, utf8 } from "./bytes.js";
import { sign } from "./keys.js";

/** @typedef {import("./keys.js").Signer} Signer */
/** @typedef {import("./keys.js").Statement} Statement */
/** @typedef {{ keys: { keys: import("./keys.js").KeyRow[] }, limits: { chunk_bytes: number } }} Centre */

const COVERED = '("@method" "@path" "@query" "content-digest" "abaton-centre")';

/** Refusal by the centre with its code; "unreachable" if there was no response. */
export class RefusedError extends Error {
  /** @param {string} code @param {string} reason @param {number} [receivedBytes] */
  constructor(code, reason = "", receivedBytes = undefined) {
    super(`${code} ${reason}`.trim());
    this.code = code;
    this.reason = reason;
    this.receivedBytes = receivedBytes;
  }
}

/** @param {Promise<Response>} request @returns {Promise<any>} */
async function readResponse(request) {
  /** @type {Response} */
  let response;
  try {
    response = await request;
  } catch {
    throw new RefusedError("unreachable");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new RefusedError(content.code ?? (response.status >= 500 ? "unreachable" : "failed"), content.reason ?? "", content.received_bytes);
  return content;
}

/** Read a public resource. @param {string} path @returns {Promise<any>} */
export const getJson = (path) => readResponse(fetch(path));

/** Post a self-signed statement. @param {string} path @param {unknown} body @returns {Promise<Statement>} */
export const postStatement = (path, body) =>
  readResponse(fetch(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } }));

/** Send a signed request. @param {Signer} signer @param {string} centre @param {string} method @param {string} path
 * @param {Uint8Array<ArrayBuffer>} [body] @param {string} [mediaType] @returns {Promise<any>} */
export async function signedRequest(signer, centre, method, path, body = new Uint8Array(0), mediaType = "application/json") {
  const digest = `sha-256=:${base64(await sha256(body))}:`;
  const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  const created = Math.floor(Date.now() / 1000);
  const parameters = `${COVERED};created=${created};keyid="${signer.id}";alg="ed25519";nonce="${nonce}";tag="abaton-intake"`;
  const components = [
    `"@method": ${method}`, `"@path": ${path}`, '"@query": ?', `"content-digest": ${digest}`, `"abaton-centre": ${centre}`,
    `"@signature-params": ${parameters}`,
  ];
  const signature = base64(await sign(signer, utf8(components.join("\n"))));
  const headers = {
    "content-digest": digest, "abaton-centre": centre, "signature-input": `abaton=${parameters}`,
    signature: `abaton=:${signature}:`, "content-type": mediaType,
  };
  return readResponse(fetch(path, { method, headers, body: method === "GET" ? null : body }));
}

/** @param {unknown} data */
export const json = (data) => utf8(JSON.stringify(data));

/**
 * Upload an envelope, resuming at the received bytes.
 * @param {Signer} signer @param {string} centre @param {Uint8Array<ArrayBuffer>} envelope @param {number} chunkBytes
 * @param {(fraction: number) => void} progress
 * @returns {Promise<Statement>} the receipt
 */
export async function upload(signer, centre, envelope, chunkBytes, progress) {
  const digest = hex(await sha256(envelope));
  let { received_bytes: receivedBytes } = await signedRequest(signer, centre, "POST", "/v1/uploads", json({ digest, size: envelope.length }));
  while (receivedBytes < envelope.length) {
    progress(receivedBytes / envelope.length);
    const piece = envelope.slice(receivedBytes, receivedBytes + chunkBytes);
    try {
      const path = `/v1/uploads/${digest}/parts/${receivedBytes}`;
      ({ received_bytes: receivedBytes } = await signedRequest(signer, centre, "PUT", path, piece, "application/octet-stream"));
    } catch (error) {
      if (!(error instanceof RefusedError) || error.receivedBytes === undefined) throw error;
      receivedBytes = error.receivedBytes;
    }
  }
  progress(1);
  return signedRequest(signer, centre, "POST", `/v1/uploads/${digest}/finish`);
}
