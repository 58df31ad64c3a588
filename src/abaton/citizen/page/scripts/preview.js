// Preview before and after de-identification: each value by topic with outcome and reason, and a search.
import { byId, create } from "./dom.js";
import { elementText } from "./study-view.js";
import { fill } from "./texts.js";

/** @typedef {[string, unknown, unknown, "unchanged" | "changed" | "removed" | "added"]} Row */
/** @typedef {{ cards: { resource_type: string, rows: Row[] }[], values: number, released: number, counts: Record<string, number>,
 *   reasons: Record<string, [string, string]>, bytes: number, sha256: string }} Preview */

const ROWS_SHOWN = 150;

export class PreviewView {
  /** @param {Preview} preview @param {import("./texts.js").Texts} t @param {string} language */
  constructor(preview, t, language) {
    this.preview = preview;
    this.t = t;
    this.format = new Intl.NumberFormat(language).format;
    /** @type {Map<string, Row[]>} */
    this.topics = new Map();
    for (const { resource_type: type, rows } of preview.cards) {
      const topic = t.topics[type] ?? t.topics.other;
      const topicRows = this.topics.get(topic);
      if (topicRows) for (const row of rows) topicRows.push(row);
      else this.topics.set(topic, [...rows]);
    }
  }

  draw() {
    const { values, released, counts, sha256 } = this.preview;
    byId("preview-count").textContent = fill(this.t.released_count, {
      values: this.format(values), released: this.format(released), added: this.format(counts.added ?? 0),
    });
    byId("sha256").textContent = sha256;
    this.list();
  }

  /** Draw the topics with the rows that match the search and the filter. */
  list() {
    const onlyReleased = byId("only-released").checked;
    const query = byId("search").value.trim().toLowerCase();
    let matchCount = 0;
    const sections = [];
    for (const [topic, rows] of this.topics) {
      const matching = rows.filter((row) => (!onlyReleased || row[3] !== "removed") && (!query || this.text(row).includes(query)));
      matchCount += matching.length;
      if (matching.length) sections.push(this.topic(topic, matching, Boolean(query) && sections.length < 3));
    }
    byId("topics").replaceChildren(...sections);
    byId("match-count").textContent = query || onlyReleased ? fill(this.t.match_count, { count: this.format(matchCount) }) : "";
  }

  /** @param {Row} row */
  text([path, before, after]) {
    return `${path} ${elementText(path, this.t)} ${before ?? ""} ${after ?? ""}`.toLowerCase();
  }

  /** @param {string} name @param {Row[]} rows @param {boolean} open */
  topic(name, rows, open) {
    const released = rows.filter((row) => row[3] === "unchanged" || row[3] === "changed").length;
    const counts = fill(this.t.topic_count, { values: this.format(rows.length), released: this.format(released) });
    const list = create("ul");
    const details = /** @type {HTMLDetailsElement} */ (create("details", {}, create("summary", {}, `${name}: ${counts}`), list));
    const more = create("button", { type: "button", class: "plain" }, this.t.more);
    let shown = 0;
    const add = () => {
      list.append(...rows.slice(shown, shown + ROWS_SHOWN).map((row) => this.row(row)));
      shown += ROWS_SHOWN;
      more.hidden = shown >= rows.length;
    };
    more.addEventListener("click", add);
    details.addEventListener("toggle", () => {
      if (details.open && !shown) add();
    });
    details.append(create("p", {}, more));
    details.open = open;
    return details;
  }

  /** @param {Row} row */
  row([path, before, after, outcome]) {
    const { t } = this;
    const elementPath = path.split(".").slice(1).join(".");
    const item = create("li", { class: outcome }, create("span", { class: "element" }, elementText(elementPath, t)), create("span", { class: "outcome" }, `${t.outcomes[outcome]} `));
    if (outcome === "removed" || outcome === "changed") item.append(create("del", {}, String(before)), " ");
    if (outcome === "unchanged") item.append(create("ins", {}, String(before)));
    if (outcome === "changed" || outcome === "added") item.append(create("ins", {}, String(after)));
    item.append(create("span", { class: "reason" }, this.reason(path, outcome)));
    return item;
  }

  /** Return the reason by the rule of the closest path that has one. @param {string} path @param {string} outcome */
  reason(path, outcome) {
    const { reasons, added } = this.t;
    if (outcome === "added") return added;
    const parts = path.split(".");
    for (let size = parts.length; size > 0; size--) {
      const rule = this.preview.reasons[parts.slice(0, size).join(".")];
      const reason = rule?.[outcome === "removed" ? 1 : 0] || (outcome === "changed" ? rule?.[1] : "");
      if (reason) return reasons[reason] ?? reason;
    }
    return reasons[outcome];
  }
}
