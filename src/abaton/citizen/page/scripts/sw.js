// Keeps the page on the device, so that it opens without a connection. Only the page and the study are kept, never records.
const BUILD = "{{build}}";
const FILES = /** @type {string[]} */ (JSON.parse('{{files}}'));
const PLACE = `/take-part/files/${BUILD}/`;
const scope = /** @type {any} */ (self);

scope.addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(
    caches.open(BUILD).then((cache) => cache.addAll(FILES.map((name) => PLACE + name))).then(() => scope.skipWaiting()),
  );
});

scope.addEventListener("activate", (/** @type {any} */ event) => {
  const old = caches.keys().then((names) => Promise.all(names.filter((name) => name !== BUILD).map((name) => caches.delete(name))));
  event.waitUntil(old.then(() => scope.clients.claim()));
});

/** @param {Request} request */
async function newest(request) {
  const cache = await caches.open(BUILD);
  try {
    const got = await fetch(request);
    if (got.ok) await cache.put(request, got.clone());
    return got;
  } catch (error) {
    const known = await cache.match(request);
    if (known) return known;
    throw error;
  }
}

/** What a hospital sends along in the address is for this window alone: it is neither sent on to the centre nor kept.
 * @param {Request} request */
const plain = (request) => new Request(request.url.split("?")[0] ?? "", { redirect: "manual" });

scope.addEventListener("fetch", (/** @type {any} */ event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin) return;
  if (pathname.startsWith(PLACE)) event.respondWith(caches.match(request).then((known) => known ?? fetch(request)));
  else if (request.mode === "navigate") event.respondWith(newest(plain(request)));
  else if (pathname === "/v1/centre" || pathname.startsWith("/v1/studies")) event.respondWith(newest(request));
});
