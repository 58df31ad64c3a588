// What this device keeps: keys that cannot be taken out, receipts, and a sealed envelope until the centre has it. Records
// are never kept.

/** @typedef {{ study: string, document: string, title: string, centre: string, until: string, sent: string, sha256: string,
 *   values: number, keys: import("./keys.js").Keys, sequence: number, page: string, withdrawn: string,
 *   envelope: Uint8Array<ArrayBuffer> | null, copies: Record<string, unknown> }} Kept */

/** @returns {Promise<IDBDatabase>} */
function opened() {
  return new Promise((resolve, reject) => {
    const asked = indexedDB.open("abaton", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore("studies", { keyPath: "study" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

/** @template T @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest<T>} work @returns {Promise<T>} */
async function inside(mode, work) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction("studies", mode);
      const asked = work(transaction.objectStore("studies"));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** @param {string} study @returns {Promise<Kept | undefined>} */
export const kept = (study) => inside("readonly", (store) => store.get(study));

/** @returns {Promise<Kept[]>} */
export const everything = () => inside("readonly", (store) => store.getAll());

/** @param {Kept} row */
export const keep = (row) => inside("readwrite", (store) => store.put(row));
