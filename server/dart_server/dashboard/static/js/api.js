// Calls to the farm. Whatever goes wrong is a `ApiError` with one sentence; a session that ended sends the page to the log-in.

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.detail ? `${body.detail}${body.hint ? ` – ${body.hint}` : ""}` : `the farm answered ${status}`);
    this.status = status;
  }
}

const BASE = "/dashboard/api";
let csrf = "";
let ended = () => {};

let unreachableCallback = () => {};
let unreachableSince = null;

function setReachable(yes) {
  if (yes === (unreachableSince === null)) return;
  unreachableSince = yes ? null : Date.now() / 1000;
  unreachableCallback(unreachableSince);
}

/** Called once, with what to do when the farm ceases to answer (with the time) and when it answers again (with null). */
export function onUnreachable(callback) { unreachableCallback = callback; }

/** Called once, with what to do when the session has ended. */
export function onSessionEnded(callback) { ended = callback; }

/** The token that changes carry, from the log-in or the session. */
export function setCsrf(token) { csrf = token; }

/** JSON in, JSON out. */
export async function call(method, path, body) {
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["x-dart-csrf"] = csrf;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(BASE + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch {
    setReachable(false);
    throw new ApiError(0, { detail: "the farm does not answer" });
  }
  setReachable(true);
  if (answer.ok) return answer.json();
  let said = null;
  try { said = await answer.json(); } catch { /* an answer without an envelope still has its status */ }
  if (answer.status === 401 && !["/login", "/session", "/ticket"].includes(path)) ended();
  throw new ApiError(answer.status, said);
}

/** A picture as {tag, url}, null while there is none; `url` is the caller's to revoke. */
export async function picture(path, tag) {
  let answer;
  try {
    answer = await fetch(BASE + path, { cache: "no-cache" });
  } catch {
    return null;
  }
  if (answer.status === 401) ended();
  if (answer.status !== 200) return null;
  const now = answer.headers.get("etag");
  if (now !== null && now === tag) return { tag, url: null };
  return { tag: now, url: URL.createObjectURL(await answer.blob()) };
}

/** Where a live view of a lease is. */
export function liveUrl(leaseId, view) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return `${scheme}://${location.host}${BASE}/leases/${leaseId}/live?view=${view}`;
}

/** Run `work` now and every `ms`, not while the page is hidden, never twice at a time; returns what stops it. */
export function poll(ms, work) {
  let timer = 0;
  let over = false;
  const turn = async () => {
    clearTimeout(timer);
    if (over) return;
    if (!document.hidden) await work();
    if (!over) timer = setTimeout(turn, ms);
  };
  const back = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", back);
  turn();
  return () => { over = true; clearTimeout(timer); document.removeEventListener("visibilitychange", back); };
}
