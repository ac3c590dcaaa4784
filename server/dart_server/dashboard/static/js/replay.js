// The last steps of a desktop: a list, a slider, and the small picture of each over the live screen.

import { call, poll, picture } from "./api.js";
import { h, keyed, setText } from "./dom.js";
import { clockTime, milliseconds, stepWords } from "./format.js";

const POLL_MS = 3000, PLAY_MS = 450;

export function replayPanel(desktopId, live) {
  let steps = [];
  let at = -1;
  let url = null;
  let stop = () => {};
  let timer = 0;
  const image = h("img", { class: "step", alt: "", hidden: true });
  const missing = h("div", { class: "veil missing", hidden: true }, h("p", {}, "No picture was kept of this step."));
  live.element.append(image, missing);
  const slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step", oninput: () => go(Number(slider.value)) });
  const play = h("button", { type: "button", onclick: toggle }, "Play");
  const back = h("button", { type: "button", hidden: true, onclick: leave }, "Live");
  const saying = h("p", { class: "quiet small" }, "");
  const list = h("ol", { class: "steps scroll", tabindex: 0, "aria-label": "Steps, oldest first" });
  const none = h("p", { class: "empty" }, "No steps yet. They show here while a client works on the desktop.");
  const controls = h("div", {}, slider, h("div", { class: "under" }, play, back), saying);
  const element = h("div", {}, controls, none, list);

  async function refresh() {
    try { steps = await call("GET", `/desktops/${desktopId}/steps`); } catch { return; /* the page itself says when the desktop is gone */ }
    none.hidden = steps.length > 0;
    controls.hidden = list.hidden = steps.length === 0;
    slider.max = Math.max(0, steps.length - 1);
    keyed(list, steps, (step) => step.number,
      (step) => h("li", {}, h("button", { type: "button", onclick: () => go(steps.findIndex((one) => one.number === step.number)) },
        h("span", { class: "no" }, String(step.number)), stepWords(step.events))),
      () => {});
  }

  async function go(index) {
    if (index < 0 || index >= steps.length) return;
    at = index;
    const step = steps[index];
    slider.value = index;
    for (const item of list.children) item.firstElementChild.setAttribute("aria-current", item.dataset.key === String(step.number));
    setText(saying, `Step ${step.number} at ${clockTime(step.at)}, ${milliseconds(step.duration_ms)}${step.picture ? "" : ", without a picture"}`);
    back.hidden = false;
    live.setReplaying(true);
    const found = step.picture ? await picture(`/desktops/${desktopId}/steps/${step.number}`, null) : null;
    if (at !== index) return;
    missing.hidden = Boolean(found?.url);
    image.hidden = !found?.url;
    if (!found?.url) return;
    image.src = found.url;
    image.alt = `The screen after step ${step.number}: ${stepWords(step.events)}`;
    if (url) URL.revokeObjectURL(url);
    url = found.url;
  }

  function leave() {
    clearInterval(timer);
    timer = 0;
    at = -1;
    setText(play, "Play");
    setText(saying, "");
    back.hidden = image.hidden = missing.hidden = true;
    live.setReplaying(false);
    image.removeAttribute("src");
    for (const item of list.children) item.firstElementChild.removeAttribute("aria-current");
  }

  function toggle() {
    if (timer) { clearInterval(timer); timer = 0; setText(play, "Play"); return; }
    let next = at < 0 || at >= steps.length - 1 ? 0 : at;
    setText(play, "Pause");
    timer = setInterval(() => {
      if (next >= steps.length) { clearInterval(timer); timer = 0; setText(play, "Play"); return; }
      go(next);
      next += 1;
    }, PLAY_MS);
  }

  function show(yes) {
    stop();
    if (yes) stop = poll(POLL_MS, refresh);
    else leave();
  }

  return { element, show, leave };
}
