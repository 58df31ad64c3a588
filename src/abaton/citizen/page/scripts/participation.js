// Participation: enrolment, consent, transfer of sealed records, and withdrawal. State is stored on the device before it is sent, so
// that a transfer resumes after a lost connection.
import { fromBase64 } from "./bytes.js";
import { signedRequest, json, getJson, RefusedError, postStatement, upload } from "./intake.js";
import { saveStudy } from "./storage.js";
import { recoveryFromCode, isValidStatement, keyId, signerOf, signStatement } from "./keys.js";
import { canSeal, seal } from "./seal.js";

/** @typedef {import("./storage.js").StoredStudy} StoredStudy */
/** @typedef {import("./keys.js").Statement} Statement */
/** @typedef {{ content: Uint8Array<ArrayBuffer>, consents: any[], statements: string[], study: any, sha256: string, values: number }} Submission */

/** Return the centre's keys and limits, with the ids of its signing and sealing key. */
async function fetchCentre() {
  const { keys, limits } = /** @type {import("./intake.js").Centre} */ (await getJson("/v1/centre"));
  const current = keys.keys.filter((key) => !key.until);
  const signing = current.find((key) => key.kind === "ed25519");
  const sealing = current.find((key) => canSeal(key.kind));
  if (!signing || !sealing) throw new RefusedError("failed");
  const recipient = { kind: sealing.kind, raw: fromBase64(sealing.public) };
  return {
    rows: keys.keys,
    chunkBytes: Math.min(limits.chunk_bytes, 1 << 18),
    id: await keyId("ed25519", fromBase64(signing.public)),
    recipient,
    sealing: await keyId(recipient.kind, recipient.raw),
  };
}

/** Return a statement after verifying the signature of the centre. @param {Statement} statement @param {string} kind @param {any[]} rows */
async function verified(statement, kind, rows) {
  if (!(await isValidStatement(statement, kind, rows))) throw new RefusedError("forged");
  return statement;
}

/**
 * Enrol the citizen's key at the centre unless it is enrolled.
 * @param {StoredStudy | undefined} stored @param {import("./keys.js").Keys} keys @param {any} study @param {string} code @param {string} page
 * @returns {Promise<StoredStudy>}
 */
export async function enrol(stored, keys, study, code, page) {
  if (stored?.copies.enrolment) return { ...stored, withdrawn: "" };
  const centre = await fetchCentre();
  const signer = await signerOf(keys);
  const body = {
    study: study.id, document: study.hash, subject: keys.subject, keys: keys.keySet, recovery: keys.recovery,
    code: code.toUpperCase().replace(/[^A-Z2-7]/g, ""), page, at: new Date().toISOString(),
  };
  /** @type {StoredStudy} */
  const row = {
    study: study.id, document: study.hash, title: study.title, centre: study.centre, until: study.retained_until, sent: "",
    sha256: "", values: 0, keys, sequence: 0, page, withdrawn: "", envelope: null, copies: {},
  };
  row.copies.enrolment = await verified(await postStatement("/v1/citizens", await signStatement(signer, "person-enrolment", body)), "person-receipt", centre.rows);
  await saveStudy(row);
  return row;
}

/** Send the consents and the sealed records. @param {StoredStudy} row @param {Submission} submission @param {(fraction: number) => void} progress */
export async function consentAndSend(row, submission, progress) {
  const centre = await fetchCentre();
  const signer = await signerOf(row.keys);
  const receipts = [];
  for (const consent of submission.consents)
    receipts.push(await verified(await signedRequest(signer, centre.id, "POST", "/v1/consents", json(consent)), "consent-receipt", centre.rows));
  const header = {
    study: row.study, document: submission.study.hash, sender: signer.id, recipient: centre.sealing, sequence: row.sequence + 1,
    subject: row.keys.subject, created: new Date().toISOString(),
  };
  row.envelope = await seal(submission.content, header, signer, centre.recipient);
  row.sequence += 1;
  row.document = submission.study.hash;
  row.title = submission.study.title;
  row.until = submission.study.retained_until;
  row.sha256 = submission.sha256;
  row.values = submission.values;
  Object.assign(row.copies, { consents: submission.consents, statements: submission.statements, text: submission.study.consent, consent_receipts: receipts });
  await saveStudy(row);
  await sendEnvelope(row, progress);
}

/** Upload the sealed envelope, resuming if interrupted. @param {StoredStudy} row @param {(fraction: number) => void} progress */
export async function sendEnvelope(row, progress) {
  if (!row.envelope) return;
  const centre = await fetchCentre();
  const receipt = await upload(await signerOf(row.keys), centre.id, row.envelope, centre.chunkBytes, progress);
  row.copies.receipt = await verified(receipt, "receipt", centre.rows);
  row.sent = String(receipt.body.at);
  row.envelope = null;
  row.withdrawn = "";
  await saveStudy(row);
}

/** Withdraw: have all records deleted at the centre; return the number of deleted envelopes. @param {StoredStudy} row */
export async function withdraw(row) {
  const centre = await fetchCentre();
  const signer = await signerOf(row.keys);
  const order = await signStatement(signer, "deletion-order", { study: row.study, subject: row.keys.subject, at: new Date().toISOString() });
  const receipt = await verified(await signedRequest(signer, centre.id, "POST", "/v1/withdrawals", json(order)), "deletion-receipt", centre.rows);
  row.withdrawn = String(receipt.body.at);
  row.envelope = null;
  row.copies.deletion = receipt;
  await saveStudy(row);
  return Number(receipt.body.records);
}

/** Withdraw with the code on paper, from any device; null if the code is mistyped. @param {string} code @param {string} study */
export async function withdrawWithCode(code, study) {
  const recovery = await recoveryFromCode(code, study);
  if (!recovery) return null;
  const centre = await fetchCentre();
  const order = await signStatement(recovery.signer, "deletion-order", { study, subject: recovery.subject, at: new Date().toISOString() });
  const receipt = await verified(await postStatement("/v1/citizens/withdrawals", order), "deletion-receipt", centre.rows);
  return Number(receipt.body.records);
}

/** Return the citizen's copy of statements and receipts as JSON, without records. @param {StoredStudy} row */
export function consentCopy(row) {
  const { study, document, title, centre: name, until, sent, sha256, page, withdrawn: withdrawnAt, copies, keys } = row;
  return JSON.stringify({ study, document, title, centre: name, until, sent, sha256, page, withdrawn: withdrawnAt, subject: keys.subject, key: keys.keySet.keys[0]?.public, ...copies }, null, 1);
}

