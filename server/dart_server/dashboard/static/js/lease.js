// A lease's desktop, whichever that is now: the address that a client hands to a person stays good over resets.

import { call, poll } from "./api.js";
import { desktopPage } from "./desktop.js";
import { h } from "./dom.js";

const POLL_MS = 1500;

export function leasePage(place, leaseId, session) {
  let shown = null;
  let leave = () => {};

  async function refresh() {
    let lease;
    try {
      lease = await call("GET", `/leases/${leaseId}`);
    } catch (error) {
      // What the desktop's own page says of its end stays.
      if (error.status === 404 && shown === null) place.replaceChildren(h("p", { class: "empty" }, "This lease has ended, or is not yours."));
      return;
    }
    if (lease.desktop_id === null || lease.desktop_id === shown) return;
    leave();
    place.replaceChildren();
    shown = lease.desktop_id;
    leave = desktopPage(place, shown, session);
  }

  const end = poll(POLL_MS, refresh);
  return () => { end(); leave(); };
}
