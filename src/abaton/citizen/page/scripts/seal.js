// Sealed envelopes as in docs/sealed-format.md, with WebCrypto: HPKE (RFC 9180, base mode) with X25519, or with
// ML-KEM-768 and X25519 (X-Wing), HKDF-SHA-256 and AES-256-GCM, then chunks of AES-256-GCM, then the sender's signature.
import { canonicalJson, concat, sha256, utf8 } from "./bytes.js";
import { sign } from "./keys.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */

const subtle = crypto.subtle;
const CHUNK_BYTES = 65536;
const LAST_FLAG = 2 ** 31;
const KEM = utf8("KEM\x00\x20");
const X_WING_LABEL = utf8("\\.//^\\");
const EMPTY = new Uint8Array(0);

/** @param {Uint8Array} key @param {Uint8Array} data @returns {Promise<Bytes>} */
async function hmac(key, data) {
  const hmacKey = key.length ? key : new Uint8Array(32);
  const imported = await subtle.importKey("raw", /** @type {Bytes} */ (hmacKey), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await subtle.sign("HMAC", imported, /** @type {Bytes} */ (data)));
}

/** @param {Uint8Array} suite @param {Uint8Array} salt @param {string} label @param {Uint8Array} input */
const extract = (suite, salt, label, input) => hmac(salt, concat(utf8("HPKE-v1"), suite, utf8(label), input));

/** HKDF-Expand of one block. @param {Uint8Array} suite @param {Uint8Array} secret @param {string} label
 * @param {Uint8Array} info @param {number} size */
async function expand(suite, secret, label, info, size) {
  const labelled = concat(new Uint8Array([size >> 8, size & 255]), utf8("HPKE-v1"), suite, utf8(label), info);
  return (await hmac(secret, concat(labelled, new Uint8Array([1])))).slice(0, size);
}

/** Create an ephemeral key and its shared secret with the recipient. @param {Bytes} recipient */
async function exchange(recipient) {
  const ephemeral = /** @type {CryptoKeyPair} */ (await subtle.generateKey("X25519", false, ["deriveBits"]));
  const publicKey = await subtle.importKey("raw", recipient, "X25519", false, []);
  const shared = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: publicKey }, ephemeral.privateKey, 256));
  return { ephemeralPublic: new Uint8Array(await subtle.exportKey("raw", ephemeral.publicKey)), shared };
}

/** KEMs: number in the HPKE registry, and encapsulation.
 * @type {Record<string, { number: number[], encapsulate: (recipient: Bytes) => Promise<{ sent: Bytes, secret: Bytes }> }>} */
const KEMS = {
  x25519: {
    number: [0x00, 0x20],
    async encapsulate(recipient) {
      const { ephemeralPublic, shared } = await exchange(recipient);
      const prk = await extract(KEM, EMPTY, "eae_prk", shared);
      return { sent: ephemeralPublic, secret: await expand(KEM, prk, "shared_secret", concat(ephemeralPublic, recipient), 32) };
    },
  },
  "mlkem768-x25519": {
    number: [0x64, 0x7a],
    async encapsulate(recipient) {
      const { ml_kem768, sha3_256 } = await import("./post-quantum.js");
      const x25519Public = recipient.slice(-32);
      const { ephemeralPublic, shared } = await exchange(x25519Public);
      const { cipherText, sharedSecret } = ml_kem768.encapsulate(recipient.slice(0, -32));
      return { sent: concat(cipherText, ephemeralPublic), secret: concat(sha3_256(concat(sharedSecret, shared, ephemeralPublic, x25519Public, X_WING_LABEL))) };
    },
  },
};

/** Return whether a key kind supports sealing. @param {string} kind */
export const canSeal = (kind) => kind in KEMS;

/** Encrypt a short secret to a key (HPKE base mode).
 * @param {Bytes} secret @param {string} kind @param {Bytes} recipient @param {Uint8Array} info */
export async function wrap(secret, kind, recipient, info) {
  const kem = KEMS[kind];
  if (!kem) throw new Error("the key kind does not support sealing");
  const suite = concat(utf8("HPKE"), Uint8Array.from([...kem.number, 0x00, 0x01, 0x00, 0x02]));
  const encapsulated = await kem.encapsulate(recipient);
  const context = concat(
    new Uint8Array(1),
    await extract(suite, EMPTY, "psk_id_hash", EMPTY),
    await extract(suite, EMPTY, "info_hash", info),
  );
  const root = await extract(suite, encapsulated.secret, "secret", EMPTY);
  const key = await subtle.importKey("raw", await expand(suite, root, "key", context, 32), "AES-GCM", false, ["encrypt"]);
  const iv = await expand(suite, root, "base_nonce", context, 12);
  return concat(encapsulated.sent, new Uint8Array(await subtle.encrypt({ name: "AES-GCM", iv }, key, secret)));
}

/** @param {number} value */
function length(value) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
}

/**
 * Return a sealed envelope for one recipient.
 * @param {Bytes} content
 * @param {Record<string, string | number>} header header fields except format and compression
 * @param {import("./keys.js").Signer} signer
 * @param {{ kind: string, raw: Bytes }} recipient
 */
export async function seal(content, header, signer, recipient) {
  const headerBytes = utf8(canonicalJson({ ...header, format: "abaton-sealed/1", compression: "none" }));
  const secret = crypto.getRandomValues(new Uint8Array(32));
  const wrappedKey = await wrap(secret, recipient.kind, recipient.raw, concat(utf8("abaton-seal-1\0"), headerBytes)); // frozen: part of the bytes
  const preamble = concat(utf8("ABATSEAL"), length(headerBytes.length), headerBytes, length(wrappedKey.length), wrappedKey);
  const key = await subtle.importKey("raw", secret, "AES-GCM", false, ["encrypt"]);
  secret.fill(0);
  const associatedData = await sha256(preamble);
  const pieces = [preamble];
  for (let number = 0, offset = 0; offset <= content.length; number++, offset += CHUNK_BYTES) {
    const last = offset + CHUNK_BYTES >= content.length;
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setUint32(7, number);
    iv[11] = last ? 1 : 0;
    const chunk = content.subarray(offset, offset + CHUNK_BYTES);
    const encrypted = new Uint8Array(await subtle.encrypt({ name: "AES-GCM", iv, additionalData: associatedData }, key, chunk));
    pieces.push(length(encrypted.length + (last ? LAST_FLAG : 0)), encrypted);
    if (last) break;
  }
  const envelope = concat(...pieces);
  return concat(envelope, await sign(signer, concat(utf8("abaton-seal-1 signature\0"), await sha256(envelope))));
}
