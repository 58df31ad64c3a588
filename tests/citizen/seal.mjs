// Seal with the page's scripts under node: a job on stdin, the result as JSON on stdout.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(join(resolve(process.argv[2]), name)).href);
const { base64, fromBase64 } = await load("bytes.js");
const { newCode, newKeys, parseCode, signerOf, recoveryFromCode, signStatement } = await load("keys.js");
const { seal } = await load("seal.js");
const job = JSON.parse(readFileSync(0, "utf8"));
const code = await newCode();
const keys = await newKeys(code, job.header.study, new Date());
const signer = await signerOf(keys);
const envelopes = [];
for (const recipient of job.recipients)
  for (const size of job.sizes) {
    const content = new Uint8Array(size).map((_, i) => (i * 7) % 251);
    const header = { ...job.header, sender: signer.id, recipient: recipient.id, subject: keys.subject };
    envelopes.push(base64(await seal(content, header, signer, { kind: recipient.kind, raw: fromBase64(recipient.public) })));
  }
const recovery = await recoveryFromCode(code.toLowerCase().replaceAll("-", " "), job.header.study);
const order = await signStatement(recovery.signer, "deletion-order", { study: job.header.study, subject: recovery.subject, at: "2026-03-01T12:00:00.000Z" });
const mistyped = await Promise.all([...code].map((char, i) => (char === "-" ? null : parseCode(code.slice(0, i) + (char === "A" ? "B" : "A") + code.slice(i + 1)))));
const { keySet, subject } = keys;
const undetected = mistyped.filter(Boolean).length;
process.stdout.write(JSON.stringify({ envelopes, keySet, recovery: keys.recovery, subject, order, undetected, refused: await exportAttempts(keys) }), () => process.exit(0));

async function exportAttempts(keys) {
  const attempts = [[keys.signing.privateKey, "pkcs8"], [keys.signing.privateKey, "jwk"], [keys.sealing.privateKey, "pkcs8"], [keys.root, "raw"]];
  return Promise.all(attempts.map(([key, format]) => crypto.subtle.exportKey(format, key).then(() => "exported", () => "refused")));
}
