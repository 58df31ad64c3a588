// Sealing as in docs/sealed-format.md, by the browser's own cryptography: HPKE (RFC 9180, base mode) with X25519, or with
// ML-KEM-768 and X25519 (X-Wing), HKDF-SHA-256 and AES-256-GCM, then chunks of AES-256-GCM, then the sender's signature.
import { canonical, joined, sha256, utf8 } from "./bytes.js";
import { signed } from "./keys.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */

const subtle = crypto.subtle;
const CHUNK = 65536;
const LAST = 2 ** 31;
const KEM = utf8("KEM\x00\x20");
const WING = utf8("\\.//^\\");
const NOTHING = new Uint8Array(0);

/** @param {Uint8Array} key @param {Uint8Array} data @returns {Promise<Bytes>} */
async function hmac(key, data) {
  const usable = key.length ? key : new Uint8Array(32);
  const made = await subtle.importKey("raw", /** @type {Bytes} */ (usable), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await subtle.sign("HMAC", made, /** @type {Bytes} */ (data)));
}

/** @param {Uint8Array} suite @param {Uint8Array} salt @param {string} label @param {Uint8Array} input */
const extracted = (suite, salt, label, input) => hmac(salt, joined(utf8("HPKE-v1"), suite, utf8(label), input));

/** One block is all that is ever needed here. @param {Uint8Array} suite @param {Uint8Array} secret @param {string} label
 * @param {Uint8Array} info @param {number} size */
async function expanded(suite, secret, label, info, size) {
  const about = joined(new Uint8Array([size >> 8, size & 255]), utf8("HPKE-v1"), suite, utf8(label), info);
  return (await hmac(secret, joined(about, new Uint8Array([1])))).slice(0, size);
}

/** A key of ours that is used once, and what it shares with theirs. @param {Bytes} recipient */
async function exchanged(recipient) {
  const once = /** @type {CryptoKeyPair} */ (await subtle.generateKey("X25519", false, ["deriveBits"]));
  const theirs = await subtle.importKey("raw", recipient, "X25519", false, []);
  const shared = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: theirs }, once.privateKey, 256));
  return { mine: new Uint8Array(await subtle.exportKey("raw", once.publicKey)), shared };
}

/** The ways to agree on a secret with the holder of a key: the number in HPKE's registry, and how.
 * @type {Record<string, { number: number[], agreed: (recipient: Bytes) => Promise<{ sent: Bytes, secret: Bytes }> }>} */
const KINDS = {
  x25519: {
    number: [0x00, 0x20],
    async agreed(recipient) {
      const { mine, shared } = await exchanged(recipient);
      const drawn = await extracted(KEM, NOTHING, "eae_prk", shared);
      return { sent: mine, secret: await expanded(KEM, drawn, "shared_secret", joined(mine, recipient), 32) };
    },
  },
  "mlkem768-x25519": {
    number: [0x64, 0x7a],
    async agreed(recipient) {
      const { ml_kem768, sha3_256 } = await import("./lattice.js");
      const ordinary = recipient.slice(-32);
      const { mine, shared } = await exchanged(ordinary);
      const { cipherText, sharedSecret } = ml_kem768.encapsulate(recipient.slice(0, -32));
      return { sent: joined(cipherText, mine), secret: joined(sha3_256(joined(sharedSecret, shared, mine, ordinary, WING))) };
    },
  },
};

/** Whether something can be sealed to a key of a kind. @param {string} kind */
export const canSeal = (kind) => kind in KINDS;

/** Seal a short secret to the holder of a key, in a context.
 * @param {Bytes} secret @param {string} kind @param {Bytes} recipient @param {Uint8Array} info */
export async function wrapped(secret, kind, recipient, info) {
  const way = KINDS[kind];
  if (!way) throw new Error("nothing can be sealed to a key of this kind");
  const suite = joined(utf8("HPKE"), Uint8Array.from([...way.number, 0x00, 0x01, 0x00, 0x02]));
  const agreed = await way.agreed(recipient);
  const context = joined(
    new Uint8Array(1),
    await extracted(suite, NOTHING, "psk_id_hash", NOTHING),
    await extracted(suite, NOTHING, "info_hash", info),
  );
  const root = await extracted(suite, agreed.secret, "secret", NOTHING);
  const key = await subtle.importKey("raw", await expanded(suite, root, "key", context, 32), "AES-GCM", false, ["encrypt"]);
  const iv = await expanded(suite, root, "base_nonce", context, 12);
  return joined(agreed.sent, new Uint8Array(await subtle.encrypt({ name: "AES-GCM", iv }, key, secret)));
}

/** @param {number} value */
function length(value) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
}

/**
 * An envelope around some content, for one recipient.
 * @param {Bytes} content
 * @param {Record<string, string | number>} head everything of the head but its format and compression
 * @param {import("./keys.js").Signer} signer
 * @param {{ kind: string, raw: Bytes }} recipient
 */
export async function sealed(content, head, signer, recipient) {
  const written = utf8(canonical({ ...head, format: "abaton-sealed/1", compression: "none" }));
  const secret = crypto.getRandomValues(new Uint8Array(32));
  const inner = await wrapped(secret, recipient.kind, recipient.raw, joined(utf8("abaton-seal-1\0"), written));
  const opening = joined(utf8("ABATSEAL"), length(written.length), written, length(inner.length), inner);
  const key = await subtle.importKey("raw", secret, "AES-GCM", false, ["encrypt"]);
  secret.fill(0);
  const about = await sha256(opening);
  const pieces = [opening];
  for (let number = 0, at = 0; at <= content.length; number++, at += CHUNK) {
    const last = at + CHUNK >= content.length;
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setUint32(7, number);
    iv[11] = last ? 1 : 0;
    const chunk = content.subarray(at, at + CHUNK);
    const made = new Uint8Array(await subtle.encrypt({ name: "AES-GCM", iv, additionalData: about }, key, chunk));
    pieces.push(length(made.length + (last ? LAST : 0)), made);
    if (last) break;
  }
  const whole = joined(...pieces);
  return joined(whole, await signed(signer, joined(utf8("abaton-seal-1 signature\0"), await sha256(whole))));
}
