// Charts of a quarter of an hour, drawn as SVG. The mouse or the arrow keys show the figures of a
// moment; marks are decisions of the autoscaler.

import { el, mark, say, svg } from "./dom.js";
import { clock, UNKNOWN } from "./format.js";

const HEIGHT = 168;
const PAD = { top: 14, right: 10, bottom: 22, left: 56 };
const MARKS_APART = 3;
const SPAN_SECONDS = 900;
const LEAST_SPAN_SECONDS = 60;
// More than this between two points is a gap: nobody looked, or the job was down.
const GAP_SECONDS = 15;

export class Chart {
  // series: [{key, name, class}]; stacked: shares that add up; format: a figure in words; scale: the
  // ticks of the axis; steps: a count that jumps.
  constructor(place, { title, series, format, scale, stacked = false, steps = false }) {
    this.series = series;
    this.format = format;
    this.scale = scale;
    this.stacked = stacked;
    this.path = steps ? stairs : line;
    this.title = title;
    this.points = [];
    this.marks = [];
    this.at = null;
    this.svg = svg("svg", { role: "img", tabindex: "0", height: HEIGHT, class: "plot" });
    this.values = series.map(() => el("b", {}, UNKNOWN));
    this.when = el("span", { class: "when" }, "now");
    const legend = el("ul", { class: "legend" },
      ...series.map((s, i) => el("li", {}, el("span", { class: `swatch ${s.class}` }), `${s.name} `, this.values[i])));
    this.note = el("p", { class: "note", hidden: "" });
    place.append(el("figure", { class: "card chart" },
      el("figcaption", {}, el("h3", {}, title), this.when), this.svg, legend, this.note));
    this.svg.addEventListener("pointermove", (event) => this.pointAt(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(points, marks) {
    const last = points.length ? points.at(-1).at : 0;
    this.points = points.filter((p) => p.at >= last - SPAN_SECONDS);
    this.marks = marks;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (width === 0) return;
    this.width = width;
    const parts = this.points.length ? [...this.axes(), ...this.drawn(), ...this.marked(), this.cursor()] : [this.nothing()];
    this.svg.replaceChildren(...parts.filter((part) => part !== null));
    this.tell();
  }

  nothing() {
    const text = svg("text", { x: this.width / 2, y: HEIGHT / 2, class: "tick", "text-anchor": "middle" });
    say(text, "Nothing was seen yet");
    return text;
  }

  get domain() {
    const last = this.points.at(-1).at;
    return [Math.min(this.points[0].at, last - LEAST_SPAN_SECONDS), last];
  }

  x(at) {
    const [first, last] = this.domain;
    return PAD.left + ((at - first) / (last - first)) * (this.width - PAD.left - PAD.right);
  }

  y(value) {
    return HEIGHT - PAD.bottom - (value / this.ceiling) * (HEIGHT - PAD.top - PAD.bottom);
  }

  axes() {
    const highest = Math.max(0, ...this.points.flatMap((p) => this.series.map((s) => p[s.key] ?? 0)));
    const ticks = this.scale(highest);
    this.ceiling = ticks.at(-1).value;
    const parts = [];
    for (const { value, label } of ticks) {
      const y = this.y(value);
      parts.push(svg("line", { x1: PAD.left, x2: this.width - PAD.right, y1: y, y2: y, class: "grid" }));
      const text = svg("text", { x: PAD.left - 6, y: y + 4, class: "tick of-value", "text-anchor": "end" });
      say(text, label);
      parts.push(text);
    }
    const [first, last] = this.domain;
    const step = [15, 30, 60, 120, 300].find((s) => (last - first) / s <= this.width / 90) ?? 300;
    for (let back = 0; back <= last - first + 0.5; back += step) {
      const anchor = back === 0 ? "end" : "middle";
      const text = svg("text", { x: this.x(last - back), y: HEIGHT - 6, class: "tick", "text-anchor": anchor });
      say(text, back === 0 ? "now" : back < 60 || step < 60 ? `−${back} s` : `−${back / 60} min`);
      if (this.x(last - back) > PAD.left + 12) parts.push(text);
    }
    return parts;
  }

  drawn() {
    const floor = this.points.map(() => 0);
    return this.series.flatMap((s) => {
      const runs = this.runs(s.key, floor);
      return runs.flatMap((run) => {
        if (this.stacked) return [svg("path", { d: area(run), class: `area ${s.class}` })];
        return run.length === 1
          ? [svg("circle", { cx: run[0].x, cy: run[0].top, r: 1.5, class: `dot ${s.class}` })]
          : [svg("path", { d: this.path(run), class: `line ${s.class}` })];
      });
    });
  }

  // Pieces of a line without a gap, as places on the screen; stacked ones lie on those before.
  runs(key, floor) {
    const runs = [];
    let run = [];
    let before = null;
    this.points.forEach((p, i) => {
      const value = p[key];
      const gap = value === null || (before !== null && p.at - before > GAP_SECONDS);
      if (gap && run.length) {
        runs.push(run);
        run = [];
      }
      if (value === null) return;
      const low = this.stacked ? floor[i] : 0;
      const high = Math.min(low + value, this.stacked ? this.ceiling : Infinity);
      run.push({ x: this.x(p.at), low: this.y(low), top: this.y(high) });
      if (this.stacked) floor[i] = high;
      before = p.at;
    });
    if (run.length) runs.push(run);
    return runs;
  }

  marked() {
    const [first, last] = this.domain;
    const places = this.marks.filter((m) => m.at >= first && m.at <= last + 2).map((m) => this.x(Math.min(m.at, last)));
    // Marks that would lie on each other are one.
    return places
      .filter((x, i) => i === 0 || x - places[i - 1] > MARKS_APART)
      .map((x) => {
        return svg("path", { d: `M${x} ${PAD.top}V${HEIGHT - PAD.bottom}M${x - 4} ${PAD.top - 8}h8l-4 7z`, class: "mark" });
      });
  }

  cursor() {
    if (this.at === null) return null;
    const x = this.x(this.nearest().at);
    return svg("line", { x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom, class: "cursor" });
  }

  nearest() {
    if (this.at === null) return this.points.at(-1);
    return this.points.reduce((a, b) => (Math.abs(b.at - this.at) < Math.abs(a.at - this.at) ? b : a));
  }

  pointAt(event) {
    if (!this.points.length) return;
    const [first, last] = this.domain;
    const inner = this.width - PAD.left - PAD.right;
    this.at = first + ((event.offsetX - PAD.left) / inner) * (last - first);
    this.draw();
  }

  leave() {
    this.at = null;
    this.draw();
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -1e6, End: 1e6 };
    const by = steps[event.key];
    if (by === undefined || !this.points.length) return;
    event.preventDefault();
    const i = this.points.indexOf(this.nearest());
    this.at = this.points[Math.max(0, Math.min(this.points.length - 1, i + by))].at;
    this.draw();
  }

  tell() {
    const p = this.points.length ? this.nearest() : null;
    const words = this.series.map((s, i) => {
      const value = this.format(p ? p[s.key] : null);
      say(this.values[i], value);
      return `${s.name} ${value}`;
    });
    const when = this.at === null || !p ? "now" : clock(p.at);
    say(this.when, when);
    mark(this.svg, "aria-label", `${this.title}, ${when}: ${words.join(", ")}`);
    const near = p && this.at !== null && this.marks.find((m) => Math.abs(m.at - p.at) <= 5);
    this.note.hidden = !near;
    say(this.note, near ? near.text : "");
  }
}

function line(run) {
  return run.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.top.toFixed(1)}`).join("");
}

function stairs(run) {
  return run.map((p, i) => `${i ? "H" : "M"}${p.x.toFixed(1)}${i ? "V" : " "}${p.top.toFixed(1)}`).join("");
}

function area(run) {
  const back = run.toReversed().map((p) => `L${p.x.toFixed(1)} ${p.low.toFixed(1)}`).join("");
  return `${line(run)}${back}Z`;
}
