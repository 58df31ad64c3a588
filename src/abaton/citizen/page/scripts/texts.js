// Words in the person's language. They are data: a new language is one file.

/** @typedef {Record<string, any>} Texts */

export const LANGUAGES = { en: "English", de: "Deutsch" };

/** The best of our languages for somebody. @param {readonly string[]} wanted */
export function bestLanguage(wanted) {
  const known = Object.keys(LANGUAGES);
  return wanted.map((each) => each.slice(0, 2).toLowerCase()).find((each) => known.includes(each)) ?? "en";
}

/** @param {string} place @param {string} language @returns {Promise<Texts>} */
export async function texts(place, language) {
  const [words, english] = await Promise.all(
    [language, "en"].map(async (each) => (await fetch(`${place}${each}.json`)).json()),
  );
  return { ...english, ...words };
}

/** A text with its gaps filled. @param {string} text @param {Record<string, string | number>} gaps */
export function filled(text, gaps) {
  return text.replace(/\{(\w+)\}/g, (gap, name) => String(gaps[name] ?? gap));
}
