// A citizen's keys for one study. The browser generates the signing key, which is not extractable. Everything else is derived from
// the code on paper: the registry pseudonym, the pseudonym key, and the recovery key, which can only order the deletion.
import { base32, base64, canonicalJson, fromBase32, fromBase64, concat, sha256, utf8 } from "./bytes.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */
/** @typedef {{ kind: string, public: string, since: string, until: string }} KeyRow */
/** @typedef {{ format: string, kind: string, body: Record<string, unknown>, signer: string, signature: string }} Statement */
/** @typedef {{ id: string, key: CryptoKey }} Signer */
/** @typedef {{ signing: CryptoKeyPair, sealing: CryptoKeyPair, root: CryptoKey, subject: string, since: string,
 *   keySet: { format: string, name: string, keys: KeyRow[], rotations: never[] }, recovery: KeyRow }} Keys */

const subtle = crypto.subtle;
const SEED = fromBase64("MC4CAQAwBQYDK2VwBCIEIA=="); // PKCS #8 prefix of a 32-byte Ed25519 seed
const CODE_BYTES = 16;

/** Return the id of a key: its kind and 130 bits of SHA-256. @param {string} kind @param {Uint8Array} raw */
export async function keyId(kind, raw) {
  return `${kind}:${base32((await sha256(concat(utf8(kind), new Uint8Array(1), raw))).subarray(0, 20)).slice(0, 26)}`;
}

/** Return a new code for paper: 26 characters and 4 check characters, in groups of five. */
export async function newCode() {
  return formatCode(crypto.getRandomValues(new Uint8Array(CODE_BYTES)));
}

/** @param {Uint8Array} secret */
async function formatCode(secret) {
  const text = base32(secret);
  const check = base32((await sha256(secret)).subarray(0, 3)).slice(0, 4);
  return (text + check).replace(/(.{5})(?=.)/g, "$1-");
}

/** Return the secret of a typed code; null if it is mistyped. @param {string} code */
export async function parseCode(code) {
  const normalised = code.toUpperCase().replace(/[^A-Z0-9]/g, "").replace(/0/g, "O").replace(/1/g, "I");
  const secret = fromBase32(normalised.slice(0, 26))?.slice(0, CODE_BYTES);
  if (!secret || normalised.length !== 30 || (await formatCode(secret)).replaceAll("-", "") !== normalised) return null;
  return secret;
}

/** @param {Bytes} secret */
const importRoot = (secret) => subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);

/** Derive bytes from the code for one study and purpose.
 * @param {CryptoKey} root @param {string} study @param {string} purpose @param {number} size @returns {Promise<Bytes>} */
async function derive(root, study, purpose, size) {
  const parameters = { name: "HKDF", hash: "SHA-256", salt: utf8(`abaton-person-1\0${study}`), info: utf8(purpose) }; // frozen: part of the bytes
  return new Uint8Array(await subtle.deriveBits(parameters, root, size * 8));
}

/** @param {CryptoKey} root @param {string} study */
const subjectPseudonym = async (root, study) => base32(await derive(root, study, "subject", 20)).slice(0, 26);

/** Derive the pseudonym key of a study. @param {Keys} keys @param {string} study */
export const pseudonymKey = (keys, study) => derive(keys.root, study, "pseudonyms", 32);

/** Derive the recovery key. @param {CryptoKey} root @param {string} study @returns {Promise<Signer & { raw: Bytes }>} */
async function recoveryKey(root, study) {
  const seed = concat(SEED, await derive(root, study, "withdrawal", 32));
  const open = await subtle.importKey("pkcs8", seed, "Ed25519", true, ["sign"]);
  const jwk = await subtle.exportKey("jwk", open);
  const raw = fromBase64((jwk.x ?? "").replaceAll("-", "+").replaceAll("_", "/"));
  const key = await subtle.importKey("pkcs8", seed, "Ed25519", false, ["sign"]);
  return { id: await keyId("ed25519", raw), key, raw };
}

/** Return pseudonym and recovery key of a code; null if it is mistyped. @param {string} code @param {string} study */
export async function recoveryFromCode(code, study) {
  const secret = await parseCode(code);
  if (!secret) return null;
  const root = await importRoot(secret);
  return { subject: await subjectPseudonym(root, study), signer: /** @type {Signer} */ (await recoveryKey(root, study)) };
}

/** @param {CryptoKey} key @returns {Promise<Bytes>} */
const exportRaw = async (key) => new Uint8Array(await subtle.exportKey("raw", key));

/** Create the keys for a study. @param {string} code @param {string} study @param {Date} now @returns {Promise<Keys>} */
export async function newKeys(code, study, now) {
  const secret = await parseCode(code);
  if (!secret) throw new Error("the code is invalid");
  const root = await importRoot(secret);
  const signing = /** @type {CryptoKeyPair} */ (await subtle.generateKey("Ed25519", false, ["sign", "verify"]));
  const sealing = /** @type {CryptoKeyPair} */ (await subtle.generateKey("X25519", false, ["deriveBits"]));
  const subject = await subjectPseudonym(root, study);
  const since = now.toISOString();
  const row = (/** @type {string} */ kind, /** @type {Uint8Array} */ raw) => ({ kind, public: base64(raw), since, until: "" });
  const recovery = await recoveryKey(root, study);
  return {
    signing, sealing, root, subject, since,
    keySet: {
      format: "abaton-keys/1",
      name: `person/${subject}`, // frozen: part of the bytes
      keys: [row("ed25519", await exportRaw(signing.publicKey)), row("x25519", await exportRaw(sealing.publicKey))],
      rotations: [],
    },
    recovery: row("ed25519", recovery.raw),
  };
}

/** Return the signing key and its id. @param {Keys} keys @returns {Promise<Signer>} */
export async function signerOf(keys) {
  return { id: await keyId("ed25519", await exportRaw(keys.signing.publicKey)), key: keys.signing.privateKey };
}

/** @param {Signer} signer @param {Uint8Array} data @returns {Promise<Bytes>} */
export const sign = async (signer, data) =>
  new Uint8Array(await subtle.sign("Ed25519", signer.key, /** @type {Bytes} */ (data)));

/** Sign a statement. @param {Signer} signer @param {string} kind @param {Record<string, unknown>} body @returns {Promise<Statement>} */
export async function signStatement(signer, kind, body) {
  const unsigned = { format: "abaton-statement/1", kind, body, signer: signer.id };
  return { ...unsigned, signature: base64(await sign(signer, concat(utf8("abaton-statement-1\0"), utf8(canonicalJson(unsigned))))) };
}

/** Return whether a statement has the expected kind and a valid signature by one of the keys. @param {Statement} statement @param {string} kind @param {KeyRow[]} rows */
export async function isValidStatement(statement, kind, rows) {
  const { signature, ...unsigned } = statement;
  for (const row of rows) {
    const raw = fromBase64(row.public);
    if (row.kind !== "ed25519" || statement.kind !== kind || (await keyId(row.kind, raw)) !== statement.signer) continue;
    const key = await subtle.importKey("raw", raw, "Ed25519", true, ["verify"]);
    const data = concat(utf8("abaton-statement-1\0"), utf8(canonicalJson(unsigned)));
    return subtle.verify("Ed25519", key, fromBase64(signature), data);
  }
  return false;
}
