// Storage on this device: non-extractable keys, receipts, and a sealed envelope until its receipt. Records are not stored.

/** @typedef {{ study: string, document: string, title: string, centre: string, until: string, sent: string, sha256: string,
 *   values: number, keys: import("./keys.js").Keys, sequence: number, page: string, withdrawn: string,
 *   envelope: Uint8Array<ArrayBuffer> | null, copies: Record<string, unknown> }} StoredStudy */

/** @returns {Promise<IDBDatabase>} */
function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("abaton", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("studies", { keyPath: "study" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @template T @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest<T>} work @returns {Promise<T>} */
async function inTransaction(mode, work) {
  const database = await openDatabase();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction("studies", mode);
      const request = work(transaction.objectStore("studies"));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** @param {string} study @returns {Promise<StoredStudy | undefined>} */
export const loadStudy = (study) => inTransaction("readonly", (store) => store.get(study));

/** @returns {Promise<StoredStudy[]>} */
export const loadAllStudies = () => inTransaction("readonly", (store) => store.getAll());

/** @param {StoredStudy} row */
export const saveStudy = (row) => inTransaction("readwrite", (store) => store.put(row));
