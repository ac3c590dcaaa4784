// The log-in: a key for a session. The key is not kept anywhere in the page.

import { call } from "./api.js";
import { h, setText } from "./dom.js";

export function logInPage(place, done) {
  const key = h("input", { type: "password", id: "key", name: "key", autocomplete: "current-password", required: true, spellcheck: "false" });
  const wrong = h("p", { class: "error", role: "alert" });
  const enter = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h("form", { class: "card log-in", onsubmit: submit },
    h("img", { src: "/dashboard/static/icon.svg", alt: "" }),
    h("h1", {}, "DART farm"),
    h("input", { type: "text", name: "username", autocomplete: "username", value: "farm key", hidden: true, tabindex: -1, "aria-hidden": "true" }),
    h("label", { for: "key" }, "Key", key),
    h("p", { class: "quiet small" }, "A key of this farm. Its first one lies in ", h("code", {}, "farm.key"),
      " in the farm's state directory; ", h("code", {}, "dart-farm keys"), " makes others."),
    wrong, enter);

  async function submit(event) {
    event.preventDefault();
    enter.disabled = true;
    setText(wrong, "");
    try {
      const session = await call("POST", "/login", { key: key.value });
      key.value = "";
      done(session);
    } catch (error) {
      setText(wrong, error.status === 401 ? "This key is not valid here." : error.message);
      key.select();
    } finally {
      enter.disabled = false;
    }
  }

  place.append(form);
  key.focus();
  return () => {};
}
