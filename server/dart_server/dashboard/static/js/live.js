// The live screen: noVNC on a WebSocket of the farm. View-only until the farm has given this view the control.

import { liveUrl } from "./api.js";
import { h, setText } from "./dom.js";

const RETRY_MS = 1500;

export class LiveScreen {
  /** `onStatus`: told in words how the view is. */
  constructor(session, onStatus) {
    this.session = session;
    this.onStatus = onStatus;
    this.mine = false;
    this.ready = false;
    this.view = null;
    this.lease = null;
    this.rfb = null;
    this.triedAt = -Infinity;
    this.replaying = false;
    this.screen = h("div", { class: "screen" });
    this.veil = h("div", { class: "veil" }, h("p", {}, "Connecting…"));
    this.element = h("div", { class: "stage" }, this.screen, this.veil);
  }

  showMessage(text) {
    this.veil.hidden = text === "";
    setText(this.veil.firstElementChild, text);
  }

  /** Watch the desktop of a lease; does nothing while it is watched already. */
  async connect(leaseId) {
    if (this.rfb !== null && this.lease === leaseId) return;
    if (!this.session.viewer) {
      this.showMessage(`The viewer is not installed: run \`${this.session.viewer_install_command}\` on the farm's host.`);
      this.onStatus("No live view");
      return;
    }
    if (performance.now() - this.triedAt < RETRY_MS) return;
    this.triedAt = performance.now();
    this.end("Connecting…");
    this.lease = leaseId;
    this.view = crypto.randomUUID ? crypto.randomUUID() : `view-${Date.now()}-${Math.random().toString(36).slice(2)}`;
    let RFB;
    try {
      ({ default: RFB } = await import("/dashboard/novnc/core/rfb.js"));
    } catch {
      this.showMessage("The viewer's modules could not be loaded; reload the page.");
      return;
    }
    const rfb = new RFB(this.screen, liveUrl(leaseId, this.view), { shared: true });
    Object.assign(rfb, { viewOnly: true, scaleViewport: true, qualityLevel: 8, background: "transparent", focusOnClick: true });
    rfb.addEventListener("connect", () => {
      if (this.rfb !== rfb) return;
      this.ready = true;
      this.showMessage("");
      this.reportStatus();
      const canvas = this.screen.querySelector("canvas");
      canvas?.setAttribute("aria-label", "Live screen of the desktop");
      canvas?.setAttribute("role", "img");
    });
    rfb.addEventListener("disconnect", () => {
      if (this.rfb !== rfb) return;
      this.drop();
      this.showMessage("The view has ended; looking again…");
      this.onStatus("Not connected");
    });
    this.rfb = rfb;
  }

  /** Input goes to the desktop, or not. */
  setMine(mine) {
    this.mine = mine;
    this.element.classList.toggle("mine", mine);
    if (this.rfb !== null) {
      this.rfb.viewOnly = !mine;
      this.rfb.showDotCursor = mine;
      if (mine) this.rfb.focus(); else this.rfb.blur();
    }
    this.reportStatus();
  }

  /** A step of the past covers the screen, or not. */
  setReplaying(replaying) {
    this.replaying = replaying;
    this.reportStatus();
  }

  reportStatus() {
    if (this.replaying) { this.onStatus("Replay of a step, not live"); return; }
    if (this.rfb === null) return;
    this.onStatus(this.mine ? "You control this desktop – press Escape twice to give it back" : "Live, view only");
  }

  drop() {
    this.rfb = null;
    this.ready = false;
    this.mine = false;
    this.lease = null;
    this.element.classList.remove("mine");
  }

  /** Hang up and show why. */
  end(text) {
    const rfb = this.rfb;
    this.drop();
    if (rfb !== null) rfb.disconnect();
    this.screen.replaceChildren();
    this.showMessage(text);
    if (text) this.onStatus("Not connected");
  }
}
