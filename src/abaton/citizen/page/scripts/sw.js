// Service worker: offline copy of page and study. Records are never cached.
const BUILD = "{{build}}";
const FILES = /** @type {string[]} */ (JSON.parse('{{files}}'));
const FILES_URL = `/take-part/files/${BUILD}/`;
const scope = /** @type {any} */ (self);

scope.addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(
    caches.open(BUILD).then((cache) => cache.addAll(FILES.map((name) => FILES_URL + name))).then(() => scope.skipWaiting()),
  );
});

scope.addEventListener("activate", (/** @type {any} */ event) => {
  const old = caches.keys().then((names) => Promise.all(names.filter((name) => name !== BUILD).map((name) => caches.delete(name))));
  event.waitUntil(old.then(() => scope.clients.claim()));
});

/** @param {Request} request */
async function networkFirst(request) {
  const cache = await caches.open(BUILD);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const cached = await cache.match(request);
    if (cached) return cached;
    throw error;
  }
}

/** Remove the query: parameters of a sign-in response are neither sent to the centre nor cached.
 * @param {Request} request */
const withoutQuery = (request) => new Request(request.url.split("?")[0] ?? "", { redirect: "manual" });

scope.addEventListener("fetch", (/** @type {any} */ event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin) return;
  if (pathname.startsWith(FILES_URL)) event.respondWith(caches.match(request).then((cached) => cached ?? fetch(request)));
  else if (request.mode === "navigate") event.respondWith(networkFirst(withoutQuery(request)));
  else if (pathname === "/v1/centre" || pathname.startsWith("/v1/studies")) event.respondWith(networkFirst(request));
});
