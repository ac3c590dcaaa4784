// The page's frame: who is logged in, and which view the address asks for. Each view is a function that fills <main> and returns its end.

import { call, setCsrf, onUnreachable, onSessionEnded } from "./api.js";
import { desktopPage } from "./desktop.js";
import { h, notice, setText } from "./dom.js";
import { clockTime } from "./format.js";
import { leasePage } from "./lease.js";
import { logInPage } from "./login.js";
import { overviewPage } from "./overview.js";

const main = document.getElementById("main");
const bar = document.getElementById("bar");
let session = null;
let leave = () => {};

function show(page, title) {
  leave();
  leave = () => {};
  main.replaceChildren();
  document.title = title ? `${title} – DART farm` : "DART farm";
  leave = page(main) ?? (() => {});
}

function route() {
  bar.hidden = session === null;
  if (session === null) {
    show((place) => logInPage(place, (now) => { enter(now); route(); main.focus(); }), "Log in");
    return;
  }
  const found = /^#\/desktops\/([A-Za-z0-9_-]+)$/.exec(location.hash);
  const lease = /^#\/leases\/([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (lease) show((place) => leasePage(place, lease[1], session), "Live view");
  else if (found) show((place) => desktopPage(place, found[1], session), `Desktop ${found[1].slice(-7)}`);
  else show((place) => overviewPage(place, session), "");
}

function enter(now) {
  session = now;
  setCsrf(now.csrf);
  document.getElementById("who").replaceChildren(h("strong", {}, now.name), ` · ${now.scope}`);
}

function out() {
  session = null;
  setCsrf("");
  route();
}

onSessionEnded(() => {
  if (session === null) return;
  out();
  notice("The session has ended. Log in again.");
});

onUnreachable((since) => {
  const unreachable = document.getElementById("unreachable");
  setText(unreachable, since === null ? "" : `The farm has not answered since ${clockTime(since)}. What is shown is from before; it goes on by itself.`);
  unreachable.hidden = since === null;
  main.classList.toggle("stale", since !== null && session !== null);
});

document.getElementById("log-out").addEventListener("click", async () => {
  try { await call("POST", "/logout"); } catch (error) { notice(error.message); }
  out();
});
// The address tells the view, so the way to the content must not change it.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", async () => {
  const ticket = takeTicket();
  const now = ticket === null ? null : await useTicket(ticket);
  if (now !== null) enter(now);
  route();
  main.focus();
});

/** A ticket in the address logs in once; it goes out of the address and the history at once. */
function takeTicket() {
  const found = /^(#[^?]*)\?ticket=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", found[1]);
  return found[2];
}

async function useTicket(ticket) {
  try {
    return await call("POST", "/ticket", { ticket });
  } catch (error) {
    notice(error.message);
    return null;
  }
}

try {
  const ticket = takeTicket();
  const now = (ticket === null ? null : await useTicket(ticket)) ?? await call("GET", "/session");
  if (now !== null) enter(now);
} catch (error) { notice(error.message); }
route();
