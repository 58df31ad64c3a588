// Taking part and leaving: enrolment, consent, the sealed records, and the order to delete them. What was begun is on the device
// before it is sent, so that it can go on after a lost connection.
import { fromBase64 } from "./bytes.js";
import { ask, json, read, Refusal, tell, upload } from "./intake.js";
import { keep } from "./keep.js";
import { fromPaper, isGenuine, keyId, signerOf, stated } from "./keys.js";
import { canSeal, sealed } from "./seal.js";

/** @typedef {import("./keep.js").Kept} Kept */
/** @typedef {import("./keys.js").Statement} Statement */
/** @typedef {{ content: Uint8Array<ArrayBuffer>, consents: any[], statements: string[], study: any, sha256: string, values: number }} Sending */

/** The centre's keys and limits, with the id of the one that signs and the one to seal to. */
async function centre() {
  const { keys, limits } = /** @type {import("./intake.js").Centre} */ (await read("/v1/centre"));
  const used = keys.keys.filter((key) => !key.until);
  const signing = used.find((key) => key.kind === "ed25519");
  const sealing = used.find((key) => canSeal(key.kind));
  if (!signing || !sealing) throw new Refusal("failed");
  const recipient = { kind: sealing.kind, raw: fromBase64(sealing.public) };
  return {
    rows: keys.keys,
    part: Math.min(limits.part_bytes, 1 << 18),
    id: await keyId("ed25519", fromBase64(signing.public)),
    recipient,
    sealing: await keyId(recipient.kind, recipient.raw),
  };
}

/** A statement that the centre has really signed. @param {Statement} statement @param {string} kind @param {any[]} rows */
async function genuine(statement, kind, rows) {
  if (!(await isGenuine(statement, kind, rows))) throw new Refusal("forged");
  return statement;
}

/**
 * Make the person's key known at the centre, unless it is known already.
 * @param {Kept | undefined} before @param {import("./keys.js").Keys} keys @param {any} study @param {string} code @param {string} page
 * @returns {Promise<Kept>}
 */
export async function enrolled(before, keys, study, code, page) {
  if (before?.copies.enrolment) return { ...before, withdrawn: "" };
  const about = await centre();
  const signer = await signerOf(keys);
  const body = {
    study: study.id, document: study.hash, subject: keys.tag, keys: keys.ring, recovery: keys.recovery,
    code: code.toUpperCase().replace(/[^A-Z2-7]/g, ""), page, at: new Date().toISOString(),
  };
  /** @type {Kept} */
  const row = {
    study: study.id, document: study.hash, title: study.title, centre: study.centre, until: study.kept_until, sent: "",
    sha256: "", values: 0, keys, sequence: 0, page, withdrawn: "", envelope: null, copies: {},
  };
  row.copies.enrolment = await genuine(await tell("/v1/persons", await stated(signer, "person-enrolment", body)), "person-receipt", about.rows);
  await keep(row);
  return row;
}

/** Say yes, and send the records sealed. @param {Kept} row @param {Sending} sending @param {(done: number) => void} progress */
export async function brought(row, sending, progress) {
  const about = await centre();
  const signer = await signerOf(row.keys);
  const receipts = [];
  for (const consent of sending.consents)
    receipts.push(await genuine(await ask(signer, about.id, "POST", "/v1/consents", json(consent)), "consent-receipt", about.rows));
  const head = {
    study: row.study, document: sending.study.hash, sender: signer.id, recipient: about.sealing, sequence: row.sequence + 1,
    subject: row.keys.tag, created: new Date().toISOString(),
  };
  row.envelope = await sealed(sending.content, head, signer, about.recipient);
  row.sequence += 1;
  row.document = sending.study.hash;
  row.title = sending.study.title;
  row.until = sending.study.kept_until;
  row.sha256 = sending.sha256;
  row.values = sending.values;
  Object.assign(row.copies, { consents: sending.consents, statements: sending.statements, text: sending.study.consent, consent_receipts: receipts });
  await keep(row);
  await resumed(row, progress);
}

/** Send what is sealed, from where it stands. @param {Kept} row @param {(done: number) => void} progress */
export async function resumed(row, progress) {
  if (!row.envelope) return;
  const about = await centre();
  const receipt = await upload(await signerOf(row.keys), about.id, row.envelope, about.part, progress);
  row.copies.receipt = await genuine(receipt, "receipt", about.rows);
  row.sent = String(receipt.body.at);
  row.envelope = null;
  row.withdrawn = "";
  await keep(row);
}

/** Have everything deleted at the centre; how many sendings there were. @param {Kept} row */
export async function withdrawn(row) {
  const about = await centre();
  const signer = await signerOf(row.keys);
  const order = await stated(signer, "deletion-order", { study: row.study, subject: row.keys.tag, at: new Date().toISOString() });
  const receipt = await genuine(await ask(signer, about.id, "POST", "/v1/withdrawals", json(order)), "deletion-receipt", about.rows);
  row.withdrawn = String(receipt.body.at);
  row.envelope = null;
  row.copies.deletion = receipt;
  await keep(row);
  return Number(receipt.body.records);
}

/** The same with the code on paper, on whatever device; nothing if the code is mistyped. @param {string} code @param {string} study */
export async function leaveByPaper(code, study) {
  const paper = await fromPaper(code, study);
  if (!paper) return null;
  const about = await centre();
  const order = await stated(paper.signer, "deletion-order", { study, subject: paper.tag, at: new Date().toISOString() });
  const receipt = await genuine(await tell("/v1/persons/withdrawals", order), "deletion-receipt", about.rows);
  return Number(receipt.body.records);
}

/** What a person keeps, as a file: everything that was said and confirmed, and nothing of the records. @param {Kept} row */
export function copyOf(row) {
  const { study, document, title, centre: name, until, sent, sha256, page, withdrawn: left, copies, keys } = row;
  return JSON.stringify({ study, document, title, centre: name, until, sent, sha256, page, withdrawn: left, tag: keys.tag, key: keys.ring.keys[0]?.public, ...copies }, null, 1);
}

