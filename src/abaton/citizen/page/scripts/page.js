// The page: steps from the study description to receipt and withdrawal.
import { byId, hide, create, show } from "./dom.js";
import { readSignInResponse, fetchRecords, startSignIn } from "./hospital.js";
import { getJson, RefusedError } from "./intake.js";
import { loadAllStudies, saveStudy, loadStudy } from "./storage.js";
import { newCode, newKeys, pseudonymKey } from "./keys.js";
import { isLink, isEncrypted, fetchLink, readLink, decrypt } from "./links.js";
import { PreviewView } from "./preview.js";
import { Python } from "./python.js";
import { isPermitted, SourceError, joinTexts } from "./sources.js";
import { consentAndSend, consentCopy, enrol, withdrawWithCode, sendEnvelope, withdraw } from "./participation.js";
import { formatDay, drawSummary, drawEligible, drawStatements, drawStudy, tickedStatements } from "./study-view.js";
import { bestLanguage, fill, LANGUAGES, loadTexts } from "./texts.js";

const baseUrl = new URL(".", import.meta.url).href;
const name = decodeURIComponent(location.pathname.replace(/^\/take-part\//, "").replace(/\/(index\.html)?$/, ""));
const STAGES = ["loading", "unpacking", "starting", "ready"];
const MAX_BYTES = 32 * 1024 * 1024;
const today = () => new Date().toISOString().slice(0, 10);

let language = sessionStorage.getItem("language") ?? bestLanguage(navigator.languages);
/** @type {import("./texts.js").Texts} */
let t = {};
/** @type {any} */
let study = null;
/** @type {import("./keys.js").Keys | null} */
let keys = null;
let code = "";
/** @type {PreviewView | null} */
let previewView = null;
let recordCount = 0;
/** @type {import("./links.js").Link | null} */
let link = null;
/** @type {string[]} */
let encryptedFiles = [];
const signInResponse = readSignInResponse();

const python = new Python(baseUrl, (stage) => {
  byId("loading-progress").value = STAGES.indexOf(stage) + 2;
  if (stage === "ready") hide("loading");
  if (stage === "failed") showProblem("failed");
});

/** @param {string} code */
function showProblem(code) {
  byId("problem").textContent = t.problems?.[code] ?? t.problems?.failed ?? "";
  byId("problem").hidden = !code;
  if (code) byId("problem").scrollIntoView({ block: "center" });
}

/** @param {unknown} error */
const showError = (error) => showProblem(error instanceof RefusedError ? (error.reason && t.problems[error.reason] ? error.reason : error.code) : "failed");

async function drawTexts() {
  t = await loadTexts(baseUrl, language);
  document.documentElement.lang = language;
  document.documentElement.dir = t.direction;
  for (const element of document.querySelectorAll("[data-text]")) {
    const key = element.getAttribute("data-text") ?? "";
    if (!(study && key === "heading")) element.textContent = t[key];
  }
  byId("languages").setAttribute("aria-label", t.language);
  byId("languages").replaceChildren(
    ...Object.entries(LANGUAGES).map(([tag, label]) => {
      const button = create("button", { type: "button", lang: tag, "aria-pressed": String(tag === language) }, label);
      button.addEventListener("click", async () => {
        language = tag;
        sessionStorage.setItem("language", tag);
        await drawTexts();
        await drawAll();
      });
      return button;
    }),
  );
}

async function drawAll() {
  if (!study) return;
  drawStudy(study, t, language);
  drawStatements(study, t, updateSendButton);
  if (study.known) hide("code-field");
  if (previewView) {
    previewView = new PreviewView(previewView.preview, t, language);
    previewView.draw();
    drawEligible(await python.callJson("check_eligibility", today()), study, t);
  }
  byId("hospitals").hidden = !study.hospitals.length;
  byId("hospital-list").replaceChildren(
    ...study.hospitals.map((/** @type {import("./hospital.js").Hospital} */ hospital) => {
      const button = create("button", { type: "button", class: "plain" }, hospital.name);
      button.addEventListener("click", () => withFileProblems(async () => location.assign(await startSignIn(hospital, study.resource_types, location.origin + location.pathname, study.connect_origins))));
      return button;
    }),
  );
  await drawMyStudies();
}

/** Return the study's entry in the list of published studies. */
async function publishedStudy() {
  const { studies } = await getJson("/v1/studies");
  return studies.find((/** @type {any} */ entry) => entry.study === name);
}

async function start() {
  await drawTexts();
  const published = await publishedStudy();
  if (!published) return showProblem("no-study");
  const content = await getJson(`/v1/studies/${published.document}`);
  drawSummary(content, t);
  show("study", false);
  study = await python.callJson("open_study", JSON.stringify(content), published.document, today());
  await drawAll();
  const allowed = study.origins.length ? study.origins : [new URL(study.endpoint).origin];
  if (!allowed.includes(location.origin)) return showProblem("other-origin");
  show("withdraw-by-code", false);
  const stored = await loadStudy(name);
  keys = stored?.keys ?? null;
  study.known = Boolean(stored?.copies.enrolment);
  if (study.known) hide("code-field");
  if (stored?.envelope) show("resume", false);
  if (stored?.sent && stored.document !== published.document && !stored.withdrawn) show("changed", false);
  if (!study.open || !study.admission) return showProblem("study-closed");
  show("records", false);
  if (signInResponse) await withFileProblems(async () => addRecords(await fetchRecords(signInResponse, study.hospitals, study.resource_types, study.connect_origins, MAX_BYTES, (pages) => {
    byId("file-status").textContent = fill(t.fetching, { pages });
  })));
  await showEligibility();
}

/** @param {string} problem */
function showFileProblem(problem) {
  byId("file-problem").textContent = t.files[problem] ?? t.sources[problem];
  byId("file-problem").hidden = false;
}

/** Run a step that adds records and show the problem if it fails. @param {() => Promise<unknown>} work */
async function withFileProblems(work) {
  byId("file-problem").hidden = true;
  try {
    await work();
  } catch (error) {
    byId("file-status").textContent = recordCount ? fill(t.records_read, { count: recordCount }) : "";
    if (!(error instanceof SourceError)) throw error;
    byId("passcode-field").hidden &&= !error.code.startsWith("link-passcode");
    showFileProblem(error.code);
  }
}

/** Pass the contents to Python as one file. @param {import("./bytes.js").Bytes[]} contents */
async function addRecords(contents) {
  const answer = await python.callJson("add_file", contents.length === 1 ? contents[0] : await joinTexts(contents));
  if (answer.problem) throw new SourceError(answer.problem);
  recordCount = answer.records;
  byId("file-status").textContent = fill(t.records_read, { count: answer.records });
}

/** Read one file: records, a link, or an encrypted file of a link. @param {File} file */
async function openFile(file) {
  if (file.size > MAX_BYTES) throw new SourceError("too-large");
  const bytes = new Uint8Array(await file.arrayBuffer());
  const start = new TextDecoder().decode(bytes.subarray(0, 64)).trim();
  const text = /^(shlink|https|eyJ)/.test(start) ? new TextDecoder().decode(bytes).trim() : "";
  if (isLink(text)) link = readLink(text, Date.now());
  else if (isEncrypted(text)) encryptedFiles.push(text);
  else await addRecords([bytes]);
}

/** Decrypt the encrypted files with the link; without files, fetch them if the study permits the origin. */
async function openLink() {
  const key = link;
  if (encryptedFiles.length && !key) throw new SourceError("encrypted");
  if (!key) return;
  const files = encryptedFiles;
  encryptedFiles = [];
  if (!files.length && !isPermitted(key.url, study.connect_origins)) throw new SourceError("link-file");
  await addRecords(
    files.length
      ? await Promise.all(files.map((file) => decrypt(file, key.key, MAX_BYTES)))
      : await fetchLink(key, byId("passcode").value, study.connect_origins, MAX_BYTES),
  );
  link = null;
  byId("link").value = byId("passcode").value = "";
}

/** Add the chosen files one by one; a file that cannot be used changes nothing. */
async function addChosenFiles() {
  const files = [...byId("file").files];
  byId("file-problem").hidden = true;
  for (const file of files)
    await openFile(file).catch((error) => {
      if (!(error instanceof SourceError)) throw error;
      showFileProblem(error.code);
    });
  byId("file").value = "";
  if (encryptedFiles.length || link) await withFileProblems(openLink);
  await showEligibility();
}

/** Use the link that was entered. */
async function useLink() {
  await withFileProblems(async () => {
    link = null;
    const text = byId("link").value.trim();
    if (!isLink(text)) throw new SourceError("link-broken");
    link = readLink(text, Date.now());
    await openLink();
  });
  await showEligibility();
}

/** Show whether the citizen is eligible, and the preview. */
async function showEligibility() {
  if (!recordCount) return;
  const eligibility = await python.callJson("check_eligibility", today());
  drawEligible(eligibility, study, t);
  code = keys ? "" : code || (await newCode());
  const currentKeys = (keys ??= await newKeys(code, name, new Date()));
  const secret = study.mechanism === "anonymise" ? crypto.getRandomValues(new Uint8Array(32)) : await pseudonymKey(currentKeys, name);
  const preview = await python.callJson("prepare_records", secret, today());
  if (preview.problem) {
    showFileProblem(preview.problem);
    await python.call("clear_records");
    recordCount = 0;
    byId("file-status").textContent = "";
    return;
  }
  previewView = new PreviewView(preview, t, language);
  previewView.draw();
  show("preview", false);
  show("eligible");
  byId("consent").hidden = !eligibility.eligible || !preview.bytes;
  updateSendButton();
}

function updateSendButton() {
  const hasCode = study.admission !== "code" || byId("code").value.trim() || study.known;
  byId("send").disabled = !(tickedStatements() && hasCode);
}

/** Enrol if necessary, send consents and sealed records. */
async function send() {
  const statements = tickedStatements();
  if (!statements || !keys || !previewView) return;
  byId("send").disabled = true;
  showProblem("");
  hide("records", "eligible", "preview", "consent");
  show("sending");
  try {
    const stored = await loadStudy(name);
    const row = await enrol(stored, keys, study, byId("code").value, byId("build").textContent);
    const content = await python.call("content");
    const consents = await python.callJson("consents", keys.subject, new Date().toISOString());
    await consentAndSend(row, { content, consents, statements, study, sha256: previewView.preview.sha256, values: previewView.preview.released }, progress);
    await showReceipt(row);
  } catch (error) {
    showError(error);
    hide("sending");
    if ((await loadStudy(name))?.envelope) show("resume");
    else {
      for (const id of ["records", "preview", "consent"]) show(id, false);
      updateSendButton();
    }
  }
}

/** @param {number} fraction */
function progress(fraction) {
  byId("sent").value = fraction;
  byId("sent-text").textContent = fill(t.sent_percent, { percent: Math.round(fraction * 100) });
}

/** @param {import("./storage.js").StoredStudy} row */
async function showReceipt(row) {
  await python.call("clear_records");
  hide("sending", "resume", "changed");
  byId("done-text").textContent = fill(t.done_text, { centre: row.centre, day: formatDay(row.sent, language), values: row.values });
  byId("paper").hidden = !code;
  byId("paper-code").textContent = code;
  byId("copy").href = URL.createObjectURL(new Blob([consentCopy(row)], { type: "application/json" }));
  show("done");
  await drawMyStudies();
}

async function resume() {
  showProblem("");
  const row = await loadStudy(name);
  if (!row) return;
  show("sending");
  try {
    await sendEnvelope(row, progress);
    await showReceipt(row);
  } catch (error) {
    hide("sending");
    showError(error);
  }
}

async function drawMyStudies() {
  const rows = (await loadAllStudies()).filter((row) => row.sent);
  byId("mine").hidden = !rows.length;
  byId("mine-list").replaceChildren(
    ...rows.map((row) => {
      const text = row.withdrawn ? t.mine_withdrawn : t.mine_sent;
      const values = { title: row.title, centre: row.centre, values: row.values, sent: formatDay(row.sent, language), until: formatDay(row.until, language), day: formatDay(row.withdrawn, language) };
      const item = create("li", {}, create("h3", {}, row.title), create("p", {}, fill(text, values)));
      const copy = create("a", { class: "button", download: "my-consent.json", href: URL.createObjectURL(new Blob([consentCopy(row)], { type: "application/json" })) }, t.copy);
      const tools = create("p", { class: "tools" }, copy);
      if (!row.withdrawn && row.study === name) {
        const button = create("button", { type: "button", class: "plain", id: "withdraw" }, t.withdraw);
        button.addEventListener("click", () => withdrawFromStudy(row, button));
        tools.append(button);
      }
      item.append(tools);
      return item;
    }),
  );
}

/** @param {import("./storage.js").StoredStudy} row @param {HTMLElement} button */
async function withdrawFromStudy(row, button) {
  if (button.dataset.confirmed !== "true") {
    button.dataset.confirmed = "true";
    button.textContent = t.withdraw_confirm;
    return;
  }
  showProblem("");
  try {
    const deleted = await withdraw(row);
    hide("done", "resume", "changed");
    await drawMyStudies();
    byId("withdraw-status").textContent = fill(t.withdrawn, { records: deleted });
    show("mine");
  } catch (error) {
    showError(error);
  }
}

async function withdrawOnPaper() {
  byId("withdraw-status").textContent = "";
  showProblem("");
  try {
    const deleted = await withdrawWithCode(byId("paper-entry").value, name);
    byId("withdraw-status").textContent = deleted === null ? t.code_wrong : fill(t.withdrawn, { records: deleted });
    const row = await loadStudy(name);
    if (row && deleted !== null) await saveStudy({ ...row, withdrawn: new Date().toISOString(), envelope: null });
    await drawMyStudies();
  } catch (error) {
    showError(error);
  }
}

byId("file").addEventListener("change", () => addChosenFiles().catch(showError));
byId("link-button").addEventListener("click", () => useLink().catch(showError));
byId("only-released").addEventListener("change", () => previewView?.list());
byId("search").addEventListener("input", () => previewView?.list());
byId("code").addEventListener("input", updateSendButton);
byId("send").addEventListener("click", () => send());
byId("resume-button").addEventListener("click", () => resume());
byId("withdraw-button").addEventListener("click", () => withdrawOnPaper());
byId("print").addEventListener("click", () => print());
start().catch(showError);
if ("serviceWorker" in navigator) navigator.serviceWorker.register("/take-part/sw.js", { scope: "/take-part/" }).catch(() => {});
