// The first page: totals, the grid of desktops, leases, queue, pools, charts, host.

import { call, poll, picture } from "./api.js";
import { Chart, usageClass, meter } from "./charts.js";
import { h, keyed, notice, setText } from "./dom.js";
import { bytes, duration, milliseconds, shortId } from "./format.js";

const POLL_MS = 2000, PICTURE_MS = 1000, SAMPLE_MS = 5000, KEPT = 720;
const STATE_TEXT = {
  creating: "Is being made", ready: "Waits for a claim", resetting: "Is being reset", broken: "Broken",
  gone: "Is being removed", frozen: "Frozen, ready to go", standby: "Frozen, ready to go", quarantined: "Set aside for a look",
};

/** `warn`: much of it is worth a warning. */
function stat(label, warn = false) {
  const value = h("dd", {});
  const fill = h("i");
  const element = h("div", { class: "card stat" }, h("dt", {}, label), value, h("div", { class: "bar", "aria-hidden": "true" }, fill));
  return {
    element,
    set(main, beside, share) {
      if (value.dataset.said !== main + beside) value.replaceChildren(main, " ", h("small", {}, beside));
      value.dataset.said = main + beside;
      fill.parentElement.style.visibility = share === null ? "hidden" : "visible";
      fill.style.width = `${Math.round(Math.min(1, share ?? 0) * 100)}%`;
      fill.className = warn && share !== null ? usageClass(share) : "";
    },
  };
}

/** One tile of the grid; `watcher` tells which are on the screen. */
function makeTile(watcher) {
  return (desktop) => {
    const tile = h("a", { class: "card tile", href: `#/desktops/${desktop.desktop_id}` },
      h("div", { class: "shot" }, h("span", {}), h("img", { alt: "", hidden: true })),
      h("span", { class: "chip control hands", hidden: true }, "Taken over"),
      h("div", { class: "about" },
        h("div", { class: "line" }, h("span", { class: "name" }), h("span", { class: "chip" })),
        h("div", { class: "line quiet small" }, h("span", {}), h("span", {}))));
    watcher.observe(tile);
    return tile;
  };
}

function fillTile(tile, desktop) {
  const [saying, image] = tile.querySelector(".shot").children;
  const [name, chip] = tile.querySelector(".line").children;
  const [what, age] = tile.querySelectorAll(".line")[1].children;
  tile.desktop = desktop;
  if (!desktop.live) { image.hidden = true; image.removeAttribute("src"); tile.tag = null; }
  setText(saying, desktop.live ? "" : desktop.failure ?? (desktop.state === "resetting" && !desktop.owner ? "Given back, waits to be made anew" : STATE_TEXT[desktop.state] ?? desktop.state));
  setText(name, desktop.owner ?? shortId(desktop.desktop_id));
  setText(chip, desktop.state);
  chip.className = `chip ${desktop.state}`;
  const labels = Object.entries(desktop.labels).map(([key, value]) => `${key}=${value}`).join(" ");
  setText(what, labels || `${desktop.image} · ${desktop.resolution.join("×")}`);
  setText(age, duration(desktop.age_s));
  tile.querySelector(".hands").hidden = !desktop.controlled;
  tile.setAttribute("aria-label", `Desktop ${shortId(desktop.desktop_id)}, ${desktop.state}${desktop.owner ? ` by ${desktop.owner}` : ""}`);
}

async function refreshPicture(tile) {
  if (!tile.desktop?.live || tile.asking) return;
  tile.asking = true;
  try {
    const found = await picture(`/desktops/${tile.desktop.desktop_id}/picture`, tile.tag);
    if (!found?.url || !tile.desktop.live) return;
    const image = tile.querySelector("img");
    const before = image.src;
    image.src = found.url;
    image.hidden = false;
    tile.tag = found.tag;
    if (before.startsWith("blob:")) URL.revokeObjectURL(before);
  } finally {
    tile.asking = false;
  }
}

function table(caption, heads) {
  const body = h("tbody", {});
  const element = h("section", { class: "card panel" }, h("div", { class: "table-wrap" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))), body)));
  const fill = (rows) => {
    element.hidden = rows.length === 0;
    keyed(body, rows, (row) => row.key, (row) => h("tr", {}, ...row.cells.map(() => h("td", {}))), (line, row) => {
      row.cells.forEach((cell, i) => {
        if (typeof cell === "string") { setText(line.children[i], cell); line.children[i].title = cell; }
        else if (line.children[i].dataset.said !== cell.said) {
          line.children[i].dataset.said = cell.said;
          line.children[i].replaceChildren(cell.element());
        }
      });
    });
  };
  return { element, fill };
}

const link = (href, text) => ({ said: href + text, element: () => h("a", { href }, text) });

export function overviewPage(place, session) {
  const stats = ["Desktops in use", "Ready at once", "Waiting claims", "Step, median", "Processor"].map((label) => stat(label, label === "Processor"));
  const visible = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) (entry.isIntersecting ? visible.add(entry.target) : visible.delete(entry.target));
  }, { rootMargin: "80px" });
  const grid = h("div", { class: "grid" });
  const none = h("div", { class: "card empty", hidden: true });
  const count = h("span", { class: "quiet" });
  const leases = table("Leases", ["Lease", "Key", "Desktop", "Age", "Left", "Labels"]);
  const queue = table("Queue", ["Place", "Key", "Target", "Waiting", "Waiting for", "Priority"]);
  const pools = table("Pools", ["Pool", "Of", "Ready", "Standby", "Preparing", "Leased", "Hit rate", "In backoff because"]);
  const charts = [
    new Chart("Desktops", [{ label: "in use", value: (s) => s.leased }, { label: "waiting", value: (s) => s.waiting }], (v) => String(Math.round(v * 10) / 10)),
    new Chart("Step", [{ label: "p50", value: (s) => s.step_p50_ms }, { label: "p99", value: (s) => s.step_p99_ms }], milliseconds),
    new Chart("Claim and reset, median", [{ label: "claim", value: (s) => s.claim_p50_ms }, { label: "reset", value: (s) => s.reset_p50_ms }], milliseconds),
  ];
  const meters = { cpu: meter("Processor"), memory: meter("Memory"), disk: meter("Disk"), snapshots: meter("Snapshots") };
  place.append(h("div", { class: "page" },
    h("h1", { class: "hidden-text" }, "Overview"),
    h("dl", { class: "stats" }, ...stats.map((one) => one.element)),
    h("div", { class: "columns" },
      h("div", { class: "side" },
        h("section", { "aria-labelledby": "desktops-head" },
          h("div", { class: "section-head" }, h("h2", { id: "desktops-head" }, "Desktops"), count), none, grid),
        queue.element, pools.element, leases.element),
      h("div", { class: "side" },
        h("section", { class: "card panel", "aria-label": "Charts" }, ...charts.map((chart) => chart.element)),
        h("section", { class: "card panel" }, h("h2", {}, "Host"), h("div", { class: "meters" }, ...Object.values(meters).map((one) => one.element)))))));

  let samples = [];
  let silent = false;

  async function refresh() {
    try {
      const now = await call("GET", "/overview");
      const { farm, counts } = now;
      const used = (counts.leased ?? 0) + (counts.resetting ?? 0);
      setText(document.getElementById("farm-line"), `${farm.provider} · version ${farm.version}${farm.ready ? "" : " · not ready"}${farm.draining ? " · draining" : ""}`);
      stats[0].set(String(used), `of ${farm.max_desktops}`, used / farm.max_desktops);
      const ready = (counts.ready ?? 0) + (counts.frozen ?? 0) + (counts.standby ?? 0);
      stats[1].set(String(ready), `of ${now.desktops_total} made`, null);
      stats[2].set(String(now.waiting), now.waiting === 1 ? "claim" : "claims", null);
      setText(count, session.scope === "admin" ? `${now.desktops.length} of ${farm.max_desktops}` : `yours: ${now.desktops.length}`);
      keyed(grid, now.desktops, (one) => one.desktop_id, makeTile(watcher), fillTile);
      none.hidden = now.desktops.length > 0;
      setText(none, session.scope === "admin" ? "No desktops yet. They are made when somebody claims one." : session.scope === "read" ? "This key watches the farm's numbers. It leases nothing, so no desktop is its own to see."
        : "None of your leases is active. Desktops that you lease show here.");
      leases.fill(now.leases.map((one) => ({ key: one.lease_id, cells: [
        shortId(one.lease_id), one.owner, one.desktop_id ? link(`#/desktops/${one.desktop_id}`, shortId(one.desktop_id)) : "–",
        duration(one.age_s), duration(one.left_s), Object.entries(one.labels).map((pair) => pair.join("=")).join(" ") || "–"] })));
      queue.fill((now.queue ?? []).map((one) => ({ key: one.claim_id, cells: [
        String(one.position + 1), one.owner, one.target, duration(one.age_s), one.waiting_for === "quota" ? "its quota" : "a desktop", String(one.priority)] })));
      pools.fill((now.pools ?? []).map((one) => ({ key: one.name, cells: [
        one.name, one.what, `${one.ready} of ${one.warm}`, `${one.standby} of ${one.standby_desired}`, String(one.creating), String(one.leased),
        one.hits + one.misses ? `${Math.round(100 * one.hits / (one.hits + one.misses))} %` : "–", one.in_backoff ?? "–"] })));
      meters.snapshots.set(farm.snapshot_bytes / farm.snapshot_quota_bytes, `${farm.snapshots} with ${bytes(farm.snapshot_bytes)} of ${bytes(farm.snapshot_quota_bytes)}`);
      silent = false;
    } catch (error) {
      if (!silent && error.status !== 0) notice(error.message);
      silent = true;
    }
  }

  async function sample() {
    try {
      const fresh = await call("GET", `/samples?since=${samples.at(-1)?.n ?? 0}`);
      samples = [...samples, ...fresh].slice(-KEPT);
    } catch { return; /* the overview has said that the farm does not answer */ }
    const now = samples.at(-1);
    if (!now) return;
    const step = samples.map((one) => one.step_p50_ms).filter((v) => v !== null).at(-1);
    stats[3].set(milliseconds(step), `${now.step_n} in 5 s`, null);
    stats[4].set(`${Math.round(now.cpu_percent)} %`, `of ${now.cpus} cores`, now.cpu_percent / 100);
    meters.cpu.set(now.cpu_percent / 100, `${Math.round(now.cpu_percent)} % of ${now.cpus}, load ${now.load_1m}`);
    meters.memory.set(now.memory_used_bytes / now.memory_total_bytes, `${bytes(now.memory_used_bytes)} of ${bytes(now.memory_total_bytes)}`);
    meters.disk.set(now.disk_used_bytes / now.disk_total_bytes, `${bytes(now.disk_used_bytes)} of ${bytes(now.disk_total_bytes)}`);
    for (const chart of charts) chart.draw(samples);
  }

  const ends = [
    poll(POLL_MS, refresh),
    poll(SAMPLE_MS, sample),
    poll(PICTURE_MS, () => { for (const tile of visible) if (tile.isConnected) refreshPicture(tile); }),
  ];
  const redraw = () => { for (const chart of charts) chart.draw(samples); };
  window.addEventListener("resize", redraw);
  return () => {
    for (const end of ends) end();
    window.removeEventListener("resize", redraw);
    watcher.disconnect();
  };
}
