// Seals with the page's own scripts, under node: a job on stdin, one envelope after the other in base64 on stdout.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const here = (name) => import(pathToFileURL(join(resolve(process.argv[2]), name)).href);
const { base64, fromBase64 } = await here("bytes.js");
const { newCode, newKeys, readCode, signerOf, fromPaper, stated } = await here("keys.js");
const { sealed } = await here("seal.js");
const job = JSON.parse(readFileSync(0, "utf8"));
const code = await newCode();
const keys = await newKeys(code, job.head.study, new Date());
const signer = await signerOf(keys);
const envelopes = [];
for (const recipient of job.recipients)
  for (const size of job.sizes) {
    const content = new Uint8Array(size).map((_, i) => (i * 7) % 251);
    const head = { ...job.head, sender: signer.id, recipient: recipient.id, subject: keys.tag };
    envelopes.push(base64(await sealed(content, head, signer, { kind: recipient.kind, raw: fromBase64(recipient.public) })));
  }
const paper = await fromPaper(code.toLowerCase().replaceAll("-", " "), job.head.study);
const order = await stated(paper.signer, "deletion-order", { study: job.head.study, subject: paper.tag, at: "2026-03-01T12:00:00.000Z" });
const slips = await Promise.all([...code].map((sign, i) => (sign === "-" ? null : readCode(code.slice(0, i) + (sign === "A" ? "B" : "A") + code.slice(i + 1)))));
process.stdout.write(JSON.stringify({ envelopes, ring: keys.ring, recovery: keys.recovery, tag: keys.tag, order, slips: slips.filter(Boolean).length, refused: await refusals(keys) }), () => process.exit(0));

async function refusals(keys) {
  const tries = [[keys.signing.privateKey, "pkcs8"], [keys.signing.privateKey, "jwk"], [keys.sealing.privateKey, "pkcs8"], [keys.root, "raw"]];
  return Promise.all(tries.map(([key, form]) => crypto.subtle.exportKey(form, key).then(() => "taken out", () => "refused")));
}
