// Small helpers: elements without markup strings, so that nothing a desktop or a label says is ever read as HTML.

/** An element: `h("p", {class: "quiet", onclick: f}, "text", child, …)`; null children are left out. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** Set an element's text only when it changed, so that screen readers and selections are left in peace. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keep the children of `parent` in step with `items`: one element per key, made once, updated each time, in order. */
export function keyed(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = known.get(key);
    known.delete(key);
    if (!element) {
      element = make(item);
      element.dataset.key = key;
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const gone of known.values()) gone.remove();
}

let noticeTimer = 0;

/** Say something in passing, to eyes and to screen readers. */
export function notice(text) {
  const place = document.getElementById("notice");
  place.replaceChildren(h("p", {}, text));
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => place.replaceChildren(), 5000);
}

/** Ask before something that cannot be undone; true when the person agrees. Escape is no. */
export function ask(title, text, yes) {
  return new Promise((resolve) => {
    const no = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Cancel");
    const agree = h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, yes);
    const dialog = h("dialog", { "aria-labelledby": "ask-title" },
      h("h2", { id: "ask-title" }, title), h("p", {}, text), h("div", { class: "buttons" }, no, agree));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
