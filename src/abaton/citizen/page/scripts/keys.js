// A person's keys for one study. The key that signs is made by the browser and cannot be taken out of it. Everything else
// follows from the code on paper: the person's tag, the pseudonyms, and a key that can withdraw and nothing else.
import { base32, base64, canonical, fromBase32, fromBase64, joined, sha256, utf8 } from "./bytes.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */
/** @typedef {{ kind: string, public: string, since: string, until: string }} KeyRow */
/** @typedef {{ format: string, kind: string, body: Record<string, unknown>, signer: string, signature: string }} Statement */
/** @typedef {{ id: string, key: CryptoKey }} Signer */
/** @typedef {{ signing: CryptoKeyPair, sealing: CryptoKeyPair, root: CryptoKey, tag: string, since: string,
 *   ring: { format: string, name: string, keys: KeyRow[], rotations: never[] }, recovery: KeyRow }} Keys */

const subtle = crypto.subtle;
const SEED = fromBase64("MC4CAQAwBQYDK2VwBCIEIA=="); // what stands before 32 bytes to make them a private Ed25519 key
const CODE_BYTES = 16;

/** The id of a key: its kind and 130 bits of its fingerprint. @param {string} kind @param {Uint8Array} raw */
export async function keyId(kind, raw) {
  return `${kind}:${base32((await sha256(joined(utf8(kind), new Uint8Array(1), raw))).subarray(0, 20)).slice(0, 26)}`;
}

/** A new code for paper: 26 letters and digits and four that find slips, in groups of five. */
export async function newCode() {
  return written(crypto.getRandomValues(new Uint8Array(CODE_BYTES)));
}

/** @param {Uint8Array} secret */
async function written(secret) {
  const text = base32(secret);
  const check = base32((await sha256(secret)).subarray(0, 3)).slice(0, 4);
  return (text + check).replace(/(.{5})(?=.)/g, "$1-");
}

/** The secret of a code as somebody typed it, or nothing if it was mistyped. @param {string} code */
export async function readCode(code) {
  const plain = code.toUpperCase().replace(/[^A-Z0-9]/g, "").replace(/0/g, "O").replace(/1/g, "I");
  const secret = fromBase32(plain.slice(0, 26))?.slice(0, CODE_BYTES);
  if (!secret || plain.length !== 30 || (await written(secret)).replaceAll("-", "") !== plain) return null;
  return secret;
}

/** @param {Bytes} secret */
const rootOf = (secret) => subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);

/** Bytes that follow from the code, for one study and one purpose.
 * @param {CryptoKey} root @param {string} study @param {string} purpose @param {number} size @returns {Promise<Bytes>} */
async function derived(root, study, purpose, size) {
  const how = { name: "HKDF", hash: "SHA-256", salt: utf8(`abaton-person-1\0${study}`), info: utf8(purpose) };
  return new Uint8Array(await subtle.deriveBits(how, root, size * 8));
}

/** @param {CryptoKey} root @param {string} study */
const tagOf = async (root, study) => base32(await derived(root, study, "subject", 20)).slice(0, 26);

/** The secret from which the person's pseudonyms in a study are made. @param {Keys} keys @param {string} study */
export const pseudonymKey = (keys, study) => derived(keys.root, study, "pseudonyms", 32);

/** The key on paper, as the browser holds it. @param {CryptoKey} root @param {string} study @returns {Promise<Signer & { raw: Bytes }>} */
async function paperKey(root, study) {
  const seed = joined(SEED, await derived(root, study, "withdrawal", 32));
  const open = await subtle.importKey("pkcs8", seed, "Ed25519", true, ["sign"]);
  const jwk = await subtle.exportKey("jwk", open);
  const raw = fromBase64((jwk.x ?? "").replaceAll("-", "+").replaceAll("_", "/"));
  const key = await subtle.importKey("pkcs8", seed, "Ed25519", false, ["sign"]);
  return { id: await keyId("ed25519", raw), key, raw };
}

/** Who speaks when only the code on paper is there. @param {string} code @param {string} study */
export async function fromPaper(code, study) {
  const secret = await readCode(code);
  if (!secret) return null;
  const root = await rootOf(secret);
  return { tag: await tagOf(root, study), signer: /** @type {Signer} */ (await paperKey(root, study)) };
}

/** @param {CryptoKey} key @returns {Promise<Bytes>} */
const rawOf = async (key) => new Uint8Array(await subtle.exportKey("raw", key));

/** New keys for a study. @param {string} code @param {string} study @param {Date} now @returns {Promise<Keys>} */
export async function newKeys(code, study, now) {
  const secret = await readCode(code);
  if (!secret) throw new Error("the code is not one of ours");
  const root = await rootOf(secret);
  const signing = /** @type {CryptoKeyPair} */ (await subtle.generateKey("Ed25519", false, ["sign", "verify"]));
  const sealing = /** @type {CryptoKeyPair} */ (await subtle.generateKey("X25519", false, ["deriveBits"]));
  const tag = await tagOf(root, study);
  const since = now.toISOString();
  const row = (/** @type {string} */ kind, /** @type {Uint8Array} */ raw) => ({ kind, public: base64(raw), since, until: "" });
  const paper = await paperKey(root, study);
  return {
    signing, sealing, root, tag, since,
    ring: {
      format: "abaton-keys/1",
      name: `person/${tag}`,
      keys: [row("ed25519", await rawOf(signing.publicKey)), row("x25519", await rawOf(sealing.publicKey))],
      rotations: [],
    },
    recovery: row("ed25519", paper.raw),
  };
}

/** The person's signing key and its id. @param {Keys} keys @returns {Promise<Signer>} */
export async function signerOf(keys) {
  return { id: await keyId("ed25519", await rawOf(keys.signing.publicKey)), key: keys.signing.privateKey };
}

/** @param {Signer} signer @param {Uint8Array} data @returns {Promise<Bytes>} */
export const signed = async (signer, data) =>
  new Uint8Array(await subtle.sign("Ed25519", signer.key, /** @type {Bytes} */ (data)));

/** A signed statement. @param {Signer} signer @param {string} kind @param {Record<string, unknown>} body @returns {Promise<Statement>} */
export async function stated(signer, kind, body) {
  const unsigned = { format: "abaton-statement/1", kind, body, signer: signer.id };
  return { ...unsigned, signature: base64(await signed(signer, joined(utf8("abaton-statement-1\0"), utf8(canonical(unsigned))))) };
}

/** Whether a statement of a kind was signed by one of somebody's keys. @param {Statement} statement @param {string} kind @param {KeyRow[]} rows */
export async function isGenuine(statement, kind, rows) {
  const { signature, ...unsigned } = statement;
  for (const row of rows) {
    const raw = fromBase64(row.public);
    if (row.kind !== "ed25519" || statement.kind !== kind || (await keyId(row.kind, raw)) !== statement.signer) continue;
    const key = await subtle.importKey("raw", raw, "Ed25519", true, ["verify"]);
    const data = joined(utf8("abaton-statement-1\0"), utf8(canonical(unsigned)));
    return subtle.verify("Ed25519", key, fromBase64(signature), data);
  }
  return false;
}
