// The page from the first word to the last receipt.
import { by, hide, made, show } from "./dom.js";
import { cameBack, records, setOut } from "./hospital.js";
import { read, Refusal } from "./intake.js";
import { everything, keep, kept } from "./keep.js";
import { newCode, newKeys, pseudonymKey } from "./keys.js";
import { isLink, isLocked, linked, readLink, unlocked } from "./links.js";
import { Previewing } from "./preview.js";
import { Python } from "./python.js";
import { isPermitted, Problem, sequence } from "./sources.js";
import { brought, copyOf, enrolled, leaveByPaper, resumed, withdrawn } from "./taking-part.js";
import { dayText, drawEarly, drawEligible, drawStatements, drawStudy, ticked } from "./telling.js";
import { bestLanguage, filled, LANGUAGES, texts } from "./texts.js";

const place = new URL(".", import.meta.url).href;
const name = decodeURIComponent(location.pathname.replace(/^\/take-part\//, "").replace(/\/(index\.html)?$/, ""));
const STAGES = ["loading", "unpacking", "starting", "ready"];
const MOST_BYTES = 32 * 1024 * 1024;
const today = () => new Date().toISOString().slice(0, 10);

let language = sessionStorage.getItem("language") ?? bestLanguage(navigator.languages);
/** @type {import("./texts.js").Texts} */
let t = {};
/** @type {any} */
let study = null;
/** @type {import("./keys.js").Keys | null} */
let keys = null;
let code = "";
/** @type {Previewing | null} */
let previewing = null;
let read_so_far = 0;
/** @type {import("./links.js").Link | null} */
let link = null;
/** @type {string[]} */
let locked = [];
const back = cameBack();

const python = new Python(place, (stage) => {
  by("ready").value = STAGES.indexOf(stage) + 2;
  if (stage === "ready") hide("getting-ready");
  if (stage === "failed") trouble("failed");
});

/** @param {string} code */
function trouble(code) {
  by("problem").textContent = t.problems?.[code] ?? t.problems?.failed ?? "";
  by("problem").hidden = !code;
  if (code) by("problem").scrollIntoView({ block: "center" });
}

/** @param {unknown} error */
const told = (error) => trouble(error instanceof Refusal ? (error.reason && t.problems[error.reason] ? error.reason : error.code) : "failed");

async function drawWords() {
  t = await texts(place, language);
  document.documentElement.lang = language;
  document.documentElement.dir = t.direction;
  for (const element of document.querySelectorAll("[data-text]")) {
    const key = element.getAttribute("data-text") ?? "";
    if (!(study && key === "heading")) element.textContent = t[key];
  }
  by("languages").setAttribute("aria-label", t.language);
  by("languages").replaceChildren(
    ...Object.entries(LANGUAGES).map(([each, called]) => {
      const button = made("button", { type: "button", lang: each, "aria-pressed": String(each === language) }, called);
      button.addEventListener("click", async () => {
        language = each;
        sessionStorage.setItem("language", each);
        await drawWords();
        await drawAll();
      });
      return button;
    }),
  );
}

async function drawAll() {
  if (!study) return;
  drawStudy(study, t, language);
  drawStatements(study, t, ready);
  if (study.known) hide("code-field");
  if (previewing) {
    previewing = new Previewing(previewing.preview, t, language);
    previewing.draw();
    drawEligible(await python.told("eligible", today()), study, t);
  }
  by("hospitals").hidden = !study.hospitals.length;
  by("hospital-list").replaceChildren(
    ...study.hospitals.map((/** @type {import("./hospital.js").Hospital} */ hospital) => {
      const button = made("button", { type: "button", class: "plain" }, hospital.name);
      button.addEventListener("click", () => fetching(async () => location.assign(await setOut(hospital, study.kinds, location.origin + location.pathname, study.reached))));
      return button;
    }),
  );
  await drawMine();
}

/** The study's line in the list of published ones. */
async function line() {
  const { studies } = await read("/v1/studies");
  return studies.find((/** @type {any} */ each) => each.study === name);
}

async function begin() {
  await drawWords();
  const found = await line();
  if (!found) return trouble("no-study");
  const content = await read(`/v1/studies/${found.document}`);
  drawEarly(content, t);
  show("study", false);
  study = await python.told("open_study", JSON.stringify(content), found.document, today());
  await drawAll();
  const allowed = study.origins.length ? study.origins : [new URL(study.endpoint).origin];
  if (!allowed.includes(location.origin)) return trouble("other-origin");
  show("leave", false);
  const before = await kept(name);
  keys = before?.keys ?? null;
  study.known = Boolean(before?.copies.enrolment);
  if (study.known) hide("code-field");
  if (before?.envelope) show("resume", false);
  if (before?.sent && before.document !== found.document && !before.withdrawn) show("changed", false);
  if (!study.open || !study.admission) return trouble("study-closed");
  show("records", false);
  if (back) await fetching(async () => taken(await records(back, study.hospitals, study.kinds, study.reached, MOST_BYTES, (pages) => {
    by("file-taken").textContent = filled(t.fetching, { pages });
  })));
  await judged();
}

/** @param {string} problem */
function doubted(problem) {
  by("file-problem").textContent = t.files[problem] ?? t.sources[problem];
  by("file-problem").hidden = false;
}

/** Do something that may come to records, and tell in plain words why if it does not. @param {() => Promise<unknown>} work */
async function fetching(work) {
  by("file-problem").hidden = true;
  try {
    await work();
  } catch (error) {
    by("file-taken").textContent = read_so_far ? filled(t.records_taken, { number: read_so_far }) : "";
    if (!(error instanceof Problem)) throw error;
    by("passcode-field").hidden &&= !error.code.startsWith("link-passcode");
    doubted(error.code);
  }
}

/** Give what was read to Python, as one file. @param {import("./bytes.js").Bytes[]} texts */
async function taken(texts) {
  const answer = await python.told("pick", texts.length === 1 ? texts[0] : await sequence(texts));
  if (answer.problem) throw new Problem(answer.problem);
  read_so_far = answer.records;
  by("file-taken").textContent = filled(t.records_taken, { number: answer.records });
}

/** One file: records, a link, or something that a link unlocks. @param {File} file */
async function opened(file) {
  if (file.size > MOST_BYTES) throw new Problem("too-large");
  const bytes = new Uint8Array(await file.arrayBuffer());
  const start = new TextDecoder().decode(bytes.subarray(0, 64)).trim();
  const text = /^(shlink|https|eyJ)/.test(start) ? new TextDecoder().decode(bytes).trim() : "";
  if (isLink(text)) link = readLink(text, Date.now());
  else if (isLocked(text)) locked.push(text);
  else await taken([bytes]);
}

/** Unlock what a link and locked files hold, if both are here; without files, fetch them from where the study permits. */
async function unlock() {
  const key = link;
  if (locked.length && !key) throw new Problem("encrypted");
  if (!key) return;
  const files = locked;
  locked = [];
  if (!files.length && !isPermitted(key.url, study.reached)) throw new Problem("link-file");
  await taken(
    files.length
      ? await Promise.all(files.map((each) => unlocked(each, key.key, MOST_BYTES)))
      : await linked(key, by("passcode").value, study.reached, MOST_BYTES),
  );
  link = null;
  by("link").value = by("passcode").value = "";
}

/** Take the files that were picked, one after the other; one that cannot be used changes nothing. */
async function picked() {
  const files = [...by("file").files];
  by("file-problem").hidden = true;
  for (const file of files)
    await opened(file).catch((error) => {
      if (!(error instanceof Problem)) throw error;
      doubted(error.code);
    });
  by("file").value = "";
  if (locked.length || link) await fetching(unlock);
  await judged();
}

/** Take a link that was typed or pasted. */
async function pasted() {
  await fetching(async () => {
    link = null;
    const text = by("link").value.trim();
    if (!isLink(text)) throw new Problem("link-broken");
    link = readLink(text, Date.now());
    await unlock();
  });
  await judged();
}

/** Whether the person may take part, and what would leave. */
async function judged() {
  if (!read_so_far) return;
  const verdict = await python.told("eligible", today());
  drawEligible(verdict, study, t);
  code = keys ? "" : code || (await newCode());
  const own = (keys ??= await newKeys(code, name, new Date()));
  const secret = study.mechanism === "anonymise" ? crypto.getRandomValues(new Uint8Array(32)) : await pseudonymKey(own, name);
  const made = await python.told("prepare", secret, today());
  if (made.problem) {
    doubted(made.problem);
    await python.ask("forget");
    read_so_far = 0;
    by("file-taken").textContent = "";
    return;
  }
  previewing = new Previewing(made, t, language);
  previewing.draw();
  show("preview", false);
  show("eligible");
  by("consent").hidden = !verdict.eligible || !made.bytes;
  ready();
}

function ready() {
  const enough = study.admission !== "code" || by("code").value.trim() || study.known;
  by("send").disabled = !(ticked() && enough);
}

/** Enrol if need be, say yes, seal, send. */
async function send() {
  const statements = ticked();
  if (!statements || !keys || !previewing) return;
  by("send").disabled = true;
  trouble("");
  hide("records", "eligible", "preview", "consent");
  show("sending");
  try {
    const before = await kept(name);
    const row = await enrolled(before, keys, study, by("code").value, by("build").textContent);
    const content = await python.ask("content");
    const consents = await python.told("consents", keys.tag, new Date().toISOString());
    await brought(row, { content, consents, statements, study, sha256: previewing.preview.sha256, values: previewing.preview.leave }, progress);
    await finished(row);
  } catch (error) {
    told(error);
    hide("sending");
    if ((await kept(name))?.envelope) show("resume");
    else {
      for (const id of ["records", "preview", "consent"]) show(id, false);
      ready();
    }
  }
}

/** @param {number} done */
function progress(done) {
  by("sent").value = done;
  by("sent-text").textContent = filled(t.sent_part, { percent: Math.round(done * 100) });
}

/** @param {import("./keep.js").Kept} row */
async function finished(row) {
  await python.ask("forget");
  hide("sending", "resume", "changed");
  by("done-text").textContent = filled(t.done_text, { centre: row.centre, day: dayText(row.sent, language), values: row.values });
  by("paper").hidden = !code;
  by("paper-code").textContent = code;
  by("copy").href = URL.createObjectURL(new Blob([copyOf(row)], { type: "application/json" }));
  show("done");
  await drawMine();
}

async function resume() {
  trouble("");
  const row = await kept(name);
  if (!row) return;
  show("sending");
  try {
    await resumed(row, progress);
    await finished(row);
  } catch (error) {
    hide("sending");
    told(error);
  }
}

async function drawMine() {
  const rows = (await everything()).filter((row) => row.sent);
  by("mine").hidden = !rows.length;
  by("mine-list").replaceChildren(
    ...rows.map((row) => {
      const words = row.withdrawn ? t.mine_withdrawn : t.mine_sent;
      const gaps = { title: row.title, centre: row.centre, values: row.values, sent: dayText(row.sent, language), until: dayText(row.until, language), day: dayText(row.withdrawn, language) };
      const item = made("li", {}, made("h3", {}, row.title), made("p", {}, filled(words, gaps)));
      const copy = made("a", { class: "button", download: "my-consent.json", href: URL.createObjectURL(new Blob([copyOf(row)], { type: "application/json" })) }, t.copy);
      const tools = made("p", { class: "tools" }, copy);
      if (!row.withdrawn && row.study === name) {
        const button = made("button", { type: "button", class: "plain", id: "withdraw" }, t.withdraw);
        button.addEventListener("click", () => leave(row, button));
        tools.append(button);
      }
      item.append(tools);
      return item;
    }),
  );
}

/** @param {import("./keep.js").Kept} row @param {HTMLElement} button */
async function leave(row, button) {
  if (button.dataset.sure !== "yes") {
    button.dataset.sure = "yes";
    button.textContent = t.withdraw_sure;
    return;
  }
  trouble("");
  try {
    const deleted = await withdrawn(row);
    hide("done", "resume", "changed");
    await drawMine();
    by("leave-told").textContent = filled(t.left, { records: deleted });
    show("mine");
  } catch (error) {
    told(error);
  }
}

async function leaveOnPaper() {
  by("leave-told").textContent = "";
  trouble("");
  try {
    const deleted = await leaveByPaper(by("paper-entry").value, name);
    by("leave-told").textContent = deleted === null ? t.code_wrong : filled(t.left, { records: deleted });
    const row = await kept(name);
    if (row && deleted !== null) await keep({ ...row, withdrawn: new Date().toISOString(), envelope: null });
    await drawMine();
  } catch (error) {
    told(error);
  }
}

by("file").addEventListener("change", () => picked().catch(told));
by("link-button").addEventListener("click", () => pasted().catch(told));
by("only-leaving").addEventListener("change", () => previewing?.list());
by("search").addEventListener("input", () => previewing?.list());
by("code").addEventListener("input", ready);
by("send").addEventListener("click", () => send());
by("resume-button").addEventListener("click", () => resume());
by("leave-button").addEventListener("click", () => leaveOnPaper());
by("print").addEventListener("click", () => print());
begin().catch(told);
if ("serviceWorker" in navigator) navigator.serviceWorker.register("/take-part/sw.js", { scope: "/take-part/" }).catch(() => {});
