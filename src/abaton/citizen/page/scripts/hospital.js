// Fetching your own records from a hospital (SMART on FHIR, standalone launch): the person signs in there and says yes there.
// What the hospital hands out for that is in this window's memory alone, and is gone when the records are here.
import { sha256, utf8 } from "./bytes.js";
import { base64url } from "./links.js";
import { fetched, isSafe, Problem } from "./sources.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */
/** @typedef {{ name: string, fhir: string, client: string }} Hospital */
/** @typedef {{ state: string, verifier: string, token: string, redirect: string, hospital: Hospital }} Begun */

const BEGUN = "launch";
const AT_ONCE = 200;
const MOST_PAGES = 2000;

/** @param {number} size */
const drawn = (size) => base64url(crypto.getRandomValues(new Uint8Array(size)));

/** @param {string} address @param {readonly string[]} permitted @param {number} most @param {RequestInit} [asked] @returns {Promise<any>} */
async function told(address, permitted, most, asked) {
  const { status, body } = await fetched(address, permitted, most, asked);
  try {
    return status === 200 ? JSON.parse(new TextDecoder().decode(body)) : null;
  } catch {
    return null;
  }
}

/**
 * Where the person goes to sign in. What is needed on the way back waits in this window's session until then.
 * @param {Hospital} hospital @param {readonly string[]} kinds @param {string} redirect @param {readonly string[]} permitted
 * @returns {Promise<string>}
 */
export async function setOut(hospital, kinds, redirect, permitted) {
  const about = await told(`${hospital.fhir}/.well-known/smart-configuration`, permitted, 1 << 20, { headers: { accept: "application/json" } });
  if (!about) throw new Problem("source-away");
  const { authorization_endpoint: sign, token_endpoint: token, code_challenge_methods_supported: ways = [] } = about;
  if (!isSafe(sign) || !isSafe(token) || !ways.includes("S256")) throw new Problem("hospital-unsafe");
  const [state, verifier] = [drawn(32), drawn(32)];
  sessionStorage.setItem(BEGUN, JSON.stringify({ state, verifier, token, redirect, hospital }));
  const address = new URL(sign);
  const asked = {
    response_type: "code", client_id: hospital.client, redirect_uri: redirect, state, aud: hospital.fhir,
    scope: ["launch/patient", ...kinds.map((kind) => `patient/${kind}.rs`)].join(" "),
    code_challenge: base64url(await sha256(utf8(verifier))), code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(asked)) address.searchParams.set(name, value);
  return address.href;
}

/** What the hospital sent along on the way back, taken out of the address at once; nothing if nobody came back. */
export function cameBack() {
  const told = new URLSearchParams(location.search);
  const text = sessionStorage.getItem(BEGUN);
  sessionStorage.removeItem(BEGUN);
  if (!told.has("state") && !told.has("error")) return null;
  history.replaceState(null, "", location.pathname);
  return { told, begun: /** @type {Begun | null} */ (text ? JSON.parse(text) : null) };
}

/**
 * Fetch the person's records: everything of the kinds that the study reads, page by page.
 * @param {{ told: URLSearchParams, begun: Begun | null }} back @param {readonly Hospital[]} known @param {readonly string[]} kinds
 * @param {readonly string[]} permitted @param {number} most @param {(pages: number) => void} progress @returns {Promise<Bytes[]>}
 */
export async function records({ told: answer, begun }, known, kinds, permitted, most, progress) {
  const hospital = known.find(({ fhir, client }) => fhir === begun?.hospital.fhir && client === begun.hospital.client);
  if (!begun || !hospital || answer.get("state") !== begun.state) throw new Problem("hospital-forged");
  if (answer.has("error")) throw new Problem(answer.get("error") === "access_denied" ? "hospital-no" : "hospital-failed");
  const body = new URLSearchParams({
    grant_type: "authorization_code", code: answer.get("code") ?? "", redirect_uri: begun.redirect,
    client_id: hospital.client, code_verifier: begun.verifier,
  });
  const given = await told(begun.token, permitted, 1 << 20, { method: "POST", body });
  if (!given?.access_token || !/^[A-Za-z0-9.-]{1,64}$/.test(given.patient ?? "")) throw new Problem("hospital-failed");
  const asked = { headers: { authorization: `Bearer ${given.access_token}`, accept: "application/fhir+json" } };
  const reading = new Reading(hospital.fhir, asked, permitted, most, progress);
  const all = `Patient/${given.patient}/$everything?_type=${kinds.join(",")}&_count=${AT_ONCE}`;
  if (await reading.follow(all)) return reading.pages;
  for (const kind of kinds) {
    const whose = kind === "Patient" ? `_id=${given.patient}` : `patient=${given.patient}`;
    if (!(await reading.follow(`${kind}?${whose}&_count=${AT_ONCE}`)) && kind === "Patient") throw new Problem("hospital-failed");
  }
  return reading.pages;
}

/** The address of the page that follows. @param {Bytes} body @returns {string | undefined} */
function nextOf(body) {
  try {
    const { link = [] } = JSON.parse(new TextDecoder().decode(body));
    return link.find((/** @type {any} */ each) => each.relation === "next")?.url;
  } catch {
    throw new Problem("hospital-failed");
  }
}

class Reading {
  /** @param {string} base @param {RequestInit} asked @param {readonly string[]} permitted @param {number} room @param {(pages: number) => void} progress */
  constructor(base, asked, permitted, room, progress) {
    this.base = base;
    this.asked = asked;
    this.permitted = permitted.filter((origin) => origin === new URL(base).origin); // the token goes nowhere else
    this.room = room;
    this.progress = progress;
    /** @type {Bytes[]} */
    this.pages = [];
  }

  /** Read a Bundle and those that follow it; false if the server does not answer this question. @param {string} path */
  async follow(path) {
    /** @type {string | undefined} */
    let next = `${this.base}/${path}`;
    for (let first = true; next; first = false) {
      const { status, body } = await fetched(next, this.permitted, this.room, this.asked);
      if (status !== 200 && first && status < 500) return false;
      if (status !== 200) throw new Problem("source-away");
      this.room -= body.length;
      this.pages.push(body);
      this.progress(this.pages.length);
      // Only where the next page is is read here; the records themselves are read by Python.
      next = nextOf(body);
      if (this.pages.length > MOST_PAGES) throw new Problem("too-large");
    }
    return true;
  }
}
