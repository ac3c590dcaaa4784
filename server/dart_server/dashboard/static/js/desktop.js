// One desktop: its live view, taking over, its history, the replay of its last steps.

import { call, poll } from "./api.js";
import { ask, h, keyed, notice, setText } from "./dom.js";
import { bytes, clockTime, duration, milliseconds, shortId, words } from "./format.js";
import { LiveScreen } from "./live.js";
import { replayPanel } from "./replay.js";

const POLL_MS = 1500, ESCAPES_MS = 600;

/** What an event tells, in one line: sizes, times and ids as people read them. */
function eventText(data) {
  return Object.entries(data)
    .filter(([, value]) => value !== null && value !== "" && value !== false && !(Array.isArray(value) && value.length === 0))
    .map(([key, value]) => {
      const name = key.replace(/_(ms|s|id|bytes)$/, "").replaceAll("_", " ");
      if (key.endsWith("_ms")) return `${name} ${milliseconds(value)}`;
      if (key.endsWith("_s")) return `${name} ${milliseconds(value * 1000)}`;
      if (key.endsWith("bytes")) return `${name} ${bytes(value)}`;
      if (key.endsWith("_id") || (typeof value === "string" && /^[a-z]+_[0-9A-Z]{26}$/.test(value))) return `${name} ${shortId(value)}`;
      if (key === "seconds") return `in all ${milliseconds(value * 1000)}`;
      if (key === "setup_key") return `setup ${value.slice(0, 12)}`;
      if (value === true) return name;
      return `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`;
    })
    .join(" · ");
}

function historyPanel() {
  const list = h("ol", { class: "history scroll", tabindex: 0, "aria-label": "History, latest first" });
  const fill = (events) => keyed(list, events, (event) => event.id,
    (event) => h("li", {},
      h("div", {}, h("span", { class: "when" }, clockTime(event.at)), words(event.kind)),
      h("div", { class: "what" }, eventText(event.data))),
    () => {});
  return { element: h("div", {}, list), fill };
}

export function desktopPage(place, desktopId, session) {
  let now = null;
  let shownLease = null;
  let lastEscape = -Infinity;
  const chip = h("span", { class: "chip" });
  const takeOver = h("button", { type: "button", class: "primary", hidden: true, onclick: toggleControl }, "Take over");
  const release = h("button", { type: "button", class: "danger", hidden: true, onclick: endLease }, "Release");
  const quarantine = h("button", { type: "button", class: "danger", hidden: true, onclick: toggleQuarantine }, "Quarantine");
  const facts = h("dl", { class: "facts" });
  const under = h("div", { class: "under", "aria-live": "polite" });
  const live = new LiveScreen(session, (text) => setText(under.firstElementChild, text));
  under.append(h("span", {}, "Connecting…"));
  const history = historyPanel();
  const replay = replayPanel(desktopId, live);
  const panels = { history: history.element, replay: replay.element };
  const tabs = Object.entries({ history: "History", replay: "Steps" }).map(([name, label]) => h("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => choose(name), onkeydown: arrows,
  }, label));
  for (const [name, element] of Object.entries(panels)) {
    element.id = `panel-${name}`;
    element.setAttribute("role", "tabpanel");
    element.setAttribute("aria-labelledby", `tab-${name}`);
  }
  const side = h("div", { class: "side" },
    h("section", { class: "card panel" }, facts),
    h("section", { class: "card panel" }, h("div", { class: "tabs", role: "tablist" }, ...tabs), ...Object.values(panels)));
  place.append(h("div", { class: "desktop-page" },
    h("div", { class: "desktop-head" },
      h("a", { href: "#/", class: "button", "aria-label": "Back to all desktops" }, "← All desktops"),
      h("h1", {}, `Desktop ${shortId(desktopId)}`), chip,
      h("div", { class: "actions" }, takeOver, release, quarantine)),
    h("section", { "aria-label": "Screen" }, live.element, under),
    side));

  function choose(name) {
    for (const tab of tabs) {
      const chosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      panels[tab.id.slice(4)].hidden = !chosen;
    }
    replay.show(name === "replay");
  }

  function arrows(event) {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const next = tabs[(tabs.indexOf(event.currentTarget) + 1) % tabs.length];
    next.focus();
    next.click();
  }

  async function toggleControl() {
    takeOver.disabled = true;
    try {
      if (live.mine) await giveBack();
      else {
        await call("POST", `/leases/${shownLease}/control`, { view: live.view });
        live.setMine(true);
        notice("Mouse and keyboard are yours. Press Escape twice to give them back.");
      }
    } catch (error) { notice(error.message); } finally { takeOver.disabled = false; }
    await refresh();
  }

  async function giveBack() {
    live.setMine(false);
    await call("DELETE", `/leases/${shownLease}/control`, { view: live.view });
    takeOver.focus();
    notice("Given back.");
  }

  async function endLease() {
    const yes = await ask("Release this lease?", "Its client loses the desktop at once, and what is on the screen is gone.", "Release");
    if (!yes) return;
    try {
      await call("POST", `/leases/${shownLease}/release`);
      notice("Released.");
    } catch (error) { notice(error.message); }
    await refresh();
  }

  async function toggleQuarantine() {
    const undo = now.desktop.state === "quarantined";
    if (!undo && !await ask("Quarantine this desktop?", "Its lease goes on without it, and nobody gets it until it is let go.", "Quarantine")) return;
    try {
      await call("POST", `/desktops/${desktopId}/${undo ? "unquarantine" : "quarantine"}`);
      notice(undo ? "Let go." : "Set aside.");
    } catch (error) { notice(error.message); }
    await refresh();
  }

  function keys(event) {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (live.replaying) { replay.leave(); return; }
    if (!live.mine) { location.hash = "#/"; return; }
    if (event.repeat) return;
    if (event.timeStamp - lastEscape < ESCAPES_MS) {
      event.preventDefault();
      event.stopImmediatePropagation();
      giveBack().catch((error) => notice(error.message)).then(refresh);
    }
    lastEscape = event.timeStamp;
  }

  async function refresh() {
    try {
      now = await call("GET", `/desktops/${desktopId}`);
      side.hidden = false;
    } catch (error) {
      if (error.status !== 404) return;
      live.end("This desktop is gone, or not yours any more.");
      takeOver.hidden = release.hidden = quarantine.hidden = true;
      side.hidden = now === null;
      setText(chip, "gone");
      chip.className = "chip gone";
      return;
    }
    const { desktop, lease, control } = now;
    setText(chip, desktop.state);
    chip.className = `chip ${desktop.state}`;
    const rows = [["Key", desktop.owner ?? "–"], ["Lease", lease ? `${shortId(lease.lease_id)}, ${duration(lease.left_s)} left` : "none"],
      ["Image", `${desktop.image}, ${desktop.resolution.join("×")}`], ["Prepared", desktop.setup_key ? desktop.setup_key.slice(0, 12) : "booted base"],
      ["Age", duration(desktop.age_s)], ["Control", control ? (live.mine ? "you" : `${control.by} since ${clockTime(control.since)}`) : "nobody"]];
    if (desktop.failure) rows.push(["Failed", desktop.failure]);
    facts.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { title: value }, value)]));
    history.fill(now.events);
    if (live.mine && control?.view !== live.view) {
      live.setMine(false);
      notice("The control has ended.");
    }
    takeOver.hidden = !now.may_control || !live.ready;
    setText(takeOver, live.mine ? "Give back" : "Take over");
    takeOver.className = live.mine ? "" : "primary";
    release.hidden = !now.may_release;
    quarantine.hidden = !now.may_quarantine;
    setText(quarantine, desktop.state === "quarantined" ? "Let go" : "Quarantine");
    const leaseId = lease?.lease_id ?? null;
    if (leaseId !== shownLease) {
      shownLease = leaseId;
      if (leaseId === null) live.end(desktop.failure ?? "Nobody leases this desktop now; it is shown when somebody does.");
    }
    if (leaseId !== null && (desktop.live || desktop.state === "resetting")) await live.connect(leaseId);
  }

  choose("history");
  window.addEventListener("keydown", keys, { capture: true });
  const ends = [poll(POLL_MS, refresh)];
  return () => {
    for (const end of ends) end();
    window.removeEventListener("keydown", keys, { capture: true });
    replay.show(false);
    live.end("");
  };
}
