// Records from a hospital (SMART on FHIR, standalone launch): the citizen signs in and authorises there. The access token is kept
// in memory only until the records are fetched.
import { sha256, utf8 } from "./bytes.js";
import { base64url } from "./links.js";
import { fetchPermitted, isSafe, SourceError } from "./sources.js";

/** @typedef {import("./bytes.js").Bytes} Bytes */
/** @typedef {{ name: string, fhir: string, client: string }} Hospital */
/** @typedef {{ state: string, verifier: string, token: string, redirect: string, hospital: Hospital }} SignIn */

const STORAGE_KEY = "launch";
const PAGE_SIZE = 200;
const MAX_PAGES = 2000;

/** @param {number} size */
const randomText = (size) => base64url(crypto.getRandomValues(new Uint8Array(size)));

/** @param {string} address @param {readonly string[]} permitted @param {number} maxBytes @param {RequestInit} [options] @returns {Promise<any>} */
async function fetchJson(address, permitted, maxBytes, options) {
  const { status, body } = await fetchPermitted(address, permitted, maxBytes, options);
  try {
    return status === 200 ? JSON.parse(new TextDecoder().decode(body)) : null;
  } catch {
    return null;
  }
}

/**
 * Return the sign-in URL. The state for the response is kept in session storage.
 * @param {Hospital} hospital @param {readonly string[]} resourceTypes @param {string} redirect @param {readonly string[]} permitted
 * @returns {Promise<string>}
 */
export async function startSignIn(hospital, resourceTypes, redirect, permitted) {
  const configuration = await fetchJson(`${hospital.fhir}/.well-known/smart-configuration`, permitted, 1 << 20, { headers: { accept: "application/json" } });
  if (!configuration) throw new SourceError("source-unreachable");
  const { authorization_endpoint: sign, token_endpoint: token, code_challenge_methods_supported: methods = [] } = configuration;
  if (!isSafe(sign) || !isSafe(token) || !methods.includes("S256")) throw new SourceError("hospital-unsafe");
  const [state, verifier] = [randomText(32), randomText(32)];
  sessionStorage.setItem(STORAGE_KEY, JSON.stringify({ state, verifier, token, redirect, hospital }));
  const address = new URL(sign);
  const options = {
    response_type: "code", client_id: hospital.client, redirect_uri: redirect, state, aud: hospital.fhir,
    scope: ["launch/patient", ...resourceTypes.map((resourceType) => `patient/${resourceType}.rs`)].join(" "),
    code_challenge: base64url(await sha256(utf8(verifier))), code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(options)) address.searchParams.set(name, value);
  return address.href;
}

/** Return the parameters of a sign-in response and remove them from the URL; null if there are none. */
export function readSignInResponse() {
  const parameters = new URLSearchParams(location.search);
  const text = sessionStorage.getItem(STORAGE_KEY);
  sessionStorage.removeItem(STORAGE_KEY);
  if (!parameters.has("state") && !parameters.has("error")) return null;
  history.replaceState(null, "", location.pathname);
  return { parameters, signIn: /** @type {SignIn | null} */ (text ? JSON.parse(text) : null) };
}

/**
 * Fetch the citizen's records of the resource types that the study reads, page by page.
 * @param {{ parameters: URLSearchParams, signIn: SignIn | null }} signInResponse @param {readonly Hospital[]} known @param {readonly string[]} resourceTypes
 * @param {readonly string[]} permitted @param {number} maxBytes @param {(pages: number) => void} progress @returns {Promise<Bytes[]>}
 */
export async function fetchRecords({ parameters, signIn }, known, resourceTypes, permitted, maxBytes, progress) {
  const hospital = known.find(({ fhir, client }) => fhir === signIn?.hospital.fhir && client === signIn.hospital.client);
  if (!signIn || !hospital || parameters.get("state") !== signIn.state) throw new SourceError("hospital-forged");
  if (parameters.has("error")) throw new SourceError(parameters.get("error") === "access_denied" ? "hospital-denied" : "hospital-failed");
  const body = new URLSearchParams({
    grant_type: "authorization_code", code: parameters.get("code") ?? "", redirect_uri: signIn.redirect,
    client_id: hospital.client, code_verifier: signIn.verifier,
  });
  const grant = await fetchJson(signIn.token, permitted, 1 << 20, { method: "POST", body });
  if (!grant?.access_token || !/^[A-Za-z0-9.-]{1,64}$/.test(grant.patient ?? "")) throw new SourceError("hospital-failed");
  const options = { headers: { authorization: `Bearer ${grant.access_token}`, accept: "application/fhir+json" } };
  const reader = new PageReader(hospital.fhir, options, permitted, maxBytes, progress);
  const everything = `Patient/${grant.patient}/$everything?_type=${resourceTypes.join(",")}&_count=${PAGE_SIZE}`;
  if (await reader.readPages(everything)) return reader.pages;
  for (const resourceType of resourceTypes) {
    const filter = resourceType === "Patient" ? `_id=${grant.patient}` : `patient=${grant.patient}`;
    if (!(await reader.readPages(`${resourceType}?${filter}&_count=${PAGE_SIZE}`)) && resourceType === "Patient") throw new SourceError("hospital-failed");
  }
  return reader.pages;
}

/** Return the URL of the next page. @param {Bytes} body @returns {string | undefined} */
function nextPageUrl(body) {
  try {
    const { link = [] } = JSON.parse(new TextDecoder().decode(body));
    return link.find((/** @type {any} */ entry) => entry.relation === "next")?.url;
  } catch {
    throw new SourceError("hospital-failed");
  }
}

class PageReader {
  /** @param {string} base @param {RequestInit} options @param {readonly string[]} permitted @param {number} remainingBytes @param {(pages: number) => void} progress */
  constructor(base, options, permitted, remainingBytes, progress) {
    this.base = base;
    this.options = options;
    this.permitted = permitted.filter((origin) => origin === new URL(base).origin); // the token is sent to this origin only
    this.remainingBytes = remainingBytes;
    this.progress = progress;
    /** @type {Bytes[]} */
    this.pages = [];
  }

  /** Read a Bundle and its next pages; false if the server does not support the query. @param {string} path */
  async readPages(path) {
    /** @type {string | undefined} */
    let next = `${this.base}/${path}`;
    for (let first = true; next; first = false) {
      const { status, body } = await fetchPermitted(next, this.permitted, this.remainingBytes, this.options);
      if (status !== 200 && first && status < 500) return false;
      if (status !== 200) throw new SourceError("source-unreachable");
      this.remainingBytes -= body.length;
      this.pages.push(body);
      this.progress(this.pages.length);
      // Only the link to the next page is read here; Python parses the records.
      next = nextPageUrl(body);
      if (this.pages.length > MAX_PAGES) throw new SourceError("too-large");
    }
    return true;
  }
}
