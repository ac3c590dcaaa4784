// Line charts of a few series over time, as SVG. A sample without a value is a gap; a value between two gaps is a dot, not nothing.

import { h, setText, svg } from "./dom.js";

const LEFT = 46, RIGHT = 4, TOP = 6, BOTTOM = 14;

/** A round number not below `value`, for the top of an axis. */
export function roundUp(value) {
  if (value <= 0) return 1;
  const magnitude = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * magnitude).find((step) => step >= value * 0.9999);
}

/** Runs of neighbouring values: arrays of [x, y]; where `value` is null a run ends. */
export function runs(samples, x, value) {
  const found = [];
  let run = null;
  for (const sample of samples) {
    const y = value(sample);
    if (y === null || y === undefined) { run = null; continue; }
    if (run === null) found.push(run = []);
    run.push([x(sample), y]);
  }
  return found;
}

export class Chart {
  /** `series`: [{label, value: (sample) => number | null}]; `form` writes a value; `top` is the least top of the axis. */
  constructor(title, series, form, top = 1) {
    Object.assign(this, { title, series, form, top });
    this.values = series.map((one, i) => h("span", {}, h("i", { class: `s${i}` }), document.createTextNode("")));
    this.drawing = svg("svg", { role: "img", "aria-label": title });
    this.element = h("div", { class: "chart" },
      h("div", { class: "chart-head" }, h("h3", {}, title), h("div", { class: "legend" }, ...this.values)), this.drawing);
  }

  draw(samples) {
    const width = Math.max(160, this.drawing.clientWidth || 340), height = this.drawing.clientHeight || 84;
    const latest = samples.at(-1);
    const all = samples.flatMap((sample) => this.series.map((one) => one.value(sample))).filter((v) => v !== null && v !== undefined);
    const top = roundUp(Math.max(this.top, ...all));
    const end = latest ? latest.at : 1;
    const begin = Math.min(samples.length ? samples[0].at : 0, end - 300);
    const x = (sample) => LEFT + ((sample.at - begin) / (end - begin || 1)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
    const parts = [];
    for (const level of [0, top / 2, top]) {
      parts.push(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(level), y2: y(level) }));
      if (level !== top / 2) parts.push(svg("text", { x: LEFT - 6, y: y(level) + 3.5, "text-anchor": "end" }, level === 0 ? "0" : this.form(level)));
    }
    const minutes = Math.max(1, Math.round((end - begin) / 60));
    parts.push(svg("text", { x: LEFT, y: height - 2 }, `${minutes} min ago`));
    parts.push(svg("text", { x: width - RIGHT, y: height - 2, "text-anchor": "end" }, "now"));
    this.series.forEach((one, i) => {
      for (const run of runs(samples, x, one.value)) {
        if (run.length === 1) parts.push(svg("circle", { class: `point s${i}`, cx: run[0][0], cy: y(run[0][1]), r: 2.4 }));
        else parts.push(svg("polyline", { class: `trace s${i}`, points: run.map(([px, v]) => `${px.toFixed(1)},${y(v).toFixed(1)}`).join(" ") }));
      }
      const last = samples.map(one.value).filter((v) => v !== null && v !== undefined).at(-1);
      this.values[i].lastChild.textContent = `${one.label} ${last === undefined ? "–" : this.form(last)}`;
    });
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("aria-label", `${this.title}: ${this.values.map((value) => value.textContent).join(", ")}`);
    this.drawing.replaceChildren(...parts);
  }
}

/** The class of a bar by the share that is used. */
export function usageClass(share) {
  return share >= 0.95 ? "full" : share >= 0.8 ? "high" : "";
}

/** A labelled bar of used against total. */
export function meter(label) {
  const text = h("span", { class: "quiet" });
  const fill = h("i");
  const bar = h("div", { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const element = h("div", {}, h("div", { class: "row" }, h("span", {}, label), text), bar);
  const set = (share, said) => {
    const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
    setText(text, said);
    fill.style.width = `${percent}%`;
    fill.className = usageClass(percent / 100);
    bar.setAttribute("aria-valuenow", percent);
    bar.setAttribute("aria-valuetext", said);
  };
  return { element, set };
}
