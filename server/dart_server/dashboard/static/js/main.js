// The page's frame: who is logged in, and which view the address asks for. Each view is a function that fills <main> and returns its end.

import { call, setCsrf, whenEnded } from "./api.js";
import { desktopPage } from "./desktop.js";
import { h, notice } from "./dom.js";
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
  if (found) show((place) => desktopPage(place, found[1], session), `Desktop ${found[1].slice(-7)}`);
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

whenEnded(() => {
  if (session === null) return;
  out();
  notice("The session has ended. Log in again.");
});

document.getElementById("log-out").addEventListener("click", async () => {
  try { await call("POST", "/logout"); } catch (error) { notice(error.message); }
  out();
});
window.addEventListener("hashchange", () => { route(); main.focus(); });

try {
  const now = await call("GET", "/session");
  if (now !== null) enter(now);
} catch (error) { notice(error.message); }
route();
